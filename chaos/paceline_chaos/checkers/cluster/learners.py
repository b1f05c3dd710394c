"""Pure: who only listens: S33."""

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.parts import Ruling

_LEADING = frozenset({"master", "acting_master"})


def learners_are_in_no_set(evidence: Evidence) -> Findings:
    """S33 (R18, R36): of the nodes that the world names as learners no replica is in a set that was
    committed, none is elected or appointed as acting master, and none says that it leads.
    O(rulings + probes)."""
    found = Findings("S33")
    ids = {key for key, node in evidence.replica_nodes.items() if node in evidence.learners}
    for group in sorted({name for name, _ in ids}):
        learners = frozenset(replica for name, replica in ids if name == group)
        for ruling in evidence.rulings_of(group):
            _judge(found, ruling, learners)
    for probe in evidence.probes:
        if probe.node in evidence.learners:
            found.judged += 1
            if probe.role in _LEADING:
                found.violate(
                    f"{probe.node} is a learner and said that it is {probe.role} of epoch "
                    f"{probe.epoch}",
                    probe,
                )
    return found


def _judge(found: Findings, ruling: Ruling, learners: frozenset[int]) -> None:
    members = ruling.sync_state_set or frozenset()
    found.judged += bool(members)
    for replica in sorted(learners & members):
        found.violate(
            f"replica {replica} of {ruling.group} is a learner, and the set became "
            f"{sorted(members)}",
            ruling.number,
        )
    for role, kind in (("master", "master_elected"), ("acting", "acting_master_appointed")):
        if ruling.kind == kind and ruling.members[role] in learners - members:
            found.violate(
                f"replica {ruling.members[role]} of {ruling.group} is a learner, and {kind} names "
                f"it",
                ruling.number,
            )
