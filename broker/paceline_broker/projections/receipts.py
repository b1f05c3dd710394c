"""Pure: receipts of simple consumers (POP): messages given and not acknowledged (R28, R29, R34).

Per (consumer group, queue): the next offset that nobody was ever given, and each message in flight
with the grant it is out under. What is below `next` and not in flight is done. The lowest offset
that is not done is the group's committed offset.

A POP record holds what the master decided, item by item; the fold only writes it down, so it reads
no clock: an invisible time that is over changes nothing here until a record gives the message anew.
Items (JSON lists):

    ["start", group, [[key, offset]]]                            the group begins on a queue there
    ["give", group, client, until, [[key, first, end, attempt]]] out to `client` until that log time
    ["pass", group, [[key, next]]]                                not wanted or deleted: done unseen
    ["drop", group, [[key, first, end]]]                          retention took them: done unseen
    ["ack", group, [[key, first, end, position]]]                 done; `position` is the receipt's
    ["change", group, [[key, offset, until, attempt]]]            invisible until another time
    ["bury", group, topic_id, [[key, offset, source]]]            no attempt is left: to be a dead
                                                                  letter of that topic, whose batch
                                                                  names `source`
    ["end", cursor, []]                                          the client has gone: it stands
                                                                  nowhere any more

In a group that broadcasts, each client has a cursor, whose name is in place of the group's
(cursors.py).
The position of a record that gives or changes is part of the handle: an older handle is void.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import orjson

from paceline_broker.projections.consume_queues import topic_of
from paceline_broker.projections.cursors import CursorNames, is_cursor
from paceline_broker.projections.receipt_queue import Done, Grant, QueueReceipts, Run

_LENGTH = struct.Struct("<I")
_RUN = struct.Struct("<QIqHHQ")  # first, count, until, attempt, number of the client, position
_DONE = struct.Struct("<QQQ")
TOPIC_UNKNOWN = 0
"""Of a dead letter, in records and checkpoints that did not name its topic: no batch closes it, the
next master says that it is done."""


class ExhaustedMessage(NamedTuple):
    """A message without attempts left, on its way to the dead letters."""

    group: str
    """Or a cursor of one that broadcasts."""
    key: int
    offset: int


class Letter(NamedTuple):
    """A dead letter to be: the topic that it goes to, and the source that its batch names."""

    topic_id: int
    source: int
    """As `pack_source`."""


class Moved(NamedTuple):
    """The group's committed offset on a queue is `floor` now."""

    group: str
    key: int
    floor: int


class Receipts:
    """All receipts of a broker's log, by group and queue key."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, QueueReceipts]] = {}
        self._cursors = CursorNames()
        self.cursor_queues = 0
        """Of all cursors, the queues on which they stand."""
        self.dying: dict[Letter, ExhaustedMessage] = {}
        """A dead letter for that topic, of that source, closes it (R34): another group's dead
        letter of the same message does not."""

    def get(self, group: str, key: int) -> QueueReceipts | None:
        return self._groups.get(group, {}).get(key)

    def of_group(self, group: str) -> dict[int, QueueReceipts]:
        """The queues of a group; not to be changed."""
        return self._groups.get(group, {})

    def groups(self) -> list[str]:
        """And cursors."""
        return sorted(self._groups)

    def has(self, group: str) -> bool:
        return group in self._groups

    def cursors(self) -> list[str]:
        """Of all groups that broadcast."""
        return list(self._cursors)

    @property
    def has_cursors(self) -> bool:
        return bool(self._cursors)

    def is_open(self, group: str, key: int) -> bool:
        """Whether something of the queue is out at the group's receivers."""
        found = self.get(group, key)
        return found is not None and bool(found.in_flight or found.withdrawn)

    def holds(self, group: str, key: int, now_unix_ms: int) -> bool:
        """Whether only receipts move the group's offset on the queue at that log time."""
        found = self.get(group, key)
        return found is not None and found.holds(now_unix_ms)

    def open_count(self, group: str, key: int) -> int:
        """Messages of the queue that are out at the group's receivers; of one that broadcasts, each
        as often as it is out."""
        found = (self.get(name, key) for name in (group, *self._cursors.of(group)))
        return sum(len(receipts.in_flight) for receipts in found if receipts is not None)

    def keys(self) -> set[int]:
        """Queues that a group has receipts of."""
        return {key for queues in self._groups.values() for key in queues}

    # -- the fold ----------------------------------------------------------------------------------

    def apply_item(self, item: list[Any], *, position: int) -> list[Moved]:
        """Fold one item of the record at `position`; which committed offsets moved. ValueError if
        it cannot be."""
        kind, group, *rest = item
        rows = rest[-1]
        if kind == "end":
            self._drop_names([group])
            return []
        queues = self._groups.get(group)
        if queues is None:
            queues = self._groups[group] = {}
            self._cursors.add(group)
        match kind:
            case "start":
                if is_cursor(group):
                    self.cursor_queues += len({key for key, _ in rows} - queues.keys())
                for key, offset in rows:
                    queues[key] = QueueReceipts(key, offset, position)
            case "give":
                client_id, until = rest[0], rest[1]
                for key, first, end, attempt in rows:
                    queues[key].give(first, end, Grant(until, attempt, position, client_id))
            case "pass":
                for key, offset in rows:
                    queues[key].pass_to(offset)
            case "drop":
                for key, first, end in rows:
                    queues[key].finish(first, end)
                self._forget_done(group, rows)
            case "ack":
                for key, first, end, receipt_position in rows:
                    queues[key].acknowledge(first, end, receipt_position)
            case "change":
                for key, offset, until, attempt in rows:
                    queues[key].change(offset, until, attempt, position)
            case "bury":
                topic_id = rest[0] if len(rest) > 1 else TOPIC_UNKNOWN
                for key, offset, source in rows:
                    queues[key].withdraw(offset)
                    self.dying[Letter(topic_id, source)] = ExhaustedMessage(group, key, offset)
            case _:
                raise ValueError(f"item {kind!r} is not known to this version")
        return [Moved(group, row[0], queues[row[0]].floor) for row in rows]

    def close_dead(self, topic_id: int, sources: Iterable[int]) -> list[Moved]:
        """Dead letters for a topic were made of these: what waited for them is done (R34)."""
        moved: list[Moved] = []
        for source in sources:
            found = self.dying.pop(Letter(topic_id, source), None)
            if found is None:
                continue
            group, key, offset = found
            receipts = self._groups[group][key]
            receipts.finish(offset, offset + 1)
            moved.append(Moved(group, key, receipts.floor))
        return moved

    def commit_moved(
        self, group: str, key: int, offset: int, *, is_reset: bool, position: int
    ) -> None:
        """The group's offset was committed without receipts, by the record at `position`: by a
        reset, or as none `holds`."""
        receipts = self.get(group, key)
        if receipts is None or (not is_reset and offset <= receipts.floor):
            return
        if not is_reset:
            receipts.commit(offset)
            return
        self._forget_dying(lambda dying: dying.group == group and dying.key == key)
        self._groups[group][key] = QueueReceipts(key, offset, position)  # every handle is void

    def clamp(self, queue_end: Callable[[int], int]) -> None:
        """An unclean epoch (R21): what lies beyond a queue's end was never there."""
        for queues in self._groups.values():
            for key, receipts in queues.items():
                receipts.clamp(queue_end(key))
        self._forget_dying(lambda dying: dying.offset >= queue_end(dying.key))

    def drop_topic(self, topic_id: int) -> None:
        for group, queues in self._groups.items():
            gone = [key for key in queues if topic_of(key) == topic_id]
            for key in gone:
                del queues[key]
            if is_cursor(group):
                self.cursor_queues -= len(gone)
        self._forget_dying(lambda dying: topic_of(dying.key) == topic_id)

    def drop_group(self, group: str) -> None:
        """Every handle is void, and so is what was to be buried; its cursors go with it."""
        self._drop_names([group, *self._cursors.of(group)])

    def _drop_names(self, names: Iterable[str]) -> None:
        gone = set(names)
        for name in gone:
            queues = self._groups.pop(name, {})
            if is_cursor(name):
                self._cursors.remove(name)
                self.cursor_queues -= len(queues)
        self._forget_dying(lambda dying: dying.group in gone)

    def _forget_done(self, group: str, rows: list[list[int]]) -> None:
        done = {(group, key, offset) for key, first, end in rows for offset in range(first, end)}
        self._forget_dying(lambda dying: dying in done)

    def _forget_dying(self, is_gone: Callable[[ExhaustedMessage], bool]) -> None:
        for letter in [letter for letter, dying in self.dying.items() if is_gone(dying)]:
            del self.dying[letter]

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Canonical bytes: equal states give equal bytes (INV-9); runs, not messages."""
        heads: list[list[Any]] = []
        columns: list[bytes] = []
        for group in sorted(self._groups):
            for key in sorted(self._groups[group]):
                receipts = self._groups[group][key]
                runs = receipts.runs()
                clients = sorted({run.grant.client_id for run in runs})
                numbers = {client_id: number for number, client_id in enumerate(clients)}
                columns += [_packed(run, numbers) for run in runs]
                columns += [_DONE.pack(*done) for done in receipts.done]
                counts = [len(runs), len(receipts.done)]
                start = [receipts.start, receipts.since]
                heads.append([group, key, receipts.floor, receipts.next, *counts, clients, *start])
        dying = [[*letter, *self.dying[letter]] for letter in sorted(self.dying)]
        head = orjson.dumps({"dying": dying, "queues": heads}, option=orjson.OPT_SORT_KEYS)
        return b"".join((_LENGTH.pack(len(head)), head, *columns))

    @classmethod
    def restore(cls, snapshot: bytes) -> "Receipts":
        """The state that `snapshot` was taken of."""
        receipts = cls()
        (size,) = _LENGTH.unpack_from(snapshot)
        at = _LENGTH.size + size
        head = orjson.loads(snapshot[_LENGTH.size : at])
        for group, key, floor, next_offset, runs_count, done_count, clients, *start in head[
            "queues"
        ]:
            runs_end = at + runs_count * _RUN.size
            done_end = runs_end + done_count * _DONE.size
            rows = _RUN.iter_unpack(snapshot[at:runs_end])
            done = deque(map(Done._make, _DONE.iter_unpack(snapshot[runs_end:done_end])))
            found = QueueReceipts(key, *(start or (0, 0)))  # older ones did not say where it began
            found.fill(floor, next_offset, _runs(rows, clients), done)
            receipts._groups.setdefault(group, {})[key] = found
            receipts._cursors.add(group)
            receipts.cursor_queues += is_cursor(group)
            at = done_end
        for *letter, group, key, offset in head["dying"]:
            found_letter = Letter(*letter) if len(letter) > 1 else Letter(TOPIC_UNKNOWN, *letter)
            receipts.dying[found_letter] = ExhaustedMessage(group, key, offset)
        for group, key, offset in receipts.dying.values():
            receipts._groups[group][key].withdrawn.add(offset)
        return receipts


def _packed(run: Run, numbers: dict[str, int]) -> bytes:
    first, end, (until, attempt, position, client_id) = run
    return _RUN.pack(first, end - first, until, attempt, numbers[client_id], position)


def _runs(rows: Iterable[tuple[Any, ...]], clients: list[str]) -> list[Run]:
    return [
        Run(first, first + count, Grant(until, attempt, position, clients[number]))
        for first, count, until, attempt, number, position in rows
    ]
