"""Pure: the cluster as controllers publish it to brokers and clients, with its JSON form.

One `ClusterView` is the whole routing and role state at one `version`; receivers apply only a
larger version of the same cluster id (R38). Controllers push it over sessions, `/v1/watch` answers
it, both as changes to who has an earlier one (`views/`); brokers repeat it under `/v1/routes`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import BadRequestError
from paceline.sorted_map import SortedMap
from paceline.types import (
    ConsumerGroupName,
    GroupName,
    Incarnation,
    MasterEpoch,
    ReplicaId,
    SetEpoch,
    TopicName,
)
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.topics import TopicView as TopicView

HISTORY_ENTRIES_MAX = 64
"""Elections and set changes kept per group: enough for a bad day, bounds the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a group, held by the controller (DESIGN 5); they change with an epoch (R8)."""

    total_replicas: int = 3
    min_in_sync_replicas: int = 2
    durability: str = "fsync"
    """"fsync": confirm counts flushed positions; "memory": appended ones."""
    all_ack_in_sync_state_set: bool = True
    in_sync_replicas: int = 1
    enable_auto_in_sync_replicas: bool = False
    enable_slave_acting_master: bool = True
    """While no member can be elected, another live replica serves reads (R36)."""
    enable_elect_unclean_master: bool = False
    """When no member can be elected, the best other replica leads, and what it lacks is lost
    (R21)."""

    @property
    def required_in_sync_replicas(self) -> int:
        """The min of R8: so many members must hold a record before it is confirmed.

        With `all_ack_in_sync_state_set` the set and its minimum decide. Without it a group asks for
        `in_sync_replicas` copies of each record, so that no smaller set confirms any either, unless
        `enable_auto_in_sync_replicas` lets the count follow the members that keep up.
        """
        if self.all_ack_in_sync_state_set or self.enable_auto_in_sync_replicas:
            return self.min_in_sync_replicas
        return max(self.min_in_sync_replicas, self.in_sync_replicas)

    def to_json(self) -> dict[str, Any]:
        return {
            "total_replicas": self.total_replicas,
            "min_in_sync_replicas": self.min_in_sync_replicas,
            "durability": self.durability,
            "all_ack_in_sync_state_set": self.all_ack_in_sync_state_set,
            "in_sync_replicas": self.in_sync_replicas,
            "enable_auto_in_sync_replicas": self.enable_auto_in_sync_replicas,
            "enable_slave_acting_master": self.enable_slave_acting_master,
            "enable_elect_unclean_master": self.enable_elect_unclean_master,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "GroupSettings":
        return cls(**document)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One registered replica of a group. Addresses are "host:port" as others should dial them."""

    replica_id: ReplicaId
    store_id: str
    incarnation: Incarnation
    client_address: str
    replication_address: str
    is_learner: bool = False
    is_alive: bool = True
    """As the publishing leader believed; a hint, never a basis for a decision."""

    def to_json(self) -> dict[str, Any]:
        return {
            "replica_id": self.replica_id,
            "store_id": self.store_id,
            "incarnation": self.incarnation,
            "client_address": self.client_address,
            "replication_address": self.replication_address,
            "is_learner": self.is_learner,
            "is_alive": self.is_alive,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ReplicaView":
        return cls(**document)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One broker group. `master` is None while nobody is elected in `master_epoch`.

    Then `acting` may name the replica that serves reads in that epoch: never both (R36).
    """

    group: GroupName
    master: ReplicaId | None
    master_incarnation: Incarnation | None
    master_epoch: MasterEpoch
    sync_state_set: frozenset[ReplicaId]
    set_epoch: SetEpoch
    settings: GroupSettings
    replicas: Mapping[ReplicaId, ReplicaView]
    is_unclean: bool = False
    """The present epoch began with an unclean election (its start record says so, R21)."""
    confirm_floor: int = 0
    """No candidate whose log ends below this physical offset may lead (R16)."""
    acting: ReplicaId | None = None
    acting_incarnation: Incarnation | None = None
    acting_leases_ms: int = 0
    """Above 0: leases that an acting master granted may still run for so long, and the next master
    begins by withholding all locks for that time (R36)."""
    is_write_wiped: bool = False
    """Clients may send nothing to this group: views show no queue of it to write to."""
    number: int = 0
    """Counts from 1 in the order in which groups were made, and never changes: a gateway's port for
    the group follows from it. 0: controllers of before say none."""

    def master_view(self) -> ReplicaView | None:
        return None if self.master is None else self.replicas.get(self.master)

    def serving_view(self) -> ReplicaView | None:
        """Whom readers ask: the master, or the acting one while there is none (R36)."""
        serving = self.acting if self.master is None else self.master
        return None if serving is None else self.replicas.get(serving)

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "master": self.master,
            "master_incarnation": self.master_incarnation,
            "master_epoch": self.master_epoch,
            "sync_state_set": sorted(self.sync_state_set),
            "set_epoch": self.set_epoch,
            "settings": self.settings.to_json(),
            "replicas": [self.replicas[key].to_json() for key in sorted(self.replicas)],
            "is_unclean": self.is_unclean,
            "confirm_floor": self.confirm_floor,
            "acting": self.acting,
            "acting_incarnation": self.acting_incarnation,
            "acting_leases_ms": self.acting_leases_ms,
            "is_write_wiped": self.is_write_wiped,
            "number": self.number,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "GroupView":
        replicas = [ReplicaView.from_json(replica) for replica in document["replicas"]]
        return cls(
            group=document["group"],
            master=document["master"],
            master_incarnation=document["master_incarnation"],
            master_epoch=document["master_epoch"],
            sync_state_set=frozenset(document["sync_state_set"]),
            set_epoch=document["set_epoch"],
            settings=GroupSettings.from_json(document["settings"]),
            replicas={replica.replica_id: replica for replica in replicas},
            is_unclean=document["is_unclean"],
            confirm_floor=document["confirm_floor"],
            acting=document.get("acting"),
            acting_incarnation=document.get("acting_incarnation"),
            acting_leases_ms=document.get("acting_leases_ms", 0),
            is_write_wiped=document.get("is_write_wiped", False),
            number=document.get("number", 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything published, at one version."""

    cluster_id: str
    version: int
    groups: Mapping[GroupName, GroupView] = field(default_factory=dict)
    topics: Mapping[TopicName, TopicView] = field(default_factory=dict)
    consumer_groups: Mapping[ConsumerGroupName, ConsumerGroupView] = field(default_factory=dict)
    controllers: tuple[str, ...] = ()
    """Client addresses ("host:port") of all controllers."""
    controllers_generation: int = 0
    """Of their member list; 0: they are what the controllers were configured with."""
    replaces: tuple[str, ...] = ()
    """Ids of clusters whose groups an operator has recovered here: who knew one of them takes this
    view instead (R18)."""
    topic_id_max: int = 0
    """No topic was ever given a higher id; 0 in views of before. Up to it, one that is not here is
    deleted (R35)."""
    namespace: str = ""
    """Default namespace of the user that is shown this view."""

    def limited(
        self, *, sees_topic: Callable[[str], bool], sees_group: Callable[[str], bool]
    ) -> "ClusterView":
        """With these topics and consumer groups and no others."""
        return replace(
            self,
            topics={name: topic for name, topic in self.topics.items() if sees_topic(name)},
            consumer_groups={
                name: group for name, group in self.consumer_groups.items() if sees_group(name)
            },
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **self.head_json(),
            "groups": [self.groups[name].to_json() for name in sorted(self.groups)],
            "topics": [self.topics[name].packed() for name in sorted(self.topics)],
            "consumer_groups": [
                self.consumer_groups[name].packed() for name in sorted(self.consumer_groups)
            ],
        }

    def head_json(self) -> dict[str, Any]:
        """As `to_json`, without the entries."""
        return {
            "cluster_id": self.cluster_id,
            "version": self.version,
            "controllers": list(self.controllers),
            "controllers_generation": self.controllers_generation,
            "replaces": list(self.replaces),
            "topic_id_max": self.topic_id_max,
            **({"namespace": self.namespace} if self.namespace else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ClusterView":
        """Raises BadRequestError on any other shape."""
        try:
            groups = [GroupView.from_json(group) for group in document["groups"]]
            topics = [TopicView.from_json(topic) for topic in document["topics"]]
            consumers = [
                ConsumerGroupView.from_json(group) for group in document.get("consumer_groups", ())
            ]
            return cls(
                cluster_id=document["cluster_id"],
                version=document["version"],
                groups=SortedMap({group.group: group for group in groups}),
                topics=SortedMap({topic.topic: topic for topic in topics}),
                consumer_groups=SortedMap({group.group: group for group in consumers}),
                controllers=tuple(document["controllers"]),
                controllers_generation=document.get("controllers_generation", 0),
                replaces=tuple(document.get("replaces", ())),
                topic_id_max=document.get("topic_id_max", 0),
                namespace=document.get("namespace", ""),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadRequestError(f"not a cluster view: {error!r}") from error
