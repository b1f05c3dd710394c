"""Nobody can lead, and a replica that is no member acts as master until somebody can (R36)."""

from typing import Any

from paceline_broker.acting.offsets import Provisional
from paceline_broker.projections.locks import Withheld
from paceline_broker.role.acting_term import ActingTerm
from paceline_chaos.cluster_sim.all_ack.questions import (
    acknowledged,
    fell_silent,
    unequal_logs,
    unseen,
)
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.cluster_sim.scripts.cluster.waiting import all_checkpointed
from paceline_chaos.history.model import Deliver, Lock, Outcome

AWAY_MS = 9_000
"""The members': an appointment, one lease, and some work."""
_DEAD_MS = 300
_STEP_MS = 3_600_000
LATE_MS = 700
"""Until the record that withholds is confirmed, and has come to a replica."""


def acting(d: Director) -> Steps:
    """The set shrinks, its members die, who had left it comes back alone."""
    yield d.is_whole
    yield d.pass_ms(800)
    other = d.replicas[0]
    yield lambda: bool(d.projections(other).offsets.groups())
    d.begin("pause", other.name, for_ms=1_500)
    yield lambda: other.name not in d.committed()
    yield d.pass_ms(400)  # so that the others know more than it will
    d.kill(*(node for node in d.stage.group(GROUP) if node is not other), for_ms=AWAY_MS)
    d.mark("dead")
    yield lambda: _term(other) is not None
    d.mark("acting")
    d.saw("an acting master")
    end = d.status(other)["end"]
    yield lambda: len(_kept(other)) > 0 and _has_granted(other)
    d.mark("locks")
    yield d.pass_ms(1_000)
    d.expect(_term(other) is not None, "it acted no more while nobody could lead")
    d.expect(d.status(other)["end"] == end, "an acting master appended something")
    kept = _kept(other)
    yield lambda: d.is_open()
    d.mark("back")
    d.expect(_term(other) is None or d.stage.master(GROUP) is not None, "two of them")
    withheld = d.projections(d.master).locks.withheld
    d.expect(withheld.leases_ms > 0, "the next master grants locks at once")
    d.expect(not d.projections(d.master).locks.to_json(), "an older token outlived the epoch")
    yield lambda: len(_kept(other)) == 0
    d.saw("offsets handed over")
    offsets = d.projections(d.master).offsets
    for (group, key), provisional in kept.items():
        committed = offsets.get(group, key)
        d.expect(
            committed is not None
            and (committed.generation, committed.offset)
            >= (provisional.generation, provisional.offset),  # a client's reset wins (R33)
            f"{group} had committed {provisional.offset} and has {committed} with a master",
        )
    yield d.is_whole
    yield from _all_restarted(d)
    yield from _elected_again(d, d.projections(d.master).locks.withheld)
    yield from _elected_on_wrong_clocks(d)
    d.mark("whole")
    yield d.pass_ms(500)


def _elected_again(d: Director, withheld: Withheld) -> Steps:
    """One more election while locks are withheld: the time that is over counts, and no more."""
    yield d.pass_ms(2_500)
    old = d.master
    left_ms = withheld.until_unix_ms - d.projections(old).log_time_ms
    d.expect(left_ms > 2_000, "too little is left of what was withheld to tell")
    d.kill(old, for_ms=1_000)
    yield lambda: d.stage.master(GROUP) not in (None, old) and d.is_open()
    again = d.projections(d.master).locks.withheld
    later_ms = again.until_unix_ms - withheld.until_unix_ms
    d.expect(later_ms > -LATE_MS, f"an election made locks free {-later_ms} ms too early")
    d.expect(later_ms < LATE_MS, f"an election withheld locks for {later_ms} ms more")
    d.saw("a second election")
    yield d.is_whole


def _left_ms(d: Director) -> int:
    """For so long, in log time, the master grants no lock."""
    found = d.projections(d.master)
    return found.locks.withheld.until_unix_ms - found.log_time_ms


def _all_restarted(d: Director) -> Steps:
    """Nobody remembers what has passed, and the log's start record is behind a checkpoint."""
    yield all_checkpointed(d)
    left_ms, before_us = _left_ms(d), d.now_us
    d.expect(left_ms > _DEAD_MS + LATE_MS, "too little is left of what was withheld to tell")
    d.kill(*d.running, for_ms=_DEAD_MS)
    yield lambda: d.stage.master(GROUP) is None
    yield d.is_whole
    later_ms = _left_ms(d) - left_ms + (d.now_us - before_us) // 1000
    d.expect(later_ms > -LATE_MS, f"restarts made locks free {-later_ms} ms too early")
    d.saw("restarts")


def _elected_on_wrong_clocks(d: Director) -> Steps:
    """Log time goes forward by an hour at once; leases have not run for so long."""
    old = d.master
    for node in d.replicas:
        d.begin("clock_step", node.name, for_ms=1, offset_ms=_STEP_MS)
    left_ms, before_us = _left_ms(d), d.now_us
    d.expect(left_ms > LATE_MS, "too little is left of what was withheld to tell")
    d.kill(old, for_ms=1_000)
    yield lambda: d.stage.master(GROUP) not in (None, old) and d.is_open()
    later_ms = _left_ms(d) - left_ms + (d.now_us - before_us) // 1000
    d.expect(later_ms > -LATE_MS, f"a wrong clock made locks free {-later_ms} ms too early")
    d.saw("a wrong clock")
    yield d.is_whole


def acted(result: Result) -> list[str]:
    assert result.notes is not None
    marks = result.notes.marks
    meanwhile = (marks.get("acting", 0), marks.get("back", 0))
    delivered = _during(result, Deliver, meanwhile)
    early = _during(result, Lock, (marks.get("acting", 0), marks.get("acting", 0) + 1_900_000))
    sent = [
        send for send in acknowledged(result, since="acting") if send.answered_us < marks["back"]
    ]
    return [
        *unseen(
            result,
            an_acting_master=1,
            offsets_handed_over=1,
            a_second_election=1,
            restarts=1,
            a_wrong_clock=1,
        ),
        *([] if delivered else ["nobody was handed a message by the acting master"]),
        *([] if _during(result, Lock, meanwhile) else ["nobody got a lock of it"]),
        *([f"{early[0].member} had a lock before one lease was over"] if early else []),
        *([f"{sent[0].value} was acknowledged without a master"] if sent else []),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]


def _during(result: Result, kind: type[Any], span: tuple[int, int]) -> list[Any]:
    return [
        entry
        for entry in result.history.entries
        if isinstance(entry, kind)
        and entry.outcome is Outcome.OK
        and span[0] < entry.asked_us <= entry.answered_us < span[1]
    ]


def _term(node: BrokerNode) -> ActingTerm | None:
    return None if node.broker is None else node.broker.role.acting


def _has_granted(node: BrokerNode) -> bool:
    term = _term(node)
    return term is not None and term.locks.has_granted


def _kept(node: BrokerNode) -> dict[tuple[str, int], Provisional]:
    if node.broker is None:
        return {}
    offsets = node.broker.acting_offsets
    found = {}
    for group in offsets.groups():
        for key, kept in offsets.rows(group).items():
            found[group, key] = kept
    return found
