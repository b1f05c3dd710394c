"""Pure: a history as the checkers judge it: what it says, less what may be lacking and why.

It is made once, shared by all checkers, and changed by none.

The **truth** of a broker group is the log that the last elected master left. If that one is
damaged, broken for good, vacated or unknown, it is the undamaged log with the highest (last epoch,
end). H(q) is the truth's content of queue q. What a history may lack is in `allowances`.
"""

from collections import defaultdict
from collections.abc import Set
from dataclasses import replace
from functools import cached_property

from paceline_chaos.checkers.evidence.allowances import Allowances
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.checkers.evidence.chains import Chains
from paceline_chaos.checkers.evidence.parts import (
    SERVING,
    QueueLog,
)
from paceline_chaos.checkers.evidence.recorded import NEVER_US, Recorded
from paceline_chaos.history.model import (
    History,
    Outcome,
    Probe,
    Queue,
    ReplicaDump,
    Send,
)


class Evidence(Recorded):
    """One history, and what excuses its faults."""

    def __init__(self, history: History, bounds: Bounds | None = None) -> None:
        super().__init__(history, bounds)
        self.allowances = Allowances(self)

    # -- what the world is ------------------------------------------------------------------------

    @cached_property
    def crippled(self) -> frozenset[str]:
        """Nodes that owe nothing after healing: broken for ever, replaced by others, or with a log
        that a fault has damaged: such a node refuses what it cannot vouch for (R24)."""
        damaged = {dump.node for dump in self.dumps if self.allowances.explains_damage(dump)}
        return self.broken | self.retired | damaged

    # -- messages ---------------------------------------------------------------------------------

    def binding(self, send: Send) -> bool:
        """Whether an acknowledgement promises that the message stays."""
        return send.is_confirmed and not self.allowances.was_given_up(send)

    def placed_acks(self, group: str) -> list[tuple[Send, int]]:
        """Binding acknowledgements, each with the position from which on its record is confirmed,
        in order of the answers; those whose record is not in H are S1's."""
        return self._placed_acks.get(group, [])

    @cached_property
    def _placed_acks(self) -> dict[str, list[tuple[Send, int]]]:
        groups: defaultdict[str, list[tuple[Send, int]]] = defaultdict(list)
        for queue, sends in self.acks_by_queue.items():
            log = self.logs.get(queue)
            if log is None:
                continue
            placed = groups[queue.group]
            for send in filter(self.binding, sends):
                end = log.end_at(send.offset or 0)
                if end is not None and end >= 0:
                    placed.append((send, end))
        for placed in groups.values():
            placed.sort(key=lambda pair: pair[0].answered_us)
        return groups

    @cached_property
    def located_acks(self) -> list[Send]:
        """Acknowledgements by who names no queue (a gateway), each with the place that H has its
        message in, where it was stored once and may not have been stored twice."""
        unnamed = {
            send.value: send
            for send in self.sends
            if send.queue is None
            and send.outcome is Outcome.OK
            and send.is_idempotent
            and not send.delay_ms
        }
        located: list[Send] = []
        for queue, log in self.logs.items() if unnamed else ():
            for offset, value in enumerate(log.values, start=log.start):
                send = unnamed.get(value or "")
                if send is not None and send.topic == queue.topic and self.binding(send):
                    located.append(replace(send, queue=queue, offset=offset))
        return located

    # -- logs -------------------------------------------------------------------------------------

    @cached_property
    def truth(self) -> dict[str, ReplicaDump]:
        """Group -> the log that counts; groups of which no log is whole are left out."""
        chosen = {}
        for group, dumps in self.dumps_of.items():
            whole = [
                d for d in dumps if d.damage is None and not self.allowances.explains_damage(d)
            ]
            if whole:
                last = self._final_master(group)
                named = (dump for dump in whole if _is_of(dump, last))
                chosen[group] = next(named, None) or max(whole, key=_log_length)
        return chosen

    def _final_master(self, group: str) -> tuple[str, int] | None:
        """Node and replica id of the last master, unless it cannot speak for its group any more: a
        node that got an empty disk may come back as another replica."""
        last = None
        for ruling in self.rulings_of(group):
            if ruling.kind == "master_elected":
                replica = ruling.members["master"]
                node = self.replica_nodes.get((group, replica))
                last = None if node is None else (node, replica)
            elif ruling.kind in ("master_vacated", "last_member_lost"):
                last = None
        return None if last is None or last[0] in self.broken else last

    @cached_property
    def logs(self) -> dict[Queue, QueueLog]:
        """H."""
        logs: dict[Queue, QueueLog] = {}
        for dump in self.truth.values():
            for batch in dump.batches:
                if batch.queue is not None and batch.messages:
                    log = logs.get(batch.queue)
                    if log is None:
                        is_cut = 0 < dump.start <= self.allowances.deleted_below(dump.group)
                        start = batch.base_offset if is_cut else 0
                        log = logs[batch.queue] = QueueLog(start)
                    log.put(batch)
        return logs

    @cached_property
    def escaped(self) -> dict[tuple[Queue, int], str]:
        """Places of the truth that hold another group's messages, with where those waited (R36)."""
        found = {}
        for dump in self.truth.values():
            for batch in dump.batches:
                if batch.marks:
                    assert batch.queue is not None, batch
                    for offset, mark in enumerate(batch.marks, start=batch.base_offset):
                        found[batch.queue, offset] = mark
        return found

    @cached_property
    def chains(self) -> dict[str, Chains]:
        """By broker group: what masters made of messages for consumer groups."""
        return {group: Chains(dump) for group, dump in self.truth.items()}

    def sent_back(self, consumer_group: str, queue: Queue) -> Set[int]:
        """Offsets of which a retry or dead letter was made for a consumer group."""
        chains = self.chains.get(queue.group)
        return (
            frozenset() if chains is None else chains.sent_back.get((consumer_group, queue), set())
        )

    def replica_of(self, dump: ReplicaDump) -> int | None:
        """Which replica a log is of; if nobody could say so in the end, who its node was last."""
        if dump.replica is not None or dump.node not in self.lines:
            return dump.replica
        probes = self.lines[dump.node].probes
        return next((p.replica for p in reversed(probes) if p.replica is not None), None)

    def has_truth(self, queue: Queue) -> bool:
        return queue.group in self.truth

    def start_of(self, queue: Queue) -> int:
        """Offsets below it are deleted by now (retention): those whose batches ended, or began,
        below what the records give up; a file may hold them still."""
        limit = self.allowances.deleted_below(queue.group)
        log = self.logs.get(queue)
        if not limit or queue.group not in self.truth:
            return 0 if log is None else log.start
        if log is None:  # of a log that was cut nobody knows where this queue ended
            return NEVER_US if self.truth[queue.group].start > 0 else 0
        return self._starts.get(queue, log.end)

    def kept_since_us(self, group: str) -> int:
        """What a group appended from then on is in its log in the end: 0 if nothing was deleted.

        Known by the first message that is there and was acknowledged at once when it was stored.
        """
        return self._kept_since_us.get(group, 0)

    @cached_property
    def _kept_since_us(self) -> dict[str, int]:
        stored_us = {  # in that queue: in others copies may stand, as of retries
            (send.queue, send.value): send.answered_us
            for send in self.sends
            if send.outcome is Outcome.OK and not send.delay_ms
        }
        found: dict[str, int] = {}
        for group, dump in self.truth.items():
            limit = self.allowances.deleted_below(group)
            if not limit and dump.start == 0:
                continue
            kept = (
                stored_us[batch.queue, value]
                for batch in dump.batches
                if batch.position >= limit
                for value, _ in batch.messages
                if (batch.queue, value) in stored_us
            )
            found[group] = next(kept, NEVER_US)
        return found

    @cached_property
    def _starts(self) -> dict[Queue, int]:
        """First offset of each queue whose batch begins at or above what is given up."""
        found: dict[Queue, int] = {}
        for group, dump in self.truth.items():
            limit = self.allowances.deleted_below(group)
            for batch in dump.batches:
                if batch.queue is not None and batch.messages and batch.position >= limit:
                    found.setdefault(batch.queue, batch.base_offset)
        return found

    # -- nodes ------------------------------------------------------------------------------------

    def is_one_store(self, before: Probe, after: Probe) -> bool:
        """No other disk was put into their node between two probes of it."""
        return not self.was_replaced(after.node, before.at_us, after.at_us)

    def was_replaced(self, node: str, start_us: int, end_us: int) -> bool:
        """Whether a node got another disk in that time."""
        return self.allowances.was_replaced(node, start_us, end_us)

    def is_intact(self, probe: Probe) -> bool:
        """Its node serves, and whatever its disk has lost it has made good."""
        return probe.role in SERVING and not self.allowances.may_lack(probe.node, probe.at_us)

    # -- controllers ------------------------------------------------------------------------------

    def is_lossy(self, group: str) -> bool:
        """Whether an operator has ordered an election that loses records."""
        return self.allowances.is_lossy(group)


def _is_of(dump: ReplicaDump, last: tuple[str, int] | None) -> bool:
    """Where nobody could say which replica a dump is of, its node decides."""
    return last is not None and dump.node == last[0] and dump.replica in (last[1], None)


def _log_length(dump: ReplicaDump) -> tuple[int, int]:
    return (dump.batches[-1].epoch if dump.batches else -1, dump.end)
