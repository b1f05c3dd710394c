"""Ways to spoil a good history in one place, each with the properties of which one must notice.

Each takes the history of a `Sample` and a number that chooses the place, and returns the spoilt
one, or None if there is nothing of the kind to spoil.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from paceline_chaos.history.model import (
    Commit,
    CreateTopic,
    Decision,
    DescribeTopic,
    Entry,
    Event,
    History,
    Lock,
    Outcome,
    Probe,
    Pull,
    QueryOffset,
    QueryRange,
    ReplicaDump,
    Seen,
    Send,
    StoredBatch,
)

EventT = TypeVar("EventT", bound=Event)
Spoil = Callable[[History, int], History | None]


class Corruption(NamedTuple):
    """One way to spoil."""

    spoil: Spoil
    caught_by: frozenset[str]


CORRUPTIONS: dict[str, Corruption] = {}


def caught_by(*properties: str) -> Callable[[Spoil], Spoil]:
    """Register a corruption; one of the properties at least must be violated."""

    def register(spoil: Spoil) -> Spoil:
        CORRUPTIONS[spoil.__name__] = Corruption(spoil, frozenset(properties))
        return spoil

    return register


# -- helpers --------------------------------------------------------------------------------------


def _chosen(
    history: History, place: int, kind: type[EventT], fits: Callable[[EventT], object]
) -> EventT | None:
    found = [entry for entry in history.entries if isinstance(entry, kind) and fits(entry)]
    return found[place % len(found)] if found else None


def _with(history: History, *changed: Event) -> History:
    entries = list(history.entries)
    for entry in changed:
        entries[entry.number] = cast(Entry, entry)
    return History(world=history.world, entries=entries)


def _changed(entry: EventT | None, history: History, **members: Any) -> History | None:
    if entry is None:
        return None
    changed = replace(cast(Any, entry), **members)
    return _with(history, changed)


def _acknowledged(send: Send) -> bool:
    return send.outcome is Outcome.OK and send.queue is not None and (send.offset or 0) >= 0


def _dumps(history: History) -> list[ReplicaDump]:
    return [entry for entry in history.entries if isinstance(entry, ReplicaDump)]


def _in_all_logs(
    history: History, change: Callable[[tuple[StoredBatch, ...]], Sequence[StoredBatch]]
) -> History:
    dumps = _dumps(history)
    batches = tuple(change(dumps[0].batches))
    return _with(history, *(replace(dump, batches=batches) for dump in dumps))


def _batch_of(history: History, send: Send) -> int:
    """Index of the batch that holds an acknowledged message."""
    for index, batch in enumerate(_dumps(history)[0].batches):
        if batch.queue == send.queue and any(value == send.value for value, _ in batch.messages):
            return index
    raise AssertionError(send.value)


# -- messages -------------------------------------------------------------------------------------


@caught_by("S1")
def message_vanishes(history: History, place: int) -> History | None:
    """From all logs; what follows it in its queue moves up, as if it had never been there."""
    send = _chosen(history, place, Send, _acknowledged)
    if send is None:
        return None

    def without(batches: tuple[StoredBatch, ...]) -> list[StoredBatch]:
        kept = []
        index = _batch_of(history, send)
        gone = len(batches[index].messages)
        for number, batch in enumerate(batches):
            if number == index:
                batch = replace(batch, messages=(), queue=None)
            elif number > index and batch.queue == send.queue:
                batch = replace(batch, base_offset=batch.base_offset - gone)
            kept.append(batch)
        return kept

    return _in_all_logs(history, without)


@caught_by("S2")
def acknowledged_offsets_are_swapped(history: History, place: int) -> History | None:
    first = _chosen(history, place, Send, _acknowledged)
    second = _chosen(
        history,
        place + 1,
        Send,
        lambda send: _acknowledged(send) and first is not None and send.queue == first.queue,
    )
    if first is None or second is None or first is second:
        return None
    return _with(
        history, replace(first, offset=second.offset), replace(second, offset=first.offset)
    )


@caught_by("S3")
def body_that_was_read_is_another(history: History, place: int) -> History | None:
    pull = _chosen(history, place, Pull, lambda pull: pull.messages)
    if pull is None:
        return None
    first, *rest = pull.messages
    return _with(history, replace(pull, messages=(first._replace(crc=first.crc ^ 1), *rest)))


@caught_by("S3")
def body_that_is_stored_is_another(history: History, place: int) -> History | None:
    send = _chosen(history, place, Send, _acknowledged)
    if send is None:
        return None

    def flip(batches: tuple[StoredBatch, ...]) -> list[StoredBatch]:
        index = _batch_of(history, send)
        rows = tuple((value, crc ^ 1) for value, crc in batches[index].messages)
        return [*batches[:index], replace(batches[index], messages=rows), *batches[index + 1 :]]

    return _in_all_logs(history, flip)


@caught_by("S3")
def message_of_nobody_is_read(history: History, place: int) -> History | None:
    pull = _chosen(history, place, Pull, lambda pull: pull.messages)
    if pull is None:
        return None
    last = pull.messages[-1]
    rows = (*pull.messages[:-1], Seen(last.offset, "nobody-1", last.crc))
    return _with(history, replace(pull, messages=rows))


@caught_by("S4")
def stored_send_is_said_to_have_failed(history: History, place: int) -> History | None:
    send = _chosen(history, place, Send, _acknowledged)
    return _changed(
        send, history, outcome=Outcome.FAIL, error="NOT_MASTER", queue=None, offset=None
    )


@caught_by("S5")
def message_is_stored_twice(history: History, place: int) -> History | None:
    """At the end of its queue, in all logs."""
    send = _chosen(history, place, Send, _acknowledged)
    if send is None:
        return None

    def double(batches: tuple[StoredBatch, ...]) -> list[StoredBatch]:
        batch = batches[_batch_of(history, send)]
        ends = [b.base_offset + len(b.messages) for b in batches if b.queue == send.queue]
        last = batches[-1]
        copy = replace(
            batch, position=last.position + last.size, base_offset=max(ends), epoch=last.epoch
        )
        return [*batches, copy]

    return _in_all_logs(history, double)


@caught_by("S6")
def batch_is_missing_in_the_middle(history: History, place: int) -> History | None:
    dump = _dumps(history)[place % 3]
    index = place % max(1, len(dump.batches) - 1)
    batches = (*dump.batches[:index], *dump.batches[index + 1 :])
    return _with(history, replace(dump, batches=batches))


# -- order ----------------------------------------------------------------------------------------


@caught_by("S7")
def acknowledged_before_what_is_below_it(history: History, place: int) -> History | None:
    """Its operation moves to a time before all others of its queue."""
    send = _chosen(history, place, Send, lambda s: _acknowledged(s) and (s.offset or 0) > 30)
    return _changed(send, history, asked_us=1, answered_us=2)


@caught_by("S8")
def session_overtakes_itself(history: History, place: int) -> History | None:
    """Two overlapping sends of a session trade places in the order of asking."""
    first = _chosen(history, place, Send, _acknowledged)
    second = _chosen(
        history,
        place,
        Send,
        lambda send: (
            _acknowledged(send)
            and first is not None
            and send.session == first.session
            and send.queue == first.queue
            and first.asked_us < send.asked_us < first.answered_us
        ),
    )
    if first is None or second is None:
        return None
    return _with(
        history,
        replace(first, asked_us=second.asked_us),
        replace(second, asked_us=first.asked_us),
    )


@caught_by("S9")
def reader_misses_a_message(history: History, place: int) -> History | None:
    pull = _chosen(history, place, Pull, lambda pull: len(pull.messages) > 2)
    if pull is None:
        return None
    middle = 1 + place % (len(pull.messages) - 2)
    rows = (*pull.messages[:middle], *pull.messages[middle + 1 :])
    return _with(history, replace(pull, messages=rows))


# -- readers --------------------------------------------------------------------------------------


@caught_by("S10")
def unconfirmed_message_was_read(history: History, place: int) -> History | None:
    """A send of unknown outcome that is in no log was seen at the end of a queue."""
    stored = {value for batch in _dumps(history)[0].batches for value, _ in batch.messages}
    send = _chosen(
        history,
        place,
        Send,
        lambda send: send.outcome is Outcome.UNKNOWN and send.value not in stored,
    )
    pull = _chosen(history, -1, Pull, lambda pull: pull.client == "drain")
    if send is None or pull is None:
        return None
    offset = pull.messages[-1].offset + 1 if pull.messages else pull.offset
    return _with(
        history, replace(pull, messages=(*pull.messages, Seen(offset, send.value, send.crc)))
    )


@caught_by("S19")
def end_is_old(history: History, place: int) -> History | None:
    asked = _chosen(history, place, QueryRange, lambda query: (query.end or 0) > 40)
    return _changed(asked, history, end=1)


@caught_by("S20")
def master_shows_an_old_end(history: History, place: int) -> History | None:
    """Near the end of the run all acknowledgements are of the last master."""
    probes = [entry for entry in history.entries if isinstance(entry, Probe)]
    master = next(probe.node for probe in reversed(probes) if probe.role == "master")
    pull = _chosen(
        history,
        place,
        Pull,
        lambda pull: pull.client == "drain" and pull.node == master and (pull.end or 0) > 0,
    )
    return _changed(pull, history, end=0, messages=())


@caught_by("INV-8")
def replica_serves_above_its_confirm(history: History, place: int) -> History | None:
    """The probe after a pull shows that the node had confirmed nothing yet."""
    pull = _chosen(
        history,
        place,
        Pull,
        lambda pull: pull.messages and _probe_after(history, pull) is not None,
    )
    if pull is None:
        return None
    return _changed(_probe_after(history, pull), history, confirm=0)


def _probe_after(history: History, pull: Pull) -> Probe | None:
    mine = [
        entry for entry in history.entries if isinstance(entry, Probe) and entry.node == pull.node
    ]
    if not any(probe.at_us <= pull.asked_us for probe in mine):
        return None
    return next((probe for probe in mine if probe.at_us > pull.answered_us), None)


# -- replicas and masters -------------------------------------------------------------------------


def _late_replica(probe: Probe) -> bool:
    return probe.role == "replica" and probe.end > 10_000


@caught_by("S16")
def member_has_not_flushed(history: History, place: int) -> History | None:
    return _changed(_chosen(history, place, Probe, _late_replica), history, flushed=0, confirm=0)


@caught_by("S11")
def confirm_falls(history: History, place: int) -> History | None:
    """To 1: a node has confirmed its start record at least."""
    probe = _chosen(history, place, Probe, lambda one: one.role == "master" and one.end > 10_000)
    return _changed(probe, history, confirm=1)


@caught_by("S12")
def byte_differs_below_confirm(history: History, place: int) -> History | None:
    dump = _dumps(history)[place % 3]
    index = place % len(dump.batches)
    batch = replace(dump.batches[index], crc=dump.batches[index].crc ^ 1)
    batches = (*dump.batches[:index], batch, *dump.batches[index + 1 :])
    return _with(history, replace(dump, batches=batches))


@caught_by("S13")
def second_master_in_an_epoch(history: History, place: int) -> History | None:
    return _changed(_chosen(history, place, Probe, _late_replica), history, role="master")


@caught_by("R1")
def master_of_two_lives(history: History, place: int) -> History | None:
    probe = _chosen(history, place, Probe, lambda one: one.role == "master")
    return _changed(probe, history, incarnation=2)


@caught_by("S13", "S14")
def acknowledged_in_an_old_epoch(history: History, place: int) -> History | None:
    send = _chosen(history, place, Send, lambda send: _acknowledged(send) and (send.epoch or 0) > 1)
    return _changed(send, history, epoch=1)


@caught_by("S14")
def node_forgets_its_epoch(history: History, place: int) -> History | None:
    probe = _chosen(history, place, Probe, lambda one: one.role == "replica" and one.epoch > 1)
    return _changed(probe, history, epoch=0)


@caught_by("S15")
def stranger_is_elected(history: History, place: int) -> History | None:
    return _ruled(history, place, "master_elected", lambda m: m["reason"] == "dead", master=9)


@caught_by("R8")
def set_of_one(history: History, place: int) -> History | None:
    return _ruled(
        history,
        place,
        "set_changed",
        lambda members: len(members["sync_state_set"]) == 2,
        sync_state_set=[1],
    )


@caught_by("S32")
def controllers_differ(history: History, place: int) -> History | None:
    decision = _chosen(history, place, Decision, lambda one: one.node == "ctl-2")
    if decision is None:
        return None
    return _with(history, replace(decision, members={**decision.members, "extra": 1}))


def _ruled(
    history: History, place: int, kind: str, fits: Callable[[Any], bool], **members: Any
) -> History | None:
    """On all controllers."""
    one = _chosen(history, place, Decision, lambda one: one.kind == kind and fits(one.members))
    if one is None:
        return None
    same = [
        replace(entry, members={**entry.members, **members})
        for entry in history.entries
        if isinstance(entry, Decision) and entry.index == one.index
    ]
    return _with(history, *same)


# -- metadata and groups --------------------------------------------------------------------------


@caught_by("S18")
def topic_is_gone_again(history: History, place: int) -> History | None:
    made = {
        entry.topic
        for entry in history.entries
        if isinstance(entry, CreateTopic) and entry.outcome is Outcome.OK
    }
    last = _chosen(history, -1, DescribeTopic, lambda one: one.topic in made and one.topic_id)
    return _changed(last, history, topic_id=None, asked_us=10**9, answered_us=10**9 + 1)


@caught_by("S21")
def group_commits_too_far(history: History, place: int) -> History | None:
    commit = _chosen(history, place, Commit, lambda one: one.consumer_group == "push")
    return _changed(commit, history, offset=0 if commit is None else commit.offset + 1)


@caught_by("S22")
def committed_offset_is_older(history: History, place: int) -> History | None:
    query = _chosen(history, place, QueryOffset, lambda query: (query.offset or 0) > 0)
    return _changed(query, history, offset=None)


@caught_by("INV-11")
def token_is_older(history: History, place: int) -> History | None:
    locks = [entry for entry in history.entries if isinstance(entry, Lock)]
    lock = _chosen(history, place, Lock, lambda lock: lock is not locks[0])
    return _changed(lock, history, token=1)


@caught_by("S26")
def lock_is_given_twice(history: History, place: int) -> History | None:
    """Another member got it at the same time."""
    lock = _chosen(history, place, Lock, lambda lock: True)
    if lock is None or lock.token is None:
        return None
    number = len(history.entries)
    other = replace(lock, number=number, member="m9", client="m9", token=lock.token + 1)
    entries = [*history.entries, other]
    return History(world=history.world, entries=entries)
