"""Pure: damage does not stay: L8."""

from collections import defaultdict
from typing import Any

from paceline_chaos.checkers.evidence.allowances import DAMAGED
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import FaultEvent


def damage_is_mended(evidence: Evidence) -> Findings:
    """L8: a broker whose log a fault has damaged has a whole one in the end, if `repair_us` have
    gone by since the last such fault, and since healing. Judged in worlds that verify whole logs
    (`scrub_ms`): elsewhere nobody need have read the place. Not of nodes that stay broken, and of
    groups of which some other working member has a whole log. O(logs + faults)."""
    found = Findings("L8")
    phases = {phase.name: phase for phase in evidence.phases}
    if not _is_verified(evidence.world) or "end" not in phases or "heal" not in phases:
        return found
    end_us, healed_us = phases["end"].at_us, phases["heal"].at_us
    broken = {name for phase in evidence.phases for name in phase.broken}
    last: dict[str, FaultEvent] = {}
    for fault in evidence.faults:
        if fault.kind in DAMAGED and fault.is_begin:
            for name in fault.target.split(","):
                last[name] = fault
    whole: defaultdict[str, set[str]] = defaultdict(set)
    dumps = [dump for dumps in evidence.dumps_of.values() for dump in dumps]
    for dump in dumps:
        if not evidence.allowances.is_hurt(dump) and dump.node not in broken:
            whole[dump.group].add(dump.node)
    for dump in dumps:
        damaged = last.get(dump.node)
        if damaged is None or dump.node in broken or not whole[dump.group] - {dump.node}:
            continue
        since_us = max(damaged.at_us, healed_us)
        if end_us - since_us < evidence.bounds.repair_us:
            continue
        found.judged += 1
        if evidence.allowances.is_hurt(dump):
            found.violate(
                f"the log of {dump.node} was damaged {(end_us - damaged.at_us) / 1e6:.1f} s before "
                f"the end, and is not mended: it has [{dump.start}, {dump.end}); {dump.damage}",
                damaged,
                dump,
            )
    return found


def _is_verified(world: Any) -> bool:
    return bool(world.get("scrub_ms"))
