"""Pure: what a history may lack, and on which condition: every excuse of every checker.

An excuse is a hole in the checks, so each has one place, one condition, and a counter: `used` holds
how often it was taken, and judge prints that as `excused.NAME` beside `judged.X`.

- **lossy**: an operator has ordered an unclean election, or asked for all of them by the group's
  setting, and one came after that (R21). What was acknowledged before it may be gone. An election
  that nobody ordered excuses nothing: it is S15's.
- **given_up**: a single acknowledgement, asked for before such an election.
- **lacking**: a node whose disk was lost, replaced or damaged by a fault that really hit it, until
  it has registered again and was seen outside of the set; with memory durability power losses and
  failed syncs count, too. Who is in the set after that has caught up (R9, R23).
- **replaced**: another disk counts incarnations and confirm anew.
- **damage**: a log that is hurt (it cannot be read to its end, ends below what it confirms, or
  begins above what may be deleted), if a bit of that disk was flipped or a file of it lost. Damage
  that no fault made is R23's.
- **tear**: the end of a log whose process went down and never served again: what is torn there
  is above all that it had confirmed, and recovery has not come by yet (R23).
- **all_damaged**: of no member a whole copy is left, by such faults.
- **withheld_locks**: no ordered consumer can go on while masters grant no lock after an acting
  master (R36); see `withheld.py`.
- **deleted**: what retention has removed; see `deleted_below`.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from functools import cached_property

from paceline_chaos.checkers.evidence.parts import SERVING, Ruling
from paceline_chaos.checkers.evidence.recorded import RETIRED, Recorded
from paceline_chaos.checkers.evidence.withheld import withheld_spans
from paceline_chaos.history.model import Outcome, ReplicaDump, Send

REPLACED = frozenset({"disk_lost", "disk_stale", "disk_wiped"})
"""Faults that put another disk into a node."""
DAMAGED = frozenset({"disk_flip", "disk_missing"})
"""Faults that change a log under its node's hands."""
_FSYNC_LOSES = REPLACED | DAMAGED | {RETIRED}
"""A failed sync costs nothing that counts with fsync, nor does a power loss."""
_MEMORY_LOSES = _FSYNC_LOSES | {"disk_fail", "power", "power_at"}
_ENDS_PROCESS = frozenset({"kill", "stop", "power", "power_at", "exit", RETIRED}) | REPLACED
_NEVER = 1 << 62
Span = tuple[int, int]


class Allowances:
    """Of one history. `used` is all that changes."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self.used: Counter[str] = Counter()

    def _take(self, name: str, *, if_: bool) -> bool:
        self.used[name] += if_
        return if_

    def withheld_locks(self, group: str, start_us: int) -> list[Span]:
        """No ordered consumer can go on: when the masters of `group` granted no lock after an
        acting master (R36), as far as that reaches beyond `start_us`."""
        spans = [span for span in withheld_spans(self._recorded, group) if span[1] > start_us]
        self._take("withheld_locks", if_=bool(spans))
        return spans

    # -- orders -----------------------------------------------------------------------------------

    def is_ordered(self, ruling: "Ruling") -> bool:
        """Whether an operator stands behind an unclean election: by an order, each for one, or by
        the setting of the group."""
        return ruling.number in self._ordered

    @cached_property
    def _ordered(self) -> dict[int, "Ruling"]:
        found: dict[int, Ruling] = {}
        slack_us = self._recorded.slack_us
        for group in self._recorded.groups:
            orders = [
                order.asked_us
                for order in self._recorded.orders
                if order.group == group and order.is_unclean and order.outcome is not Outcome.FAIL
            ]
            for ruling in self._recorded.rulings_of(group, "master_elected"):
                if not ruling.members.get("is_unclean"):
                    continue
                if self._is_set(ruling):
                    found[ruling.number] = ruling
                    continue
                fitting = [asked_us for asked_us in orders if asked_us <= ruling.at_us + slack_us]
                if fitting:
                    orders.remove(max(fitting))
                    found[ruling.number] = ruling
        return found

    def _is_set(self, elected: "Ruling") -> bool:
        """Whether the setting that was put last before that election asks for unclean ones."""
        put = [
            ruling.members["settings"]
            for ruling in self._recorded.rulings_of(elected.group, "settings_set")
            if ruling.place < elected.place
        ]
        return bool(put) and put[-1].get("enable_elect_unclean_master", False)

    @cached_property
    def _lossy_until_us(self) -> dict[str, int]:
        groups: dict[str, int] = {}
        for ruling in self._ordered.values():
            groups[ruling.group] = max(ruling.at_us, groups.get(ruling.group, 0))
        return groups

    def is_lossy(self, group: str) -> bool:
        return self._take("lossy", if_=group in self._lossy_until_us)

    def was_given_up(self, send: Send) -> bool:
        """Whether what was acknowledged may be gone by order; one that names no queue may be of any
        group."""
        groups = self._lossy_until_us
        if send.queue is None:
            return self._take("given_up", if_=bool(groups))
        return self._take("given_up", if_=send.asked_us <= groups.get(send.queue.group, -1))

    # -- disks ------------------------------------------------------------------------------------

    def was_replaced(self, node: str, start_us: int, end_us: int) -> bool:
        """Whether a node got an empty disk or an old copy in that time: those count incarnations
        anew, so equal numbers do not mean one process."""
        is_so = any(
            fault.kind in REPLACED and fault.target == node and start_us <= fault.at_us <= end_us
            for fault in self._recorded.faults
        )
        return self._take("replaced", if_=is_so)

    def may_lack(self, node: str, at_us: int) -> bool:
        """Whether a fault took something from its disk that it has not made good by then."""
        spans = self._lacking.get(node, ())
        return self._take("lacking", if_=any(start <= at_us <= end for start, end in spans))

    @cached_property
    def _lacking(self) -> dict[str, list[Span]]:
        """Node -> spans. A flipped bit may be found at any later start of that disk."""
        kinds = _FSYNC_LOSES if self._recorded.is_fsync else _MEMORY_LOSES
        spans: defaultdict[str, list[Span]] = defaultdict(list)
        for fault in self._recorded.faults:
            # A copy that is put back ends its fault, and that is when its node forgets.
            if fault.kind not in kinds or not (fault.is_begin or fault.kind == "disk_stale"):
                continue
            named = self._recorded.lines if fault.target == "all" else fault.target.split(",")
            for node in named:
                since_us: int | None = fault.at_us
                if fault.kind in DAMAGED:
                    since_us = self._emptied_us(node, fault.at_us)
                until_us = None if since_us is None else self._rejoined_us(node, since_us)
                spans[node].append((fault.at_us, _NEVER if until_us is None else until_us))
        return spans

    def _emptied_us(self, node: str, since_us: int) -> int | None:
        """When a disk was replaced by an empty one; a copy may have a flipped bit, too."""
        lost = (
            fault.at_us
            for fault in self._recorded.faults
            if fault.kind == "disk_lost" and fault.target == node and fault.at_us >= since_us
        )
        return min(lost, default=None)

    def _rejoined_us(self, node: str, since_us: int) -> int | None:
        """When a node was outside of the set and had registered again, both after a moment."""
        recorded = self._recorded
        names = [key for key, name in recorded.replica_nodes.items() if name == node]
        for group, replica in names:
            registered_us = next(
                (
                    ruling.at_us
                    for ruling in recorded.rulings_of(group, "replica_registered")
                    if ruling.at_us > since_us and ruling.members["replica"] == replica
                ),
                None,
            )
            if registered_us is None:
                continue
            timeline = recorded.timeline(group)
            first = max(0, bisect_right(timeline.ats, registered_us) - 1)
            pairs = zip(timeline.ats[first:], timeline.sets[first:], strict=True)
            outside_us = next((at for at, members in pairs if replica not in members), None)
            if outside_us is not None:
                return max(outside_us, registered_us)
        return None

    # -- dumps ------------------------------------------------------------------------------------

    def lacks_in_the_end(self, node: str) -> bool:
        """As `may_lack`, when the run is over."""
        return self.may_lack(node, _NEVER)

    def explains_damage(self, dump: ReplicaDump) -> bool:
        """Whether a dump is hurt, and a fault has damaged the disk that it is of."""
        if not self.is_hurt(dump):
            return False
        faults = self._recorded.faults
        flips = [f.at_us for f in faults if f.kind in DAMAGED and dump.node in f.target.split(",")]
        is_left = any(self._emptied_us(dump.node, at_us) is None for at_us in flips)
        return self._take("damage", if_=is_left)

    def is_hurt(self, dump: ReplicaDump) -> bool:
        """Whether something of a log is not there, whoever is to blame."""
        is_short = dump.end < dump.confirm or dump.start > self.deleted_below(dump.group)
        return dump.damage is not None or is_short

    def is_tear(self, dump: ReplicaDump) -> bool:
        """Whether a damaged end is one that a start would have cut."""
        line = self._recorded.lines.get(dump.node)
        served = [p.at_us for p in (line.probes if line else ()) if p.role in SERVING]
        last_us = max(served, default=-1)
        went_down = any(
            fault.kind in _ENDS_PROCESS
            and fault.at_us >= last_us
            and (fault.target == "all" or dump.node in fault.target.split(","))
            for fault in self._recorded.faults
        )
        return self._take("tear", if_=went_down and dump.end >= dump.confirm)

    def are_all_damaged(self, group: str) -> bool:
        """Whether faults have damaged the copy of every member."""
        recorded = self._recorded
        nodes = {dump.node for dump in recorded.dumps_of.get(group, ())} or recorded.nodes_of(group)
        sets = recorded.timeline(group).sets
        if sets:
            nodes = {recorded.replica_nodes.get((group, replica), "") for replica in sets[-1]}
        spans = self._lacking
        is_so = all(any(end == _NEVER for _, end in spans.get(node, ())) for node in nodes)
        return self._take("all_damaged", if_=bool(nodes) and is_so)

    # -- retention --------------------------------------------------------------------------------

    def deleted_below(self, group: str) -> int:
        """The position below which a log of a group may be deleted: what the highest retention
        record says that some log knows as confirmed (R26). One that nobody confirmed excuses
        nothing."""
        return self._deleted_below.get(group, 0)

    @cached_property
    def _deleted_below(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for dump in self._recorded.all_dumps:
            for batch in dump.batches:
                if batch.log_start and batch.position + batch.size <= dump.confirm:
                    found[dump.group] = max(found.get(dump.group, 0), batch.log_start)
        return found
