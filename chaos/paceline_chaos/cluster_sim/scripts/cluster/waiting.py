"""All power is gone while messages wait: for their time, their commit, their receiver, their retry.

What waits is state of a master that is in no queue yet: it is there again because it is in the log,
or in a checkpoint that names what the log said (R14, R26, R34, INV-9). The second time power goes
when a master has just made deliveries that nobody has confirmed. That everything then comes once,
not early and not in vain, is S5, S23, S24, S25 and S29.

Most halves are ended before a checkpoint is over them. So the script holds some of its own open
until every member has one above them, and commits them when power is back: who restores a
checkpoint without them says that there are none (S24).
"""

from paceline.wire.names import dlq_topic
from paceline_broker.projections.consume_queues import queue_key
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.consuming import PUSH_GROUP
from paceline_chaos.cluster_sim.jobs.holding import Holder
from paceline_chaos.cluster_sim.jobs.popping import POP_GROUP
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Condition, Director, Steps
from paceline_chaos.cluster_sim.topology import FAST

_DARK_MS = 400
"""Less than the invisible time of receipts: they are judged by what was before."""
_CHECKPOINTED_MS = FAST.checkpoint_interval_ms + 500
_TIMERS, _HALVES, _RECEIPTS, _LETTERS = 8, 2, 2, 1
_HELD = 3


def waiting(d: Director) -> Steps:
    """Power goes twice; then what waited comes."""
    holder, is_back = Holder(_HELD), [False]
    yield d.is_whole
    yield lambda: _all_wait(d)
    d.stage.begin_tool(lambda around: holder.run(around, may_end=lambda: is_back[0]))
    yield d.pass_ms(_CHECKPOINTED_MS)
    yield lambda: holder.is_holding and d.is_whole()
    yield all_checkpointed(d)
    yield lambda: _all_wait(d)
    _dark(d)
    yield lambda: d.stage.master(GROUP) is None
    yield d.is_whole
    d.saw("returns")
    is_back[0] = True
    yield lambda: holder.committed_count == _HELD
    d.saw("commits of what was held")
    yield _deliveries_unconfirmed(d)
    _dark(d)
    yield lambda: d.stage.master(GROUP) is None
    yield d.is_whole
    d.saw("returns")
    d.mark("after")


def _all_wait(d: Director) -> bool:
    """Whether the master has something of each sort that waits, and a dead letter."""
    if d.stage.master(GROUP) is None:
        return False
    found, letters = d.projections(d.master), d.topic(dlq_topic(PUSH_GROUP))
    if letters is None:
        return False
    receipts = sum(
        found.receipts.open_count(POP_GROUP, key) for key in found.receipts.of_group(POP_GROUP)
    )
    return (
        len(found.timers) >= _TIMERS
        and len(list(found.transactions.all_open())) >= _HALVES
        and receipts >= _RECEIPTS
        and found.queue_end(queue_key(letters.topic_id, 0)) >= _LETTERS
    )


def all_checkpointed(d: Director) -> Condition:
    """Every member has a checkpoint above all that the master has confirmed by now."""
    confirm = int(d.status(d.master)["confirm"])

    def look() -> bool:
        return all(
            node.broker is not None and d.status(node)["checkpoint"] > confirm
            for node in d.stage.group(GROUP)
        )

    return look


def _deliveries_unconfirmed(d: Director) -> Condition:
    """The master has put more into queues than came to wait, and confirm has not followed."""
    last = 0

    def look() -> bool:
        nonlocal last
        if not d.is_open():
            return False
        before, last = last, len(d.projections(d.master).timers)
        return last < before and d.unconfirmed_bytes(d.master) > 0

    return look


def _dark(d: Director) -> None:
    """Every server at one moment; what was not synced is lost."""
    for name in d.stage.topology.nodes():
        d.begin("power", name, for_ms=_DARK_MS)
    d.saw("cuts of all power")


def was_delivered(result: Result) -> list[str]:
    return [
        *unseen(result, cuts_of_all_power=2, returns=2, commits_of_what_was_held=1),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
