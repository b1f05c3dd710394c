"""Pure: what became of each message: S1 to S6, and R37.

Notation. A = acknowledged sends (m, q, o); F = sends that failed for certain; H(q) = the truth's
log of queue q, offset -> message; an observation (q, o, m) is an acknowledgement, a message of a
pull or of a delivery, or a message of any replica's log below that replica's confirm, and in the
truth at all. A send of unknown outcome may have been stored, now or later, once if its producer is
idempotent; so it is in neither A nor F.

Lossy groups (an unclean election, ordered) are left out of S2 and S5; S1 leaves out what was asked
for before that. Acknowledgements that said
`is_confirmed = false` (R37) are not in A, here and in every other check; how many messages of them
are lost is counted.
"""

from collections.abc import Iterator
from itertools import chain, islice

from paceline.wire.names import TRANS_CHECK_MAX_TIME_TOPIC
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import LISTED_MAX, Findings
from paceline_chaos.history.model import (
    ALL_ACK,
    Deliver,
    Outcome,
    Pull,
    Queue,
    ReplicaDump,
    Seen,
    Send,
)


def nothing_acknowledged_is_lost(evidence: Evidence) -> Findings:
    """S1: for all (m, q, o) in A with o >= start of H(q): H(q)(o) = m. If the acknowledgement did
    not know o (a late duplicate) or q (a gateway names none): m is somewhere in the topic's logs,
    at o if that was named, unless something was deleted there. If the application chose a queue, it
    is that one. A group of which no log is whole in the end has lost all of A, unless faults have
    damaged the copies of all its members. O(n)."""
    found = Findings("S1")
    _a_log_is_left(evidence, found)
    for send in evidence.acks:
        assert send.queue is not None
        assert send.offset is not None
        if not evidence.has_truth(send.queue) or not evidence.binding(send):
            continue  # without a truth: see above
        found.judged += 1
        if send.wanted not in (None, send.queue):
            found.violate(f"{send.value} was for {send.wanted}, and is in {send.queue}", send)
        log = evidence.logs.get(send.queue)
        stored = None if log is None else log.value_at(send.offset)
        if stored != send.value and send.offset >= evidence.start_of(send.queue):
            at = f"{_name(send.queue)} at {send.offset}"
            instead = "nothing is there" if stored is None else f"{stored} is there"
            found.violate(
                f"{send.value} was acknowledged in {at}; in the end {instead}",
                send,
                evidence.truth[send.queue.group],
            )
    _unplaced_are_stored(evidence, found)
    _count_unconfirmed(evidence, found)
    return found


def _a_log_is_left(evidence: Evidence, found: Findings) -> None:
    if not evidence.is_over:
        return
    lost: dict[str, list[Send]] = {}
    for queue, sends in evidence.acks_by_queue.items():
        if not evidence.has_truth(queue):
            lost.setdefault(queue.group, []).extend(filter(evidence.binding, sends))
    for group, sends in lost.items():
        found.judged += len(sends)
        if sends and not evidence.allowances.are_all_damaged(group):
            found.violate(
                f"{len(sends)} messages were acknowledged in {group}, and in the end no log of it "
                f"is whole",
                *sends[:3],
                *evidence.dumps_of.get(group, ()),
            )


def answers_wait_for_confirm(evidence: Evidence) -> Findings:
    """R37: an answer that is not confirmed is given only where the settings allow it: the world
    says `all_ack_in_sync_state_set = false`, or a setting did so before the answer. O(n)."""
    found = Findings("R37")
    is_allowed = not evidence.world.get(ALL_ACK, True)
    switched_us: dict[str, int] = {}
    for ruling in evidence.rulings:
        settings = ruling.members.get("settings") if ruling.kind == "settings_set" else None
        if settings and not settings.get(ALL_ACK, True):
            switched_us.setdefault(ruling.group, ruling.at_us - evidence.slack_us)
    for send in evidence.answered:
        assert send.queue is not None
        found.judged += 1
        if send.is_confirmed or is_allowed:
            continue
        since_us = switched_us.get(send.queue.group)
        if since_us is None or send.answered_us < since_us:
            found.violate(
                f"{send.value} was answered before it was confirmed, and all members were to "
                f"acknowledge",
                send,
            )
    return found


def _count_unconfirmed(evidence: Evidence, found: Findings) -> None:
    """What R37 gives up: it is allowed, and it is told."""
    for send in evidence.answered:
        if send.is_confirmed:
            continue
        found.counters["acknowledged.unconfirmed"] += 1
        assert send.queue is not None
        assert send.offset is not None
        log = evidence.logs.get(send.queue)
        stored = None if log is None else log.value_at(send.offset)
        if evidence.has_truth(send.queue) and stored != send.value:
            found.counters["lost.unconfirmed"] += send.offset >= evidence.start_of(send.queue)


def _unplaced_are_stored(evidence: Evidence, found: Findings) -> None:
    unplaced = [
        send
        for send in evidence.sends
        if send.outcome is Outcome.OK
        and (send.queue is None or (send.offset is not None and send.offset < 0))
        and not send.delay_ms  # S25
    ]
    if not unplaced:
        return
    wanted = {send.value for send in unplaced}
    stored: dict[str, list[tuple[Queue, int]]] = {}
    for queue, log in evidence.logs.items():
        for offset, value in enumerate(log.values, start=log.start):
            if value in wanted:
                stored.setdefault(str(value), []).append((queue, offset))
    shortened = {queue.topic for queue, log in evidence.logs.items() if log.start > 0}
    unknown = {group for group in evidence.groups if group not in evidence.truth}
    for send in unplaced:
        if unknown or send.topic in shortened or not evidence.binding(send):
            continue
        found.judged += 1
        places = stored.get(send.value, [])
        if not places:
            how = "without its queue" if send.queue is None else "as a duplicate"
            found.violate(
                f"{send.value} was acknowledged {how}, and no log has it",
                send,
                *evidence.truth.values(),
            )
        elif (send.offset or 0) > 0 and send.offset not in [offset for _, offset in places]:
            where = " and in ".join(f"{_name(queue)} at {offset}" for queue, offset in places)
            found.violate(f"{send.value} was acknowledged at {send.offset}; it is in {where}", send)


def one_message_for_each_offset(evidence: Evidence) -> Findings:
    """S2 (INV-7): for all observations (q, o, m1), (q, o, m2): m1 = m2, whoever saw them, at any
    time. O(n): one table per queue; proofs are looked up afterwards."""
    found = Findings("S2")
    tables: dict[Queue, dict[int, str]] = {}
    clashes: dict[tuple[Queue, int], None] = {}
    for _, queue, messages in _observations(evidence):
        table = tables.setdefault(queue, {})
        for offset, value, _crc in messages:
            if table.setdefault(offset, value) != value:
                clashes[queue, offset] = None
        found.judged += len(messages)
    if clashes:
        _prove_clashes(evidence, found, clashes)
    return found


def _prove_clashes(
    evidence: Evidence, found: Findings, clashes: dict[tuple[Queue, int], None]
) -> None:
    listed = islice(clashes, LISTED_MAX)
    first: dict[tuple[Queue, int], dict[str, int]] = {place: {} for place in listed}
    for number, queue, messages in _observations(evidence):
        for offset, value, _crc in messages:
            if (queue, offset) in first:
                first[queue, offset].setdefault(value, number)
    for (queue, offset), values in first.items():
        shown = " and ".join(values)
        found.violate(f"{_name(queue)} was {shown} at {offset}", *values.values())
    found.violations_count = len(clashes)


def nothing_is_invented(evidence: Evidence) -> Findings:
    """S3: for all messages m that were read, or stand in any replica's log: somebody had begun to
    send m to that topic before the read was answered, and the crc of the body is the sender's.
    Retries and dead letters were sent to some topic (which one, S29 follows). A value that was sent
    twice is a fault of the harness and is said here too. O(n)."""
    found = Findings("S3")
    sent = evidence.sent
    if len(sent) != len(evidence.sends) + len(evidence.begins):
        _name_repeated_values(evidence, found)
    for entry, queue, messages in _sightings(evidence):
        limit_us = None if isinstance(entry, ReplicaDump) else entry.answered_us
        found.judged += len(messages)
        for offset, value, crc in messages:
            send = sent.get(value)
            is_right = send is not None and queue.topic in (send.topic, *_made_by_masters(queue))
            if send is not None and send.crc == crc and is_right:
                if limit_us is not None and send.asked_us > limit_us:
                    found.violate(f"{value} was read before it was sent", send, entry)
                continue
            where = f"{_name(queue)} at {offset}"
            if send is None:
                found.violate(f"{value!r} in {where} was never sent", entry)
            elif not is_right:
                found.violate(f"{value} in {where} was sent to {send.topic}", send, entry)
            else:
                found.violate(f"the body of {value} in {where} was changed", send, entry)
    return found


def _name_repeated_values(evidence: Evidence, found: Findings) -> None:
    seen: dict[str, Send] = {}
    for send in evidence.sends:
        before = seen.setdefault(send.value, send)
        if before is not send:
            found.violate(f"the harness sent {send.value} twice", before, send)


def no_failed_send_shows(evidence: Evidence) -> Findings:
    """S4: F and (all reads and all replicas' logs, unconfirmed tails too) are disjoint: "certainly
    not stored" is only said before anything is appended (R32). O(n)."""
    found = Findings("S4")
    failed = {send.value: send for send in evidence.sends if send.outcome is Outcome.FAIL}
    found.judged = len(failed)
    if not failed:
        return found
    for entry, queue, messages in _sightings(evidence):
        for offset, value, _crc in messages:
            if value in failed:
                send = failed.pop(value)  # once is enough
                found.violate(
                    f"{value} failed for certain ({send.error}), and is in {_name(queue)} "
                    f"at {offset}",
                    send,
                    entry,
                )
    return found


def stored_at_most_once(evidence: Evidence) -> Findings:
    """S5: for each m of an idempotent producer: |{(q, o): H(q)(o) = m}| <= 1, and |{(q, o): (q, o,
    m) was read}| <= 1, in the topic it was sent to: retries are S29's, and what has the mark of an
    escaped message is S38's. Doubles of other producers are counted as `duplicates`. O(n)."""
    found = Findings("S5")
    places: dict[str, tuple[Queue, int]] = {}
    doubles: dict[str, tuple[Queue, int]] = {}
    for queue, offset, value in chain(_stored(evidence), _read(evidence)):
        if _made_by_masters(queue) or (queue, offset) in evidence.escaped:
            continue
        place = places.setdefault(value, (queue, offset))
        if place != (queue, offset):
            doubles.setdefault(value, (queue, offset))
    found.judged = len(places)
    broken: list[tuple[Send, list[tuple[Queue, int]]]] = []
    for value, place in doubles.items():
        send = evidence.sent.get(value)
        if send is not None and send.is_idempotent:
            broken.append((send, [places[value], place]))
        else:
            found.counters["duplicates"] += 1
    listed = {place for _, pair in broken[:LISTED_MAX] for place in pair}
    seen_by = _who_saw(evidence, listed) if listed else {}
    for send, pair in broken:
        where = " and in ".join(f"{_name(queue)} at {offset}" for queue, offset in pair)
        proof = [seen_by.get(place) for place in pair]
        found.violate(f"{send.value} is stored twice: in {where}", send, *proof)
    return found


def logs_are_dense(evidence: Evidence) -> Findings:
    """S6: in every replica's log each batch begins where the one before it ends, in bytes and, per
    queue, in offsets; the offsets of H(q) are [start, end) without holes, from 0 if nothing was
    deleted. Batches in memory order, O(batches)."""
    found = Findings("S6")
    for dump in evidence.all_dumps:
        position = dump.start
        ends: dict[Queue, int] = {}
        for batch in dump.batches:
            found.judged += 1
            if batch.position != position:
                found.violate(
                    f"the log of {dump.node} goes on at {batch.position} after {position}", dump
                )
            position = batch.position + batch.size
            if batch.queue is None or not batch.messages:
                continue
            first = batch.base_offset if dump.start > 0 else 0
            expected = ends.get(batch.queue, first)
            if batch.base_offset != expected:
                found.violate(
                    f"in the log of {dump.node} {_name(batch.queue)} goes on at "
                    f"{batch.base_offset}, not at {expected}",
                    dump,
                )
            ends[batch.queue] = batch.base_offset + len(batch.messages)
    return found


# -- walks ----------------------------------------------------------------------------------------


def _observations(evidence: Evidence) -> Iterator[tuple[int, Queue, tuple[Seen, ...]]]:
    """(number of the entry, queue, messages) of everything that fixes what an offset is."""
    for send in evidence.acks:
        assert send.queue is not None
        assert send.offset is not None
        if not evidence.is_lossy(send.queue.group):
            yield send.number, send.queue, (Seen(send.offset, send.value, send.crc),)
    for entry, queue, messages in _sightings(evidence, is_below_confirm=True):
        if not evidence.is_lossy(queue.group):
            yield entry.number, queue, messages


def _sightings(
    evidence: Evidence, *, is_below_confirm: bool = False
) -> Iterator[tuple[Pull | Deliver | ReplicaDump, Queue, tuple[Seen, ...]]]:
    """Reads, deliveries and logs; of logs that are not the truth perhaps only what is confirmed."""
    for pull in evidence.pulls:
        if pull.messages:
            yield pull, pull.queue, pull.messages
    for deliver in evidence.delivers:
        yield deliver, deliver.queue, (deliver.message,)
    for dump in evidence.all_dumps:
        is_whole = not is_below_confirm or evidence.truth.get(dump.group) is dump
        for batch in dump.batches:
            if batch.queue is not None and batch.messages:
                if not is_whole and batch.position + batch.size > dump.confirm:
                    break
                base = batch.base_offset
                rows = tuple(
                    Seen(base + index, value, crc)
                    for index, (value, crc) in enumerate(batch.messages)
                )
                yield dump, batch.queue, rows


def _stored(evidence: Evidence) -> Iterator[tuple[Queue, int, str]]:
    for queue, log in evidence.logs.items():
        if not evidence.is_lossy(queue.group):
            for offset, value in enumerate(log.values, start=log.start):
                if value is not None:
                    yield queue, offset, value


def _read(evidence: Evidence) -> Iterator[tuple[Queue, int, str]]:
    entries: chain[Pull | Deliver] = chain(evidence.pulls, evidence.delivers)
    for entry in entries:
        if not evidence.is_lossy(entry.queue.group):
            messages = entry.messages if isinstance(entry, Pull) else (entry.message,)
            for offset, value, _crc in messages:
                yield entry.queue, offset, value


def _who_saw(evidence: Evidence, places: set[tuple[Queue, int]]) -> dict[tuple[Queue, int], int]:
    """One entry for each place, for the proof."""
    numbers: dict[tuple[Queue, int], int] = {}
    for number, queue, messages in _observations(evidence):
        for offset, _value, _crc in messages:
            if (queue, offset) in places:
                numbers.setdefault((queue, offset), number)
    return numbers


def _made_by_masters(queue: Queue) -> tuple[str, ...]:
    """The queue's topic, if only masters write to it: retries, dead letters, what nobody ended."""
    is_so = queue.topic.startswith("%") or queue.topic == TRANS_CHECK_MAX_TIME_TOPIC
    return (queue.topic,) if is_so else ()


def _name(queue: Queue) -> str:
    return f"{queue.topic}/{queue.group}/{queue.queue}"
