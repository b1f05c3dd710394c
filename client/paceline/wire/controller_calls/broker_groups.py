"""Pure: requests about broker groups: settings, elections, transfers, history, recovery."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paceline.wire.calls.request import Answer, Request, Route
from paceline.wire.cluster import HISTORY_ENTRIES_MAX
from paceline.wire.commands import MEMBERS_MAX, Token
from paceline.wire.controller_calls.base import (
    EpochNumber,
    GroupId,
    Read,
    ReplicaNumber,
    Written,
)
from paceline.wire.rights import CHANGE_CLUSTER, SEE_CLUSTER

_Copies = Annotated[int, Meta(ge=1, le=MEMBERS_MAX)]


class GroupList(Answer, kw_only=True):
    """The broker groups, by name, each as `GetGroup` answers it."""

    version: int
    groups: list[dict[str, Any]]


class ListGroups(Read[GroupList]):
    """All broker groups."""

    routes = (Route("GET", "/v1/groups"),)
    needs = SEE_CLUSTER


class GetGroup(Read[dict[str, Any]], kw_only=True):
    """The view of a broker group, and what only the controllers know of it: `confirm_floor`,
    `is_open`, `is_lossy`, `is_claimed` (stores with its records wait, so empty ones do not begin
    it), `next_settings`, `standings` of the replicas, `history`. GROUP_NOT_FOUND."""

    routes = (Route("GET", "/v1/groups/{group}"),)
    needs = SEE_CLUSTER
    group: str


class SettingsOfGroup(Answer, kw_only=True):
    """Those in force, and those of the next epoch."""

    settings: dict[str, Any]
    next_settings: dict[str, Any] | None


class GetGroupSettings(Read[SettingsOfGroup], kw_only=True):
    """The settings of a broker group."""

    routes = (Route("GET", "/v1/groups/{group}/settings"),)
    needs = SEE_CLUSTER
    group: str


class WrittenSettings(Answer, kw_only=True):
    """The settings as they will be."""

    settings: dict[str, Any]
    version: int


class SetGroupSettings(Request[WrittenSettings], kw_only=True):
    """Change settings of a broker group; what is left out stays. In effect with its next epoch,
    which the leader begins at once."""

    routes = (Route("PUT", "/v1/groups/{group}/settings", 202),)
    needs = CHANGE_CLUSTER
    group: str
    total_replicas: _Copies | None = None
    min_in_sync_replicas: _Copies | None = None
    durability: Literal["fsync", "memory"] | None = None
    all_ack_in_sync_state_set: bool | None = None
    in_sync_replicas: _Copies | None = None
    enable_auto_in_sync_replicas: bool | None = None
    enable_slave_acting_master: bool | None = None
    enable_elect_unclean_master: bool | None = None


class WrittenPermission(Answer, kw_only=True):
    """The permission as it is now."""

    writable: bool
    version: int


class SetWritePermission(Request[WrittenPermission], kw_only=True):
    """Whether clients may send to a broker group. While they may not, views show no queue of it to
    write to; what it has is read, delivered and committed."""

    routes = (Route("PUT", "/v1/groups/{group}/write-permission"),)
    needs = CHANGE_CLUSTER
    group: str
    writable: bool


class History(Answer, kw_only=True):
    """Elections, vacancies and set changes with their reasons, oldest first."""

    group: str
    is_lossy: bool
    history: list[dict[str, Any]]


class GetHistory(Read[History], kw_only=True):
    """What became of a broker group."""

    routes = (Route("GET", "/v1/groups/{group}/history"),)
    needs = SEE_CLUSTER
    group: str
    limit: Annotated[int, Meta(ge=1, le=HISTORY_ENTRIES_MAX)] = HISTORY_ENTRIES_MAX


class RemoveReplica(Request[Written], kw_only=True):
    """Forget a replica that is dead and no member. IS_ALIVE, IS_MEMBER."""

    routes = (Route("DELETE", "/v1/groups/{group}/replicas/{replica}"),)
    needs = CHANGE_CLUSTER
    group: str
    replica: ReplicaNumber
    force: bool = False
    """Also a member but the last one, also a living one that does not lead or act."""


class RemoveGroup(Request[Written], kw_only=True):
    """Forget a broker group of which no replica lives. IS_ALIVE, HAS_QUEUES."""

    routes = (Route("DELETE", "/v1/groups/{group}"),)
    needs = CHANGE_CLUSTER
    group: str
    force: bool = False
    """With the queues of its topics."""


class Elect(Request[dict[str, Any]], kw_only=True):
    """Have another master elected, or a named one. ALREADY_MASTER: `preferred` leads, and no epoch
    begins."""

    routes = (Route("POST", "/v1/elections"),)
    needs = CHANGE_CLUSTER
    group: GroupId
    preferred: ReplicaNumber | None = None
    unclean: bool = False
    """Accept that records are lost, and name the winner."""


class Transfer(Request[dict[str, Any]], kw_only=True):
    """The master hands over, to replica `to` or to the best member. `is_graceful` false: it did not
    answer the order and was replaced.

    With `from` and `master_epoch`, who led in which epoch, it may be asked for again: once another
    one leads, that is the answer, and mastership does not move a second time. NO_MASTER,
    ALREADY_MASTER, NO_ELECTION, TRANSFER_UNDER_WAY, HAND_OVER_REFUSED, STALE_MASTER_EPOCH."""

    routes = (Route("POST", "/v1/transfers"),)
    needs = CHANGE_CLUSTER
    group: GroupId
    to: ReplicaNumber | None = None
    from_: ReplicaNumber | None = msgspec.field(name="from", default=None)
    master_epoch: EpochNumber | None = None


class HeardReplica(Answer, kw_only=True):
    """Nulls: nothing was heard."""

    heartbeat: dict[str, Any] | None
    age_ms: int | None


class GetHeard(Request[HeardReplica], kw_only=True):
    """What this controller itself has heard of a replica last; another controller asks, and proves
    that it is one."""

    routes = (Route("GET", "/v1/heard/{group}/{replica}"),)
    needs = SEE_CLUSTER
    group: str
    replica: ReplicaNumber


class Reason(Answer):
    """Why a store cannot be chosen."""

    reason: str
    detail: str


class Store(Answer, kw_only=True):
    """A store that waits, with what it presented."""

    group: str
    store_id: str
    from_cluster: str
    replica_id: int
    incarnation: int
    address: str
    epoch: int
    last_epoch: int
    start: int
    end: int
    confirm: int
    topics: int
    is_learner: bool
    is_suspect: bool
    is_damaged: bool
    refusals: list[Reason]
    losses: list[str]
    """What choosing it would lose, a sentence each."""


class StoreList(Answer):
    """The best store of a group first."""

    stores: list[Store]


class ListStores(Read[StoreList]):
    """Stores that wait for an operator, because no controller knows their group."""

    routes = (Route("GET", "/v1/stores"),)
    needs = SEE_CLUSTER


class Recover(Request[dict[str, Any]], kw_only=True):
    """Put a broker group on record again: the log of that store is the group's. Answers
    `replica_id`, `replicas`, `is_unclean`. MAY_LOSE_RECORDS, STORE_UNKNOWN, GROUP_KNOWN,
    STORE_DAMAGED, LEARNER, STORES_CONTRADICT, TOPIC_CONTRADICTS, OTHER_CLUSTER, TOO_MANY_REPLICAS,
    TOO_MANY_TOPICS, EPOCH_EXHAUSTED."""

    routes = (Route("POST", "/v1/recoveries"),)
    needs = CHANGE_CLUSTER
    group: GroupId
    store: Token
    give_up_missing: bool = False
    """Choose it although records may be missing."""


class ForgetStore(Request[Written], kw_only=True):
    """Forget a store that waits; one whose broker runs is back within 10 s."""

    routes = (Route("DELETE", "/v1/stores/{store}"),)
    needs = CHANGE_CLUSTER
    store: Token
