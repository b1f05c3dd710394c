"""Nobody can lead, and what is due goes to another group; the next masters skip it (R36)."""

from paceline_broker.escape.escape import Escape
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.messages.escaping import came_twice
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unseen
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps

AWAY_MS = 7_000
"""The members': an appointment, and some time in which messages come due."""
PENDING, ESCAPED = 5, 3
UNHEARD_MS = 300
"""What is due so soon after the members died may have been delivered by them: its time counts from
when they stored it."""
LATER_MS = 3_800
"""A message that is due so much later finds the acting master at work."""


def escaping(d: Director) -> Steps:
    """The set shrinks, its members die, who had left it sends what is due; then two elections."""
    yield d.is_whole
    other = d.replicas[0]
    yield lambda: _is_there(other) and _due_later(d, other) >= PENDING
    d.begin("pause", other.name, for_ms=1_200)
    yield lambda: other.name not in d.committed()
    d.kill(*(node for node in d.stage.group(GROUP) if node is not other), for_ms=AWAY_MS)
    d.mark("dead")
    yield lambda: other.broker is not None and other.broker.role.acting is not None
    d.mark("acting")
    end = d.status(other)["end"]
    yield lambda: len(_escape(other).kept.notes) >= ESCAPED
    d.saw("escapes")
    yield d.pass_ms(1_000)
    d.expect(d.status(other)["end"] == end, "an acting master appended something")
    yield d.is_open
    d.mark("back")
    yield lambda: len(_escape(other).kept.notes) == 0
    d.expect(_escape(d.master).intake.skipped > 0, "the next master skipped nothing")
    d.saw("tellings")
    yield d.is_whole
    old = d.master
    d.kill(old, for_ms=1_000)
    yield lambda: d.stage.master(GROUP) not in (None, old) and d.is_open()
    d.saw("a second election")
    yield d.is_whole
    d.mark("whole")
    yield d.pass_ms(3_500)


def escaped(result: Result) -> list[str]:
    """Once each: but for what its own master delivered when the acting one did not hear any more,
    and R36 allows to come twice."""
    assert result.notes is not None
    counters, evidence = result.verdict.counters, Evidence(result.history, None)
    heard_us = result.notes.marks.get("dead", 0) + UNHEARD_MS * 1000
    twice = [
        value
        for value in sorted(came_twice(evidence))
        if (send := evidence.sent[value]).asked_us + send.delay_ms * 1000 > heard_us
    ]
    return [
        *unseen(result, escapes=1, tellings=1, a_second_election=1),
        *(
            f"nothing was judged of it: {name}"
            for name in ("escaped", "skipped", "judged.S38")
            if not counters.get(name)
        ),
        *([f"{twice} came twice, though the next master was told"] if twice else []),
        *fell_silent(result, since="whole"),
    ]


def _is_there(node: BrokerNode) -> bool:
    return node.broker is not None


def _escape(node: BrokerNode) -> Escape:
    assert node.broker is not None, node.name
    return node.broker.escape


def _due_later(d: Director, node: BrokerNode) -> int:
    """What waits here, and will wait when somebody has been appointed."""
    assert node.broker is not None, node.name
    later_ms = node.machine.clock.unix_ms() + LATER_MS
    return sum(due.due_unix_ms > later_ms for due in d.projections(node).timers.first_due(1_000))
