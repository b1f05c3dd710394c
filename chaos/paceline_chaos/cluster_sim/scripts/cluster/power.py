"""Controllers lose power with something just acknowledged (INV-10, R22); a sync fails (R22)."""

from contextlib import suppress
from functools import partial

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline.platform.runtime import pause
from paceline.types import TopicName
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unseen
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.nodes import ControllerServer
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Condition, Director, Steps

_TURNS = 3
_DARK_MS = 200
_CUT_MS = 1_500
_LONG_MS = 3_000
_WATCHED_MS = 1_500


def dark(d: Director) -> Steps:
    """A topic is made; in the moment in which the operator knows it, no controller is left."""
    for turn in range(_TURNS):
        yield d.is_whole
        yield d.pass_ms(200)
        name = TopicName(f"promised-{turn}")

        async def make(around: Around, name: TopicName = name) -> None:
            await around.as_admin(lambda admin: admin.topics.create(name, queues=1))
            d.saw(name)

        d.stage.begin_tool(make)
        yield lambda name=name: d.notes.seen[name] > 0  # type: ignore[misc]
        d.begin("power", "controllers", for_ms=_DARK_MS)
        d.saw("dark")
        yield lambda: d.stage.leader() is None
        yield lambda: d.stage.leader() is not None
        d.expect(d.topic(name) is not None, "what the controllers had promised is gone (INV-10)")
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


def failed_sync(d: Director) -> Steps:
    """A sync of the master fails with messages under way, then one of a replica: neither counts any
    more, however well the next sync goes, until it is started again."""
    for is_master in (True, False):
        yield d.is_whole
        yield lambda: d.unconfirmed_bytes(d.master) > 0
        node = d.master if is_master else d.replicas[0]
        d.begin("disk_fail", node.name, for_ms=1, count=1, call=0)
        yield lambda node=node: not node.disk.is_failing  # type: ignore[misc]
        d.saw("failed syncs")
        yield lambda node=node: node.name not in d.committed()  # type: ignore[misc]
        yield d.pass_ms(_WATCHED_MS)
        d.expect(node.name not in d.committed(), f"{node.name} counts after a failed sync (R22)")
        d.expect(d.is_open(), "nobody leads without the one whose sync failed")
        d.kill(node, for_ms=_DARK_MS)
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


def counted_no_more(result: Result) -> list[str]:
    return [*unseen(result, **{"failed syncs": 2}), *fell_silent(result, since="after")]


def second_try(d: Director) -> Steps:
    """A topic is made by two of three controllers, of which one fails the sync; then both are dark,
    and the one that has the topic for certain is so for longer."""
    for turn in range(_TURNS):
        yield d.is_whole
        yield d.pass_ms(200)
        leader = d.stage.leader()
        assert leader is not None
        failing, far = (node for node in d.stage.controllers.values() if node is not leader)
        near = f"{leader.name},{failing.name}"
        d.begin("cut", far.name, other=near, for_ms=_CUT_MS)
        d.begin("cut", far.name, other=near, for_ms=_CUT_MS, inbound=1)
        name = TopicName(f"promised-{turn}")
        d.stage.begin_tool(partial(_make_two, d, name))
        yield lambda name=name: d.notes.seen[f"before {name}"] > 0  # type: ignore[misc]
        # The next sync is that of the topic's own entry.
        d.begin("disk_fail", failing.name, for_ms=1, count=1, call=0)
        is_made = _is_applied(leader, name)
        yield lambda m=is_made, f=failing: m() or not f.is_running  # type: ignore[misc]
        was_committed = is_made()
        # At once: one more write to the same page, and its sync, would save what was lost.
        d.begin("power", leader.name, for_ms=_LONG_MS)
        d.begin("power", failing.name, for_ms=_DARK_MS)
        yield lambda: d.stage.leader() is not None
        is_there = d.topic(name) is not None
        d.expect(is_there or not was_committed, "a sync was believed after one that failed (R22)")
        d.saw("second try")
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


async def _make_two(d: Director, name: TopicName, around: Around) -> None:
    """The first one opens the session, so that the second one is a single entry."""

    async def make(admin: AdminClient) -> None:
        await admin.topics.create(f"before-{name}", queues=1)
        d.saw(f"before {name}")
        await pause(5)
        await admin.topics.create(name, queues=1)

    with suppress(PacelineError):  # nobody leads for longer than it tries
        await around.as_admin(make)


def _is_applied(node: ControllerServer, name: TopicName) -> Condition:
    def look() -> bool:
        controller = node.controller
        return controller is not None and name in controller.machine.topics

    return look


def was_not_believed(result: Result) -> list[str]:
    return [
        *unseen(result, second_try=_TURNS),
        *fell_silent(result, since="after"),
    ]


def was_kept(result: Result) -> list[str]:
    return [
        *unseen(result, dark=_TURNS),
        *fell_silent(result, since="after"),
    ]
