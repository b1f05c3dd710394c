"""Pure: groups that nobody has on record but their own stores are recovered by order (R18).

All controllers' folders are lost, or a group was forgotten: the brokers' stores are there, and the
state machine knows of none of them. They present themselves (presenting.py). An operator names the
one whose log is the group's; by that the group is on record with this one store as its sync state
set, and all others that presented themselves come back as replicas that have yet to catch up.
Decisions and their reasons: docs/adr/0015-recovering-groups.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.types import (
    ConsumerGroupName,
    Incarnation,
    MasterEpoch,
    ReplicaId,
    SetEpoch,
    TopicId,
    TopicName,
)
from paceline.wire.calls.request import U32_MAX
from paceline.wire.cluster import GroupSettings
from paceline.wire.commands import MEMBERS_MAX
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.names import RETRY_PREFIX, is_system_topic
from paceline.wire.session_commands import PRESENTED_TOPICS_MAX, PresentStore
from paceline.wire.topics import MIXED
from paceline_controller.state.model import Group, Replica, State, Topic
from paceline_controller.state.operator_commands import RecoverGroup
from paceline_controller.state.outcome import Outcome, RefusedError, numbers
from paceline_controller.state.presenting import stores_of

EPOCHS_SKIPPED = 1_000
"""Above the highest epoch that a store presents: one that is missing may have led later (R1)."""
VERSIONS_SKIPPED = 2**40
"""Views of the cluster that is replaced had lower versions, so whoever waits for a higher one is
answered (R38)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What it means to recover a group from one of its stores."""

    refusals: tuple[tuple[str, str], ...]
    """(reason, sentence) for each why it cannot be, whatever an operator accepts."""
    losses: tuple[str, ...]
    """Why records may be lost by it; none: this log has all that was ever confirmed."""


def assess(state: State, chosen: PresentStore, *, settings: GroupSettings) -> Assessment:
    """What recovering `chosen`'s group from it would refuse, and what it could lose."""
    stores = stores_of(state, chosen.group)
    return Assessment(
        refusals=tuple(_refusals(state, chosen, stores)),
        losses=tuple(_losses(chosen, stores, settings)),
    )


def recover(state: State, command: RecoverGroup, outcome: Outcome) -> None:
    """The operator's word. Doing it twice is no harm."""
    group = state.groups.get(command.group)
    if group is not None and group.master_epoch > 0:
        if group.recovered_store != command.store_id:
            raise RefusedError(
                "GROUP_KNOWN",
                f"broker group {group.group} is on record, in master epoch {group.master_epoch}: "
                "only a group that the controllers do not know can be recovered",
                **numbers(group),
            )
        outcome.result.update(_result(group))
        return
    chosen = state.presented.get(command.store_id)
    if chosen is None or chosen.group != command.group:
        raise RefusedError(
            "STORE_UNKNOWN",
            f"no store {command.store_id} of broker group {command.group} presented itself",
        )
    settings = command.defaults if group is None else group.settings
    found = assess(state, chosen, settings=settings)
    if found.refusals:
        raise RefusedError(*found.refusals[0])
    if found.losses and not command.gives_up_missing:
        raise RefusedError("MAY_LOSE_RECORDS", f"{'; '.join(found.losses)}: nothing was changed")
    _put_on_record(state, command, chosen, outcome, is_unclean=bool(found.losses))


# -- judging --------------------------------------------------------------------------------------


def _refusals(
    state: State, chosen: PresentStore, stores: Sequence[PresentStore]
) -> Iterator[tuple[str, str]]:
    name = f"store {chosen.store_id}"
    if chosen.is_damaged:
        yield "STORE_DAMAGED", f"{name} lacks a part of its log or state: choose another one"
    if chosen.topics_to_come:
        yield (
            "TOPICS_MISSING",
            f"{name} has shown {len(chosen.topics)} of {chosen.topics_count} topics so far: try"
            " again in a moment",
        )
    if chosen.is_learner:
        yield "LEARNER", f"{name} is a learner's, which never leads: choose another one"
    yield from _contradictions(state, chosen, stores)
    yield from _topic_contradictions(state, chosen)
    group = state.groups.get(chosen.group)
    present_count = 0 if group is None else len(group.replicas)
    if present_count + len(stores) > MEMBERS_MAX:
        yield "TOO_MANY_REPLICAS", f"a group has at most {MEMBERS_MAX} replicas"
    if _next_epoch(stores) > U32_MAX - EPOCHS_SKIPPED:
        yield "EPOCH_EXHAUSTED", "the master epoch has reached its last value"


def _contradictions(
    state: State, chosen: PresentStore, stores: Sequence[PresentStore]
) -> Iterator[tuple[str, str]]:
    """Stores that cannot all be of this group; the operator forgets those that are not."""
    replaced = state.replaced_clusters
    if chosen.cluster_id not in (state.cluster_id, *(replaced or [chosen.cluster_id])):
        yield (
            "OTHER_CLUSTER",
            f"store {chosen.store_id} is of cluster {chosen.cluster_id}, and this cluster has "
            f"taken over {', '.join(replaced)}",
        )
    for store in stores:
        if store.store_id == chosen.store_id:
            continue
        pair = f"stores {chosen.store_id} and {store.store_id}"
        if store.cluster_id != chosen.cluster_id:
            yield (
                "STORES_CONTRADICT",
                f"{pair} are of clusters {chosen.cluster_id} and {store.cluster_id}: forget one",
            )
        elif store.replica_id == chosen.replica_id:
            yield (
                "STORES_CONTRADICT",
                f"{pair} both were replica {store.replica_id}: forget the one that is outdated",
            )


def _topic_contradictions(state: State, chosen: PresentStore) -> Iterator[tuple[str, str]]:
    names = {topic.topic_id: topic.topic for topic in state.topics.values()}
    count = len(state.topics)
    for topic in chosen.topics:
        known = state.topics.get(TopicName(topic.topic))
        count += known is None
        found = names.get(TopicId(topic.topic_id), topic.topic)
        if found != topic.topic or (known is not None and known.topic_id != topic.topic_id):
            yield (
                "TOPIC_CONTRADICTS",
                f"topic {topic.topic} has id {topic.topic_id} in the store, and this cluster has "
                f"made another one of that name or id since: delete topic {found} first",
            )
        elif known is not None and chosen.group in known.read_queues and not known.is_system:
            yield "TOPIC_CONTRADICTS", f"topic {topic.topic} has queues in {chosen.group} already"
    if count > PRESENTED_TOPICS_MAX:
        yield "TOO_MANY_TOPICS", f"there would be more than {PRESENTED_TOPICS_MAX} topics"


def _losses(
    chosen: PresentStore, stores: Sequence[PresentStore], settings: GroupSettings
) -> Iterator[str]:
    """Why `chosen` may lack what was confirmed: a member that has more is elsewhere, or cut it.

    Of logs that part in no epoch, the one with the higher last epoch, then the longer one, holds
    all of the other. So the best of *all* stores of a group holds whatever was confirmed.
    """
    count = sum(not store.is_learner for store in stores)
    if count < settings.total_replicas:
        yield (
            f"{count} of {settings.total_replicas} replicas' stores presented themselves, and one "
            "that is missing may hold more"
        )
    else:
        yield from _gaps(stores)
    for store in stores:
        if store.is_damaged:
            yield f"store {store.store_id} is damaged, and what it lacks may be nowhere else"
        elif _rank(store) > _rank(chosen):
            yield (
                f"store {store.store_id} holds more: its log ends at {store.end} in epoch "
                f"{store.last_epoch}, the chosen one's at {chosen.end} in epoch {chosen.last_epoch}"
            )
        if store.is_suspect and not store.is_damaged:
            yield f"store {store.store_id} cut its log when it started (R23)"
        if store.is_unclean and settings.durability == "memory":
            yield f"store {store.store_id} lost its power, with memory durability (R13)"


def _gaps(stores: Sequence[PresentStore]) -> Iterator[str]:
    """There may have been more of them than these controllers' settings say."""
    known = {store.replica_id for store in stores}
    missing = [number for number in range(1, max(known)) if number not in known][:MEMBERS_MAX]
    if missing:
        yield (
            f"replica {', '.join(map(str, missing))} of the group did not present itself, and may "
            "hold more unless it was cleaned before"
        )


def _rank(store: PresentStore) -> tuple[int, int]:
    return store.last_epoch, store.end


# -- the recovery itself --------------------------------------------------------------------------


def _put_on_record(
    state: State,
    command: RecoverGroup,
    chosen: PresentStore,
    outcome: Outcome,
    *,
    is_unclean: bool,
) -> None:
    stores = stores_of(state, command.group)
    group = state.groups.get(command.group)
    if group is None:
        group = state.groups[command.group] = state.new_group(command.group, command.defaults)
    ids = _replica_ids(group, stores, is_own=chosen.cluster_id == state.cluster_id)
    for store in stores:
        replica_id = ids[store.store_id]
        group.replicas[replica_id] = _replica(
            store, replica_id=replica_id, view_version=state.version + 1
        )
        del state.presented[store.store_id]
    group.master_epoch = _next_epoch(stores)
    group.sync_state_set = {ids[chosen.store_id]}
    group.set_epoch = SetEpoch(group.set_epoch + 1)
    group.is_narrowed = True  # nobody stands for the one (R23)
    group.confirm_floor = chosen.end  # what it has shown, it must have when it leads (R16)
    group.acting_leases_ms = _leases_ms(stores)
    group.is_claimed = False
    group.is_unclean_due = is_unclean
    group.recovered_store = chosen.store_id
    _take_topics(state, chosen)
    if chosen.cluster_id not in (state.cluster_id, *state.replaced_clusters):
        state.replaced_clusters.append(chosen.cluster_id)
        state.version += VERSIONS_SKIPPED
        for replica in group.replicas.values():
            replica.view_version = state.version + 1
    outcome.record(
        group,
        "group_recovered",
        store=chosen.store_id,
        replica=ids[chosen.store_id],
        replicas=sorted(ids.values()),
        from_cluster=chosen.cluster_id,
        master_epoch=group.master_epoch,
        set_epoch=group.set_epoch,
        sync_state_set=sorted(group.sync_state_set),
        end=chosen.end,
        is_unclean=is_unclean,
    )
    outcome.publish_all()
    outcome.result.update(_result(group))


def _result(group: Group) -> dict[str, object]:
    chosen = (
        replica.replica_id
        for replica in group.replicas.values()
        if replica.store_id == group.recovered_store
    )
    return {
        "replica_id": next(chosen, None),
        "replicas": sorted(group.replicas),
        "is_unclean": group.is_unclean_due or group.unclean_elections_count > 0,
        **numbers(group),
    }


def _next_epoch(stores: Sequence[PresentStore]) -> MasterEpoch:
    """No epoch that one of its masters may have begun is begun again (R1, INV-4)."""
    highest = max(max(store.epoch, store.last_epoch) for store in stores)
    return MasterEpoch(highest + EPOCHS_SKIPPED)


def _leases_ms(stores: Sequence[PresentStore]) -> int:
    """An epoch that no log knows of may have been that of an acting master, whose locks may still
    be held: the next master grants none until they have run out (R36)."""
    is_known = max(store.epoch for store in stores) <= max(store.last_epoch for store in stores)
    return 0 if is_known else max(store.leases_ms for store in stores)


def _replica_ids(
    group: Group, stores: Sequence[PresentStore], *, is_own: bool
) -> Mapping[str, ReplicaId]:
    """By store id: what it was called before, or a new id where another one has that here.

    Stores of this very cluster that are missing may come back under their old ids: those are not
    given to others. Stores of another cluster are only ever known by their store ids.
    """
    highest = max(store.replica_id for store in stores)
    fresh = max(group.next_replica_id, highest + 1 + (MEMBERS_MAX if is_own else 0))
    taken = set(group.replicas)
    ids: dict[str, ReplicaId] = {}
    for store in stores:
        replica_id = store.replica_id
        if replica_id in taken:
            replica_id, fresh = ReplicaId(fresh), fresh + 1
        taken.add(replica_id)
        ids[store.store_id] = replica_id
    group.next_replica_id = fresh
    return ids


def _replica(store: PresentStore, *, replica_id: ReplicaId, view_version: int) -> Replica:
    return Replica(
        replica_id=replica_id,
        store_id=store.store_id,
        # This very start of it has yet to register (R9).
        incarnation=Incarnation(store.incarnation - 1),
        client_address=store.client_address,
        replication_address=store.replication_address,
        is_learner=store.is_learner,
        is_empty=store.end == 0,
        is_suspect=store.is_suspect or store.is_damaged,
        is_lost=False,
        end=store.end,
        view_version=view_version,
        recovered_from=store.cluster_id,
    )


def _take_topics(state: State, chosen: PresentStore) -> None:
    """As the chosen log has them: one without its topic would be deleted from it (R35)."""
    for presented in chosen.topics:
        name = TopicName(presented.topic)
        topic = state.topics.get(name)
        if topic is None:
            topic = Topic(
                topic=name,
                topic_id=TopicId(presented.topic_id),
                read_queues={},
                write_queues={},
                # The log does not say which it was: nothing that it took is refused.
                message_type=MIXED,
                is_system=is_system_topic(name),
            )
            state.add_topic(topic)
        topic.read_queues[chosen.group] = topic.write_queues[chosen.group] = presented.queues
        _take_consumer_group(state, name)


def _take_consumer_group(state: State, topic: TopicName) -> None:
    """One with a retry topic, with the usual settings: the controllers alone knew others."""
    group = ConsumerGroupName(topic.removeprefix(RETRY_PREFIX))
    if topic.startswith(RETRY_PREFIX) and group not in state.consumer_groups:
        state.consumer_groups[group] = ConsumerGroupView(group=group)
