"""Pure: what the controllers replicate, and its canonical JSON form.

Plain mutable records, owned by one `Machine`; everybody else only reads them. Every field is in the
snapshot: two machines with equal digests behave the same for ever (INV-10).
"""

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any
from zlib import crc32

import orjson
from msgspec import structs

from paceline.errors import BadRequestError, CorruptLogError
from paceline.types import (
    ConsumerGroupName,
    GroupName,
    Incarnation,
    MasterEpoch,
    ReplicaId,
    SetEpoch,
    TopicId,
    TopicName,
)
from paceline.wire.cluster import GroupSettings, GroupView, ReplicaView, TopicView
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.names import namespace_of
from paceline.wire.session_commands import ELECTION_PRIORITY_MAX, PresentStore
from paceline.wire.static_topics import LogicalQueue
from paceline.wire.topics import NORMAL, PERM_BOTH
from paceline.wire.users import Security

SNAPSHOT_VERSION = 2
"""2: topics have read and write queues, permissions, a message type; consumer groups."""
PART_ENTRIES = 1_000
"""Topics and consumer groups; some 3 ms to make and to hash."""
BUCKETS = 256
"""Parts at most: of a power of two, each has whole buckets."""
MEMBERS_AFTER_SUSPICION_MIN = 2
"""Suspicion alone leaves no set of one: each of two may have cut what the other has (R23)."""
RESULTS_MAX = 16
"""Results kept per session. Brokers have one command under way, a leader's proposer a few."""


@dataclass(slots=True, kw_only=True)
class Replica:
    """A registered replica."""

    replica_id: ReplicaId
    store_id: str
    incarnation: Incarnation
    client_address: str
    replication_address: str
    is_learner: bool
    is_empty: bool
    """Its store held no record when this incarnation registered (R18)."""
    is_suspect: bool
    """Recovery cut non-zero bytes: electable only once every member has reported (R23)."""
    is_lost: bool
    """The last member of the set, and its log is known to lack records: never elected, until the
    operator accepts the loss (R9, R13)."""
    end: int
    """End of its log when it registered."""
    election_priority: int = ELECTION_PRIORITY_MAX
    """The least is preferred as master (R17)."""
    view_version: int
    """Of the view that its registration was published with: who has that view knows of it."""
    recovered_from: str | None = None
    """The cluster whose store it was when an operator recovered the group from it (R18)."""


@dataclass(slots=True, kw_only=True)
class Group:
    """A broker group."""

    group: GroupName
    settings: GroupSettings
    next_settings: GroupSettings | None = None
    """Take effect with the next epoch (R8)."""
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    next_replica_id: int = 1
    master: ReplicaId | None = None
    master_incarnation: Incarnation | None = None
    master_epoch: MasterEpoch = MasterEpoch(0)
    sync_state_set: set[ReplicaId] = field(default_factory=set)
    set_epoch: SetEpoch = SetEpoch(0)
    is_open: bool = False
    """The present epoch's start record is confirmed (R6)."""
    is_unclean: bool = False
    opened_epoch: MasterEpoch = MasterEpoch(0)
    """The newest epoch that opened: every member has its start record, so a log that ends before it
    is a stale copy, however long (R16). 0 again after an unclean election."""
    unclean_elections_count: int = 0
    """Above 0 the group's history is lossy."""
    acting: ReplicaId | None = None
    """Acts as master in the present epoch, which has none (R36); never a member."""
    acting_incarnation: Incarnation | None = None
    acting_leases_ms: int = 0
    """It may have granted locks, with leases up to this; 0 once an epoch that withholds is open."""
    is_narrowed: bool = False
    """A member was removed (R9, R16, R23), and the set has not grown since: what was confirmed may
    lie with that one alone."""
    is_claimed: bool = False
    """Stores with its records presented themselves: it is not begun with empty ones (R18)."""
    recovered_store: str | None = None
    """The store that an operator recovered the group from."""
    is_unclean_due: bool = False
    """It was recovered at a loss: until an epoch has opened, each that begins is unclean (R21)."""
    is_write_wiped: bool = False
    """Clients may send nothing to it; what was sent is still read, delivered, committed."""
    number: int = 0
    """In the order in which groups were made, from 1; never given again."""
    confirm_floor: int = 0
    view_floor: int = 0
    """The floor in the view of the present version: moving the floor alone publishes nothing."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Elections, vacancies and set changes, oldest first."""

    @property
    def wanted_settings(self) -> GroupSettings:
        """As they were put last: what decides how an epoch begins, and whether one does."""
        return self.next_settings or self.settings

    @property
    def is_incomplete(self) -> bool:
        """Members were removed by no master's wish, and those that are left do not stand for them:
        below min, or one alone, which may have lost what all of them had confirmed (R23).

        Of two or more each has all of it, and their disks would have to lose the same.
        """
        is_alone = self.is_narrowed and len(self.sync_state_set) == 1
        return is_alone or len(self.sync_state_set) < self.settings.required_in_sync_replicas

    def members(self) -> dict[ReplicaId, Incarnation]:
        """Every member of the set with its recorded incarnation, by id."""
        return {member: self.replicas[member].incarnation for member in sorted(self.sync_state_set)}

    def view(self) -> GroupView:
        replicas = {
            replica.replica_id: ReplicaView(
                replica_id=replica.replica_id,
                store_id=replica.store_id,
                incarnation=replica.incarnation,
                client_address=replica.client_address,
                replication_address=replica.replication_address,
                is_learner=replica.is_learner,
            )
            for replica in self.replicas.values()
        }
        return GroupView(
            group=self.group,
            master=self.master,
            master_incarnation=self.master_incarnation,
            master_epoch=self.master_epoch,
            sync_state_set=frozenset(self.sync_state_set),
            set_epoch=self.set_epoch,
            settings=self.settings,
            replicas=replicas,
            is_unclean=self.is_unclean,
            confirm_floor=self.view_floor,
            acting=self.acting,
            acting_incarnation=self.acting_incarnation,
            acting_leases_ms=self.acting_leases_ms,
            is_write_wiped=self.is_write_wiped,
            number=self.number,
        )

    def to_json(self) -> dict[str, Any]:
        following = self.next_settings
        return {
            "group": self.group,
            "settings": self.settings.to_json(),
            "next_settings": None if following is None else following.to_json(),
            "replicas": [asdict(self.replicas[key]) for key in sorted(self.replicas)],
            "next_replica_id": self.next_replica_id,
            "master": self.master,
            "master_incarnation": self.master_incarnation,
            "master_epoch": self.master_epoch,
            "sync_state_set": sorted(self.sync_state_set),
            "set_epoch": self.set_epoch,
            "is_open": self.is_open,
            "is_unclean": self.is_unclean,
            "opened_epoch": self.opened_epoch,
            "unclean_elections_count": self.unclean_elections_count,
            "acting": self.acting,
            "acting_incarnation": self.acting_incarnation,
            "acting_leases_ms": self.acting_leases_ms,
            "is_narrowed": self.is_narrowed,
            "is_claimed": self.is_claimed,
            "recovered_store": self.recovered_store,
            "is_unclean_due": self.is_unclean_due,
            "is_write_wiped": self.is_write_wiped,
            "number": self.number,
            "confirm_floor": self.confirm_floor,
            "view_floor": self.view_floor,
            "history": self.history,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Group":
        following = document["next_settings"]
        replicas = [Replica(**replica) for replica in document["replicas"]]
        is_narrowed = document.get("is_narrowed", True)  # an older one did not know: it may be
        return cls(
            **{
                **document,
                "settings": GroupSettings.from_json(document["settings"]),
                "next_settings": None if following is None else GroupSettings.from_json(following),
                "replicas": {replica.replica_id: replica for replica in replicas},
                "sync_state_set": set(document["sync_state_set"]),
                "is_narrowed": is_narrowed,
            }
        )


@dataclass(slots=True, kw_only=True)
class Topic:
    """A topic; its id is never used again (R35)."""

    topic: TopicName
    topic_id: TopicId
    read_queues: dict[GroupName, int]
    write_queues: dict[GroupName, int]
    """The same broker groups, each with at most as many."""
    perm: int = PERM_BOTH
    message_type: str = NORMAL
    attributes: dict[str, str] = field(default_factory=dict)
    is_system: bool = False
    logical_queues: tuple[LogicalQueue, ...] = ()
    """Of a static topic; its numbers of queues are how many segments each group ever had."""
    alterations: int = 0
    """How often it was altered: who has looked at it before proposing names that."""

    def view(self, wiped: Set[GroupName] = frozenset()) -> TopicView:
        """Values that no later change reaches. In groups that are `wiped` nobody writes to it."""
        reads, writes = dict(self.read_queues), dict(self.write_queues)
        for group in wiped & writes.keys():
            writes[group] = 0
        return TopicView(
            topic=self.topic,
            topic_id=self.topic_id,
            queues=reads,
            read_queues=reads,
            write_queues=writes,
            perm=self.perm,
            message_type=self.message_type,
            attributes=dict(self.attributes),
            is_system=self.is_system,
            logical_queues=self.logical_queues,
        )

    def drop_group(self, group: GroupName) -> None:
        """It may have had none there: a logical queue was only on its way."""
        self.read_queues.pop(group, None)
        self.write_queues.pop(group, None)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "read_queues": self.read_queues,
            "write_queues": self.write_queues,
            "perm": self.perm,
            "message_type": self.message_type,
            "attributes": self.attributes,
            "is_system": self.is_system,
            "logical_queues": [row.to_json() for row in self.logical_queues],
            "alterations": self.alterations,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Topic":
        if "queues" in document:  # snapshot version 1
            queues = document.pop("queues")
            document = {**document, "read_queues": queues, "write_queues": dict(queues)}
        rows = document.get("logical_queues", ())  # an older one had none
        logical_queues = tuple(LogicalQueue.from_json(row) for row in rows)
        return cls(**{**document, "logical_queues": logical_queues})


@dataclass(slots=True, kw_only=True)
class Session:
    """Exactly once: the results of a caller's last commands."""

    used_at: int
    """Replicated time of its last command."""
    sequence_floor: int = -1
    """Sequences up to here are refused: their results are forgotten."""
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    def keep(self, sequence: int, result: dict[str, Any]) -> None:
        self.results[sequence] = result
        while len(self.results) > RESULTS_MAX:
            oldest = min(self.results)
            del self.results[oldest]
            self.sequence_floor = max(self.sequence_floor, oldest)


@dataclass(slots=True, kw_only=True)
class State:
    """Everything."""

    version: int = 0
    """Of the published view; every change that the view shows adds one."""
    time_ms: int = 0
    """Replicated time: the largest `at` so far, each step bounded (R38)."""
    swept_at: int = 0
    """When sessions were last looked through for expiry."""
    cluster_id: str = ""
    cluster_name: str = ""
    term: int = 0
    """The newest Raft term whose leader has announced itself (R15)."""
    groups: dict[GroupName, Group] = field(default_factory=dict)
    next_group_number: int = 1
    topics: dict[TopicName, Topic] = field(default_factory=dict)
    next_topic_id: int = 1
    consumer_groups: dict[ConsumerGroupName, ConsumerGroupView] = field(default_factory=dict)
    presented: dict[str, PresentStore] = field(default_factory=dict)
    """Stores that nobody can place, by store id, as they last presented themselves (R18)."""
    replaced_clusters: list[str] = field(default_factory=list)
    """Clusters whose groups operators have recovered here."""
    sessions: dict[str, Session] = field(default_factory=dict)
    controllers: list[str] = field(default_factory=list)
    controllers_generation: int = 0
    """Client addresses of the controllers, and the generation of their member list."""
    security: Security = Security()
    """Users and rights."""
    key_uses: dict[str, int] = field(default_factory=dict)
    """Access key -> when it was used last, Unix time in ms; to an hour."""
    creations: dict[str, int] = field(default_factory=dict)
    """By user the time until which its quota of new topics and groups is used up."""
    users_topics: Counter[str] = field(default_factory=Counter)
    """By namespace how many topics are not the system's own; it follows from `topics`."""
    topic_buckets: list[set[TopicName]] = field(
        default_factory=lambda: [set() for _ in range(BUCKETS)]
    )
    """Names of `topics` by id modulo BUCKETS, from which it follows too."""

    def new_group(self, name: GroupName, settings: GroupSettings) -> Group:
        """A group, which is not on record yet, with a number of its own."""
        group = Group(group=name, settings=settings, number=self.next_group_number)
        self.next_group_number += 1
        return group

    def add_topic(self, topic: Topic) -> None:
        """One that is not on record yet."""
        self.topics[topic.topic] = topic
        self.topic_buckets[topic.topic_id % BUCKETS].add(topic.topic)
        self.users_topics[namespace_of(topic.topic)] += not topic.is_system

    def remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.topic]
        self.topic_buckets[topic.topic_id % BUCKETS].remove(topic.topic)
        self.users_topics[namespace_of(topic.topic)] -= not topic.is_system

    def make_system(self, topic: Topic) -> None:
        """It is the system's own from now on."""
        self.users_topics[namespace_of(topic.topic)] -= not topic.is_system
        topic.is_system = True

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no floats, lists for what is not keyed by text."""
        return self._to_bytes(self.topics, self.consumer_groups, self.waiting_stores())

    def part_to_bytes(self, number: int) -> bytes:
        """As `to_bytes`, with some of the topics and consumer groups: of some thousand at most, and
        with following numbers of all. What there is of users and sessions is whole."""
        entries = len(self.topics) + len(self.consumer_groups)
        entries += sum(len(store.topics) for store in self.presented.values())
        parts = 1
        while parts < BUCKETS and entries > parts * PART_ENTRIES:
            parts *= 2
        part = number % parts
        return self._to_bytes(
            chain.from_iterable(self.topic_buckets[part::parts]),
            [name for name in self.consumer_groups if crc32(name.encode()) % parts == part],
            [
                structs.replace(store, topics=store.topics[part::parts])
                for store in self.waiting_stores()
            ],
        )

    def waiting_stores(self) -> list[PresentStore]:
        """Those that presented themselves, by id."""
        return [self.presented[name] for name in sorted(self.presented)]

    def _to_bytes(
        self,
        topics: Iterable[TopicName],
        consumer_groups: Iterable[ConsumerGroupName],
        presented: Iterable[PresentStore],
    ) -> bytes:
        document = {
            "snapshot_version": SNAPSHOT_VERSION,
            "version": self.version,
            "time_ms": self.time_ms,
            "swept_at": self.swept_at,
            "cluster_id": self.cluster_id,
            "cluster_name": self.cluster_name,
            "term": self.term,
            "groups": [self.groups[name].to_json() for name in sorted(self.groups)],
            "next_group_number": self.next_group_number,
            "topics": [self.topics[name].to_json() for name in sorted(topics)],
            "next_topic_id": self.next_topic_id,
            "consumer_groups": [
                self.consumer_groups[name].to_json() for name in sorted(consumer_groups)
            ],
            "presented": [store.to_json() for store in presented],
            "replaced_clusters": self.replaced_clusters,
            "controllers": self.controllers,
            "controllers_generation": self.controllers_generation,
            "sessions": [
                _session_json(name, self.sessions[name]) for name in sorted(self.sessions)
            ],
        }
        if self.security.version:  # a cluster that never used it keeps the form of before
            document["security"] = self.security.to_json()
        if self.key_uses:
            document["key_uses"] = self.key_uses
        if self.creations:
            document["creations"] = self.creations
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_bytes(cls, snapshot: bytes) -> "State":
        """Raises CorruptLogError on bytes that are no snapshot of this version."""
        try:
            document = orjson.loads(snapshot)
            if document.pop("snapshot_version") not in (1, SNAPSHOT_VERSION):
                raise CorruptLogError("a controller snapshot of another format version")
            groups = [Group.from_json(group) for group in document["groups"]]
            if "next_group_number" not in document:  # of before: in order of name
                for number, group in enumerate(groups, start=1):
                    group.number = number
                document["next_group_number"] = len(groups) + 1
            topics = [Topic.from_json(topic) for topic in document["topics"]]
            consumers = [
                ConsumerGroupView.from_json(group) for group in document.get("consumer_groups", [])
            ]
            sessions = dict(_session_of(session) for session in document["sessions"])
            presented = [_presented(store) for store in document.get("presented", [])]
            state = cls(
                **{
                    **document,
                    "presented": {store.store_id: store for store in presented},
                    "groups": {group.group: group for group in groups},
                    "topics": {},
                    "consumer_groups": {group.group: group for group in consumers},
                    "sessions": sessions,
                    "security": Security.from_json(document.get("security", {})),
                }
            )
            for topic in topics:
                state.add_topic(topic)
            return state
        except (
            orjson.JSONDecodeError,
            KeyError,
            TypeError,
            AttributeError,
            BadRequestError,
        ) as error:
            raise CorruptLogError(f"not a controller snapshot: {error!r}") from error


def _presented(document: object) -> PresentStore:
    if not isinstance(document, dict):
        raise BadRequestError("presented must be an object", field="presented")
    return PresentStore.read(document)


def _name_of(entry: tuple[str, Session]) -> str:
    return entry[0]


def _session_json(name: str, session: Session) -> dict[str, Any]:
    return {
        "session": name,
        "used_at": session.used_at,
        "sequence_floor": session.sequence_floor,
        "results": [[sequence, session.results[sequence]] for sequence in sorted(session.results)],
    }


def _session_of(document: dict[str, Any]) -> tuple[str, Session]:
    session = Session(
        used_at=document["used_at"],
        sequence_floor=document["sequence_floor"],
        results={sequence: result for sequence, result in document["results"]},
    )
    return document["session"], session
