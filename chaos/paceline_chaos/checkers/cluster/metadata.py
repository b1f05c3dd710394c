"""Pure: what the controllers decide and say: S18 and S32."""

from collections import defaultdict
from typing import TypeAlias

from paceline_chaos.checkers.cluster.linearizability import Model, stuck_at
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import ControllerDump, CreateTopic, DescribeTopic, Outcome

_TopicOperation: TypeAlias = CreateTopic | DescribeTopic
_ANY = -1
"""Made by a create whose answer was lost: some id that nobody has seen yet."""


def topics_are_linearizable(evidence: Evidence) -> Findings:
    """S18: for each topic name, its creations and look-ups are linearizable as a register that is
    written once: nothing -> id. A creation says the id it made, or (repeated by its client after a
    lost answer) the id that is there; TOPIC_EXISTS says that there is one; other failures say
    nothing. No two names have one id. Wing and Gong with memory, each name by itself."""
    found = Findings("S18")
    by_name: defaultdict[str, list[_TopicOperation]] = defaultdict(list)
    names: dict[int, _TopicOperation] = {}
    operations: list[_TopicOperation] = [*evidence.creates, *evidence.describes]
    for operation in operations:
        if _says_something(operation):
            by_name[operation.topic].append(operation)
        if operation.outcome is Outcome.OK and operation.topic_id is not None:
            first = names.setdefault(operation.topic_id, operation)
            if first.topic != operation.topic:
                found.violate(
                    f"{first.topic} and {operation.topic} both have id {operation.topic_id}",
                    first,
                    operation,
                )
    for name, mine in by_name.items():
        found.judged += len(mine)
        stuck = stuck_at(mine, Model(0, _step))
        if stuck is not None:
            rest = [one for one in mine if one is not stuck and one.outcome is Outcome.OK]
            nearest = sorted(rest, key=lambda one: abs(one.answered_us - stuck.asked_us))[:3]
            found.violate(
                f"the answer to {stuck.client} on topic {name} fits no order of the operations",
                stuck,
                *nearest,
            )
    return found


def _says_something(operation: _TopicOperation) -> bool:
    if isinstance(operation, DescribeTopic):
        return operation.outcome is Outcome.OK
    return operation.outcome is not Outcome.FAIL or operation.error == "TOPIC_EXISTS"


def _step(state: int, operation: _TopicOperation) -> int | None:
    """State: 0 = no such topic, `_ANY`, or its id."""
    if operation.outcome is Outcome.FAIL:  # TOPIC_EXISTS
        return state or None
    if isinstance(operation, CreateTopic):
        if operation.outcome is Outcome.UNKNOWN:
            return state or _ANY
        return operation.topic_id if state in (0, _ANY, operation.topic_id) else None
    if operation.topic_id is None:
        return 0 if state == 0 else None
    return operation.topic_id if state in (_ANY, operation.topic_id) else None


def controllers_agree(evidence: Evidence) -> Findings:
    """S32 (INV-10): (a) controllers that applied one index noted the same events; (b) controllers
    that applied equally much have equal digests; (c) a digest equals that of a fresh machine which
    replayed the same controller's snapshot and journal. O(n)."""
    found = Findings("S32")
    noted: defaultdict[int, dict[str, dict[str, int]]] = defaultdict(dict)
    for decision in evidence.decisions:
        event = f"{decision.kind} {sorted(decision.members.items())!r}"
        noted[decision.index].setdefault(decision.node, {}).setdefault(event, decision.number)
    for index, nodes in noted.items():
        (first, events), *others = nodes.items()
        for node, mine in others:
            found.judged += 1
            if mine.keys() != events.keys():
                found.violate(
                    f"index {index} meant something else to {first} and to {node}",
                    *events.values(),
                    *mine.values(),
                )
    by_index: dict[int, ControllerDump] = {}
    for dump in evidence.controller_dumps:
        same = by_index.setdefault(dump.index, dump)
        found.judged += same is not dump or dump.replayed_digest is not None
        if same.digest != dump.digest:
            found.violate(
                f"{same.node} and {dump.node} differ, both at index {dump.index}", same, dump
            )
        if dump.replayed_digest not in (None, dump.digest):
            found.violate(f"the files of {dump.node} give another state than it had", dump)
    return found
