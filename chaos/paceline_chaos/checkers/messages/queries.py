"""Pure: messages that are looked for: S40 (answers are true) and L7 (what is stored is found)."""

from collections import defaultdict

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.basis import Found
from paceline_chaos.history.model import Find, Outcome, Queue

Place = tuple[Queue, int]
DENIED = "MESSAGE_NOT_FOUND"


def answers_are_true(evidence: Evidence) -> Findings:
    """S40, for each message m that a query answered at (q, o):
    (a) m was sent to that topic, before the answer, with that body;
    (b) H(q)(o) = m, unless o was deleted since: neither what is unconfirmed is found, nor what was
    cut (not in lossy groups, nor where no log is whole);
    (c) it is what was asked for, by key (as it was sent), unique key, id or time;
    (d) answers are in order of groups, queues and offsets, and none is there twice;
    (e) an id, and a unique key, names one message in all answers of a run;
    (f) an id that an answer has named is denied only if its message was deleted. O(n)."""
    found = Findings("S40")
    ids: dict[str, Place] = {}
    uniques: dict[str, str] = {}
    for find in evidence.finds:
        last = ("", -1, -1)
        for row in find.found:
            found.judged += 1
            _was_sent(evidence, found, find, row)
            _is_there(evidence, found, find, row)
            if not _is_asked_for(find, row):
                found.violate(f"{row.value} was found by {find.by} {find.wanted}", find)
            if (row.group, row.queue, row.offset) <= last:
                found.violate(f"{row.value} at {row.offset} comes after {last}", find)
            last = (row.group, row.queue, row.offset)
            if evidence.is_lossy(row.group):
                continue
            place = _place(find, row)
            if ids.setdefault(row.message_id, place) != place:
                found.violate(f"{row.message_id} names two places", find)
            if uniques.setdefault(row.unique_key, row.value) != row.value:
                found.violate(f"{row.unique_key} names {row.value} and another message", find)
    _judge_denials(evidence, found, ids)
    return found


def what_is_stored_is_found(evidence: Evidence) -> Findings:
    """L7, for each query that was answered in the drain: by a key, it found all messages of H that
    were sent with the key, whatever their senders were told, and that are not deleted; by a unique
    key or an id, what other answers say has it; by time, all that other answers of the drain say
    was stored then. Not in lossy groups, nor where no log is whole. O(n + answers * found)."""
    found = Findings("L7")
    drain = evidence.phase("drain")
    finds = [
        find
        for find in evidence.finds
        if drain is not None and find.asked_us >= drain.at_us and find.outcome is Outcome.OK
    ]
    if not finds:
        return found
    of_keys = _places_of_keys(evidence)
    rows = {_place(find, row): row for find in finds for row in find.found}
    for find in finds:
        if find.by == "key":
            wanted = of_keys.get((find.topic, find.wanted), set())
        else:
            wanted = {
                place
                for place, row in rows.items()
                if place[0].topic == find.topic and _is_asked_for(find, row)
            }
        found.judged += len(wanted)
        have = {_place(find, row) for row in find.found}
        for queue, offset in sorted(wanted - have):
            if _is_kept(evidence, queue, offset):
                found.violate(
                    f"{queue.topic}/{queue.group}/{queue.queue} has a message at {offset} that "
                    f"was not found by {find.by} {find.wanted}",
                    find,
                    evidence.truth[queue.group],
                )
    return found


def _was_sent(evidence: Evidence, found: Findings, find: Find, row: Found) -> None:
    send = evidence.sent.get(row.value)
    if send is None or send.asked_us > find.answered_us:
        found.violate(f"{row.value} was found, and nobody had sent it", find, send)
    elif (send.topic, send.crc) != (find.topic, row.crc):
        found.violate(f"{row.value} was found with another body or in another topic", find, send)
    elif find.by == "key" and send.key != find.wanted:
        found.violate(f"{row.value} was found by key {find.wanted}, sent by {send.key}", find, send)


def _is_there(evidence: Evidence, found: Findings, find: Find, row: Found) -> None:
    queue, offset = _place(find, row)
    if not _is_kept(evidence, queue, offset):
        return
    log = evidence.logs.get(queue)
    stored = None if log is None else log.value_at(offset)
    if stored != row.value:
        found.violate(
            f"{row.value} was found in {queue.topic}/{queue.group}/{queue.queue} at {offset}; "
            f"in the end {stored or 'nothing'} is there",
            find,
            evidence.truth[queue.group],
        )


def _judge_denials(evidence: Evidence, found: Findings, ids: dict[str, Place]) -> None:
    for find in evidence.finds:
        place = ids.get(find.wanted) if find.by == "id" and find.error == DENIED else None
        if place is not None and _is_kept(evidence, *place):
            found.judged += 1
            found.violate(f"{find.wanted} was denied, and is in its queue", find)


def _is_asked_for(find: Find, row: Found) -> bool:
    match find.by:
        case "key":
            return row.key == find.wanted
        case "unique_key":
            return row.unique_key == find.wanted
        case "id":
            return row.message_id == find.wanted
        case _:
            begin, end = map(int, find.wanted.split("-"))
            return begin <= row.store_unix_ms <= end


def _is_kept(evidence: Evidence, queue: Queue, offset: int) -> bool:
    """Whether it must be there in the end, if it was stored."""
    if not evidence.has_truth(queue) or evidence.is_lossy(queue.group):
        return False
    return offset >= evidence.start_of(queue)


def _place(find: Find, row: Found) -> Place:
    return Queue(find.topic, row.group, row.queue), row.offset


def _places_of_keys(evidence: Evidence) -> dict[tuple[str, str], set[Place]]:
    """(topic, key) -> where H has its messages."""
    places: defaultdict[tuple[str, str], set[Place]] = defaultdict(set)
    for queue, log in evidence.logs.items():
        for offset, value in enumerate(log.values, start=log.start):
            send = evidence.sent.get(value or "")
            if send is not None and send.key:
                places[queue.topic, send.key].add((queue, offset))
    return places
