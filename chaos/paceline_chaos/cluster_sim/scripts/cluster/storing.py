"""Retention meets what waits: delayed messages and open halves, both at once (R14, R26, R34).

Segments go while both wait in the oldest ones, so both are stored again at the log's end, and again
when that part is old, and once more when all servers have died. Then half of the delayed messages
is taken back, by the handles of their first place, and the rest comes in time. Then each sort is
stored again for its own sake: the halves, which are committed, and other delayed messages.
"""

from paceline.records.header import pack_source
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, uncounted, unseen
from paceline_chaos.cluster_sim.jobs.holding import Holder, LaterHolder
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Condition, Director, Steps
from paceline_chaos.cluster_sim.scripts.cluster.waiting import all_checkpointed

SEGMENT_BYTES = 8 * 1024
_HELD = 4
_LATER_MS = 8_000
"""Long enough to be stored again twice, by retention that looks every half second."""
_ALONE_MS = 3_000
_DEAD_MS = 300


def stored_again(d: Director) -> Steps:
    """Stored again twice, all servers die, once more; the delayed messages end; again; the rest."""
    halves, later = Holder(_HELD), LaterHolder(_HELD, later_ms=_LATER_MS)
    may_recall, may_commit = [False], [False]
    yield d.is_whole
    d.stage.begin_tool(lambda around: halves.run(around, may_end=lambda: may_commit[0]))
    d.stage.begin_tool(lambda around: later.run(around, may_recall=lambda: may_recall[0]))
    yield lambda: halves.is_holding and later.is_holding and d.is_whole()
    later_is_over = d.pass_ms(_LATER_MS + 500)
    for _ in range(2):
        yield _moved(d)
        d.saw("moves")
    yield all_checkpointed(d)
    d.kill(*d.running, for_ms=_DEAD_MS)
    yield lambda: d.stage.master(GROUP) is None
    yield d.is_whole
    yield _moved(d)
    d.saw("moves")
    may_recall[0] = True
    yield lambda: later.recalled_count == _HELD // 2
    yield later_is_over
    yield _moved(d)
    d.saw("moves alone")
    may_commit[0] = True
    yield lambda: halves.committed_count == _HELD
    alone = LaterHolder(_HELD, later_ms=_ALONE_MS)
    d.stage.begin_tool(lambda around: alone.run(around, may_recall=lambda: False))
    yield lambda: alone.is_holding
    alone_is_over = d.pass_ms(_ALONE_MS + 500)
    yield _moved(d)
    d.saw("moves alone")
    yield alone_is_over
    d.mark("after")
    yield d.pass_ms(1_500)


def _waiting(d: Director) -> dict[str, set[int]]:
    """Where what waits lies now."""
    found = d.projections(d.master)
    timers, transactions = found.timers, found.transactions
    return {
        "timers": {entry.source for entry in timers.first_due(100)},
        "halves": {pack_source(half.position, half.number) for half in transactions.all_open()},
    }


def _moved(d: Director) -> Condition:
    """All that waits is there, and nothing of it where it lay, of either sort."""
    before = _waiting(d)

    def look() -> bool:
        if not d.is_open():
            return False
        now = _waiting(d)
        return all(
            len(now[sort]) == len(before[sort]) and not now[sort] & before[sort] for sort in before
        )

    return look


def ended_well(result: Result) -> list[str]:
    return [
        *unseen(result, moves=3, moves_alone=2),
        *uncounted(result, retentions=5, recalled=1),
        *fell_silent(result, since="after"),
    ]
