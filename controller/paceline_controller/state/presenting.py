"""Pure: stores that the controllers cannot place show themselves, and wait for an operator (R18).

What is on record of them decides nothing by itself: recovery.py has what an operator decides.
"""

from msgspec import structs

from paceline.errors import BadRequestError
from paceline.types import GroupName
from paceline.wire.session_commands import PresentStore, PresentTopics
from paceline_controller.state.model import Group, Replica, State
from paceline_controller.state.operator_commands import ForgetStore
from paceline_controller.state.outcome import Outcome, RefusedError, numbers

STORES_MAX = 256
"""Stores on record that presented themselves; an operator decides on each."""
TOPICS_MAX = 600_000
"""Topics of all these together: some 25 MiB of a snapshot, and 120 MiB of memory."""
TOPIC_IDS_SKIPPED = 1_000_000
"""Above the highest id that a store presents: others of its cluster may know higher ones (R35)."""


def apply(
    state: State, command: PresentStore | PresentTopics | ForgetStore, outcome: Outcome
) -> None:
    """One of these commands. Raises RefusedError."""
    match command:
        case PresentStore():
            _present(state, command, outcome)
        case PresentTopics():
            _present_topics(state, command, outcome)
        case ForgetStore():
            _forget(state, command, outcome)


def may_present(state: State, cluster_id: str) -> bool:
    """Whether stores of that cluster, which is not this one, are heard at all.

    Only while this one leads nothing of its own, or once an operator has begun to take that one's
    groups over: a broker that dials the wrong cluster stays refused.
    """
    if cluster_id in state.replaced_clusters:
        return True
    if any(store.cluster_id == cluster_id for store in state.presented.values()):
        return True
    has_topics = any(not topic.is_system for topic in state.topics.values())
    return not has_topics and not any(group.master_epoch for group in state.groups.values())


def check_foreign(state: State, name: GroupName, store_id: str, *, cluster_id: str) -> None:
    """A store of another cluster registers: a recovered one may. Raises RefusedError."""
    group = state.groups.get(name)
    if group is not None and group.master_epoch > 0:
        replica = recovered_replica(group, store_id)
        if replica is not None and replica.recovered_from == cluster_id:
            return
        if cluster_id in state.replaced_clusters:
            raise _left_behind(group, store_id)
    elif may_present(state, cluster_id):
        raise needed(name)
    raise _other_cluster(state, cluster_id)


def recovered_replica(group: Group, store_id: str) -> Replica | None:
    """The replica that a store became when the group was recovered, under whatever id it comes."""
    for replica in group.replicas.values():
        if replica.store_id == store_id and replica.recovered_from is not None:
            return replica
    return None


def needed(group: GroupName) -> RefusedError:
    """Whose records these are nobody knows; the operator does."""
    return RefusedError(
        "RECOVERY_NEEDED",
        f"the store has records of broker group {group}, and the controllers know no such group: "
        "their folders are new, or it was forgotten. Put the controllers' old folders back, or "
        f"decide with `paceline cluster recover {group}`",
    )


def claim(state: State, group: Group) -> None:
    """If stores that may have its records wait for the operator, it begins with nobody else (R18).

    Who registers meanwhile gets no id that one of those had.
    """
    ids = [store.replica_id for store in state.presented.values() if store.group == group.group]
    group.is_claimed = bool(ids)
    group.next_replica_id = max([group.next_replica_id, *(number + 1 for number in ids)])


def stores_of(state: State, group: GroupName) -> list[PresentStore]:
    """Those that presented themselves, by id."""
    return [store for store in state.waiting_stores() if store.group == group]


def _present(state: State, command: PresentStore, outcome: Outcome) -> None:
    """Put a store on record as one that waits. It stays refused: nothing is decided by it."""
    if command.cluster_id != state.cluster_id and not may_present(state, command.cluster_id):
        raise _other_cluster(state, command.cluster_id)
    group = state.groups.get(command.group)
    if group is not None and group.master_epoch > 0:
        is_own = command.cluster_id == state.cluster_id
        if is_own or recovered_replica(group, command.store_id) is not None:
            raise RefusedError(
                "GROUP_KNOWN", f"group {group.group} is known: register", **numbers(group)
            )
        raise _left_behind(group, command.store_id)
    known = state.presented.get(command.store_id)
    if known is None or not _is_again(known, command):
        _check_presentation(state, command, known)
        state.presented[command.store_id] = command
        # A deletion of a new topic must never name one that an old log knows by the same id (R35).
        skipped = command.topic_id_max + TOPIC_IDS_SKIPPED
        if skipped > state.next_topic_id:
            state.next_topic_id = skipped
            outcome.publish_head()
        if group is not None:
            claim(state, group)
        outcome.note("store_presented", group=command.group, store_id=command.store_id)
    _wait(state.presented[command.store_id], outcome)


def _present_topics(state: State, command: PresentTopics, outcome: Outcome) -> None:
    """More topics of a store that waits, each part after those before it."""
    known = state.presented.get(command.store_id)
    if known is None or known.incarnation != command.incarnation:
        raise RefusedError("STORE_UNKNOWN", f"no such start of store {command.store_id} waits")
    stop = command.first + len(command.topics)
    if command.first > len(known.topics) or stop > known.topics_count:
        raise RefusedError(
            "TOPICS_MISSING",
            f"store {command.store_id} has shown {len(known.topics)} of {known.topics_count}"
            f" topics, and {command.first} to {stop} do not follow",
        )
    again = known.topics[command.first : stop]
    if command.topics[: len(again)] != again:
        raise _twice(known)
    new = command.topics[len(again) :]
    shown = structs.replace(
        known,
        topics=known.topics + new,
        topics_to_come=known.topics_to_come - len(new),
    )
    try:
        shown.check()
    except BadRequestError as error:
        raise RefusedError("TOPICS_CONTRADICT", error.message) from error
    state.presented[command.store_id] = shown
    _wait(shown, outcome)


def _wait(store: PresentStore, outcome: Outcome) -> None:
    """Answer its broker that the operator has yet to decide."""
    shown = len(store.topics)
    outcome.refuse("RECOVERY_NEEDED", needed(store.group).detail, topics_shown=shown)


def _forget(state: State, command: ForgetStore, outcome: Outcome) -> None:
    """If the last of a group's stores goes, empty ones may begin the group."""
    store = state.presented.pop(command.store_id, None)
    if store is None:
        raise RefusedError("STORE_UNKNOWN", f"no store {command.store_id} presented itself")
    group = state.groups.get(store.group)
    if group is not None:
        claim(state, group)
    outcome.note("store_forgotten", group=store.group, store_id=store.store_id)


def _check_presentation(state: State, command: PresentStore, known: PresentStore | None) -> None:
    """Raises RefusedError."""
    if known is not None and command.incarnation <= known.incarnation:
        # One start tells one thing, and the younger start tells the truth (R9).
        raise _twice(known)
    others = [store for name, store in state.presented.items() if name != command.store_id]
    if len(others) >= STORES_MAX:
        raise RefusedError("TOO_MANY_STORES", f"{STORES_MAX} stores wait for an operator already")
    if sum(store.topics_count for store in [*others, command]) > TOPICS_MAX:
        raise RefusedError(
            "TOO_MANY_TOPICS",
            f"the stores that wait would have more than {TOPICS_MAX} topics: recover or forget"
            " others first",
        )


def _is_again(known: PresentStore, command: PresentStore) -> bool:
    """Whether the command says what is on record; more topics may have followed."""
    first = structs.replace(
        known,
        topics=known.topics[: len(command.topics)],
        topics_to_come=known.topics_count - len(command.topics),
    )
    return first == command


def _twice(known: PresentStore) -> RefusedError:
    return RefusedError(
        "STORE_TWICE",
        f"store {known.store_id} presented itself in incarnation {known.incarnation}, with "
        "other content: a copy of the folder runs, or an old one was put back",
    )


def _other_cluster(state: State, cluster_id: str) -> RefusedError:
    return RefusedError(
        "OTHER_CLUSTER", f"the store belongs to cluster {cluster_id}, this is {state.cluster_id}"
    )


def _left_behind(group: Group, store_id: str) -> RefusedError:
    return RefusedError(
        "STORE_UNKNOWN",
        f"store {store_id} has records, but {group.group} was begun or recovered without it: move "
        "its folder away and start it empty",
        **numbers(group),
    )
