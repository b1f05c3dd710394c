"""Pure: what acting masters have sent to other groups: S38 (R36)."""

from collections.abc import Iterator

from paceline.records.header import pack_source, unpack_source
from paceline.wire.message_ids import OffsetMessageId
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import SKIPPED, Queue, ReplicaDump, StoredBatch


def escaped_messages_are_marked_and_skipped_for_a_reason(evidence: Evidence) -> Findings:
    """S38: marked: each record with a mark is of another group than its log, and if its send was
    acknowledged by a group, of that one;
    skipped: each record of H that says that another group has a message: that message has its mark
    in some other group's log (not judged where logs were cut, or a group is lossy or has no truth).
    Twice is allowed, but counted (`escaped_twice`): stored by its own group and with a mark.
    O(n)."""
    found = Findings("S38")
    own = set(stored_without_mark(evidence))
    for dump in evidence.truth.values():
        origins: dict[int, int] = {}
        skipped: list[int] = []
        for batch in dump.batches:
            if batch.marks:
                _judge_marks(evidence, found, dump, batch, own)
            elif batch.cause == "AGAIN":
                for index, source in enumerate(batch.sources):
                    made = pack_source(batch.position, index)
                    origins[made] = origins.get(source, source)
            elif batch.cause == SKIPPED:
                skipped += [origins.get(source, source) for source in batch.sources]
        _judge_skipped(evidence, found, dump, skipped)
    return found


def stored_without_mark(evidence: Evidence) -> Iterator[str]:
    """Values in the queues of users' topics that are no other group's escaped messages."""
    for queue, log in evidence.logs.items():
        if queue.topic.startswith("%"):
            continue
        for offset, value in enumerate(log.values, start=log.start):
            if value is not None and (queue, offset) not in evidence.escaped:
                yield value


def came_twice(evidence: Evidence) -> set[str]:
    """Values of users' topics that are stored with a mark and without one."""
    marked = {
        value
        for dump in evidence.truth.values()
        for batch in dump.batches
        if batch.marks and batch.queue is not None and not batch.queue.topic.startswith("%")
        for value, _crc in batch.messages
    }
    return marked.intersection(stored_without_mark(evidence))


def _judge_marks(
    evidence: Evidence,
    found: Findings,
    dump: ReplicaDump,
    batch: StoredBatch,
    own: set[str],
) -> None:
    assert batch.queue is not None, batch
    for (value, _crc), mark in zip(batch.messages, batch.marks, strict=True):
        found.judged += 1
        found.counters["escaped"] += 1
        found.counters["escaped_twice"] += value in own
        group = mark.partition(":")[0]
        if group in ("", dump.group):
            found.violate(f"{value} in {_name(batch.queue)} is marked {mark!r}", dump)
        send = evidence.sent.get(value)
        if send is None or send.queue is None or batch.queue.topic.startswith("%"):
            continue
        if send.queue.group != group:
            found.violate(f"{value} waited in {send.queue.group}, and is marked {mark}", send, dump)


def _judge_skipped(
    evidence: Evidence, found: Findings, dump: ReplicaDump, skipped: list[int]
) -> None:
    if not skipped:
        return
    found.counters["skipped"] += len(skipped)
    others = [group for group in evidence.groups if group != dump.group]
    is_whole = all(
        group in evidence.truth and not evidence.truth[group].start for group in others
    ) and not any(evidence.is_lossy(group) for group in evidence.groups)
    if not is_whole:
        return
    marks = set(evidence.escaped.values())
    for origin in skipped:
        found.judged += 1
        place = OffsetMessageId(dump.group, *unpack_source(origin))
        if str(place) not in marks:
            found.violate(f"{place} was skipped, and no other group has it", dump)


def _name(queue: Queue) -> str:
    return f"{queue.topic}/{queue.group}/{queue.queue}"
