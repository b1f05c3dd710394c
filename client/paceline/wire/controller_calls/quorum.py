"""Pure: requests about the controllers themselves: state, members, leadership, sessions."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from paceline.wire.calls.request import Answer, Number, Request, Route
from paceline.wire.commands import Address
from paceline.wire.controller_calls.base import ControllerName, Read
from paceline.wire.rights import CHANGE_CLUSTER, KNOWN_USER, SEE_CLUSTER


class GetCluster(Read[dict[str, Any]]):
    """The cluster view with `is_alive` of each replica as this controller believes, `cluster_name`,
    `controller_id`, `leader`, `leader_address`, `term`."""

    routes = (Route("GET", "/v1/cluster"),)
    needs = SEE_CLUSTER


class GetStatus(Request[dict[str, Any]]):
    """The state of this controller."""

    routes = (Route("GET", "/v1/status"),)
    needs = SEE_CLUSTER

    digest: bool = False
    """Also that of the whole replicated state, which is equal on controllers of equal
    `applied_index`: with 100,000 topics it takes half a second of the controller."""


class Member(Answer, kw_only=True):
    """One controller. What only the leader knows is null elsewhere."""

    controller_id: str
    raft: str
    client: str
    is_voter: bool
    is_linked: bool
    lag_entries: int | None
    silent_ms: int | None


class MemberList(Answer, kw_only=True):
    """The list in force."""

    generation: int
    committed_generation: int
    leaving: str | None
    waits_for: str | None
    members: list[Member]


class ListMembers(Read[MemberList]):
    """The controllers' member list."""

    routes = (Route("GET", "/v1/members"),)
    needs = SEE_CLUSTER


class Changing(Answer):
    """The change is on record; the rest goes on by itself."""

    generation: int


class AddMember(Request[Changing], kw_only=True):
    """Add a controller, perhaps in another's place. A repetition that names the `generation` of the
    list is answered once a later list holds it. STALE_GENERATION, NOT_YET: ask again."""

    routes = (Route("POST", "/v1/members", 202),)
    needs = CHANGE_CLUSTER
    controller_id: ControllerName
    raft: Address
    client: Address
    replaces: ControllerName | None = None
    generation: Number | None = None


class RemoveMember(Request[Changing], kw_only=True):
    """Take a controller out, or give up a learner."""

    routes = (Route("DELETE", "/v1/members/{controller}", 202),)
    needs = CHANGE_CLUSTER
    controller: ControllerName
    generation: Number | None = None


class Leadership(Answer, kw_only=True):
    """Who leads now."""

    leader: str
    leader_address: str | None
    term: int
    elapsed_ms: int


class TransferLeadership(Request[Leadership], kw_only=True):
    """Have another controller lead; answered when it does.

    With `from` and `term`, who led in which term, it may be asked for again: once another one
    leads, that is the answer, and leadership does not move a second time. TRANSFER_REFUSED,
    STALE_TERM."""

    routes = (Route("POST", "/v1/leadership"),)
    needs = CHANGE_CLUSTER
    to: ControllerName | None = None
    from_: ControllerName | None = msgspec.field(name="from", default=None)
    term: Annotated[int, Meta(ge=1)] | None = None


class OpenedSession(Answer):
    """The session of the headers is open."""

    session: str
    version: int


class OpenSession(Request[OpenedSession]):
    """Open the session that the headers name, with sequence 0: its commands are done once, however
    often they are asked for."""

    routes = (Route("POST", "/v1/sessions", 201),)
    needs = KNOWN_USER
