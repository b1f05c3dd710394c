"""Who comes back with another disk than it had: when it counts again, and when it stands still.

An old copy and an empty disk catch up over a slow link before they are counted (R10). A master that
is an old copy stands still while it is a member, and follows once it is none (R16). A store whose
state is lost, or whose damage nobody can mend, sets its data aside and begins anew (R5, R14).
"""

from collections.abc import Callable, Iterator
from functools import partial

from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.nodes import DATA, BrokerNode
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Condition, Director, Steps
from paceline_chaos.cluster_sim.scripts.cluster.keeping import node_start, put_pin
from paceline_chaos.history.model import FaultEvent

_LINK_MS = 120
"""One way, between a replica that comes back and its master: catching up is long enough to see."""
_COPY_AGE_MS = 300
"""Less than a second: the controllers hear each second how far confirm is, and a copy that ends
below that would be turned away before it could be elected (R16)."""
_AWAY_MS = 1_200
_SILENT_MS = 3_000
"""Longer than the old copy leads."""
_LONG_AWAY_MS = 6_000
"""Until the others have filled segments enough that the first ones go."""
_STILL_MS = 400
"""So long a stood-still member is watched, before another replica lets the group do without it."""


# -- an old copy, and an empty disk ----------------------------------------------------------------


def returns(d: Director) -> Steps:
    """A replica returns with a copy of its disk of two seconds ago, another one with nothing."""
    yield d.is_whole
    yield d.pass_ms(500)
    for kind, node, for_ms in (
        ("disk_stale", d.replicas[0], 2_000),
        ("disk_lost", d.replicas[1], 1_000),
    ):
        d.begin(kind, node.name, for_ms=for_ms)
        yield partial(_is_out, d, node)
        d.begin("slow_link", node.name, other=d.master.name, for_ms=2_500, delay_ms=_LINK_MS)
        owed = int(d.status(d.master)["confirm"])
        yield _watched_until_member(d, node, owed)
        d.saw("returns")
        yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


def _is_out(d: Director, node: BrokerNode) -> bool:
    committed = d.committed()
    return bool(committed) and node.name not in committed


def _watched_until_member(d: Director, node: BrokerNode, owed: int) -> Condition:
    """It is in the set again; and at each look it was not, as long as it lacked what it owes."""

    def look() -> bool:
        status = node.status()
        if status is None:
            return False
        is_member = not _is_out(d, node)
        has_caught_up = int(status["flushed"]) >= owed
        if not has_caught_up:
            d.saw("looks at one that has not caught up")
            whole = f"{node.name} counts before it has caught up (R10)"
            d.expect(not is_member or whole in d.notes.wrong, whole)
        return is_member and has_caught_up

    return look


def have_returned(result: Result) -> list[str]:
    return [
        *unseen(result, returns=2, looks_at_one_that_has_not_caught_up=100),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]


# -- a master that is an old copy ------------------------------------------------------------------


def stale_master(d: Director) -> Steps:
    """Two members are left; both stop, and the master alone comes back, with a copy so fresh that
    it is elected. The other one knows of more that is confirmed: a pin, as nothing that a client
    was told of may be missing on a master (INV-12)."""
    yield d.is_whole
    stale, (other, third) = d.master, d.replicas
    third.hold()
    third.kill()
    yield lambda: _is_out(d, third)
    floor = _floor(d)
    yield lambda: _floor(d) > floor
    for client in ("client-1", "client-2"):
        d.begin("pause", client, for_ms=_SILENT_MS)
    yield d.pass_ms(100)
    end = int(d.status(stale)["end"])
    d.begin("disk_stale", stale.name, for_ms=_COPY_AGE_MS)
    put_pin(d, 0)
    yield lambda: not stale.is_running
    d.expect(int(d.status(other)["confirm"]) > end, "nothing was confirmed behind the copy")
    d.begin("stop", other.name, for_ms=_AWAY_MS)
    yield lambda: d.mastership_of(stale) is not None
    d.saw("masters that are old copies")
    yield lambda: stale.broker is not None and d.status(stale)["stopped"] is not None
    d.saw("standstills")
    start = stale.incarnation
    yield lambda: d.mastership_of(other) is not None
    yield _watched_still(d, stale, d.pass_ms(_STILL_MS))
    third.release()
    yield _watched_still(d, stale, lambda: _is_out(d, stale))
    yield d.is_whole
    d.expect(stale.incarnation == start, "it came back by being started again, not by itself")
    d.mark("after")
    yield d.pass_ms(500)


def _floor(d: Director) -> int:
    group = d.stage.group_state(GROUP)
    return 0 if group is None else int(group.confirm_floor)


def _watched_still(d: Director, node: BrokerNode, condition: Callable[[], bool]) -> Condition:
    """`condition`; and as long as the node is a member it stands still."""

    def look() -> bool:
        if not _is_out(d, node) and node.broker is not None:
            whole = f"{node.name} moves while the group may count on it (R16)"
            is_still = d.status(node)["stopped"] is not None
            d.expect(is_still or whole in d.notes.wrong, whole)
        return condition()

    return look


def was_deposed(result: Result) -> list[str]:
    return [
        *unseen(result, masters_that_are_old_copies=1, standstills=1),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]


# -- a state that is lost --------------------------------------------------------------------------


def state_lost(d: Director) -> Steps:
    """A replica's log begins above 0, and no checkpoint of its state is intact."""
    yield d.is_whole
    yield lambda: all(node_start(d, node) > 0 for node in d.stage.group(GROUP))
    node = d.replicas[0]
    node.hold()
    node.kill()
    for path in _checkpoints(node):
        node.disk.flip_bit(path, 30)
        d.saw("damaged checkpoints")
    d.stage.recorder.add(
        FaultEvent, kind="disk_flip", target=node.name, is_begin=True, detail="its checkpoints"
    )
    yield lambda: _is_out(d, node)
    node.release()
    yield lambda: node.broker is not None and d.status(node)["stopped"] is not None
    d.saw("standstills")
    d.expect(_is_out(d, node), "a store without its state is a member (R14)")
    start = node.incarnation
    yield d.is_whole
    d.expect(node.incarnation == start, "it came back by being started again, not by itself")
    d.expect(any(_aside(node)), "the log was given up, not set aside (R5)")
    ours, theirs = d.projections(node), d.projections(d.master)
    d.expect(ours.topics == theirs.topics, f"{node.name} has not its master's state (R14)")
    d.mark("after")
    yield d.pass_ms(500)


def deleted_elsewhere(d: Director) -> Steps:
    """A replica is away; its disk loses what retention then takes from all others (R24, R26)."""
    yield d.is_whole
    node = d.replicas[0]
    yield lambda: node_start(d, node) > 0  # what is durable is noted as that by then
    start = node_start(d, node)
    d.kill(node, for_ms=_LONG_AWAY_MS)
    d.begin("disk_missing", node.name, for_ms=1, which=1)
    yield lambda: node_start(d, d.master) > start
    yield lambda: node.broker is not None and node.broker.role.repairer.damage is not None
    d.saw("damages")
    yield d.is_whole
    d.expect(any(_aside(node)), "the log was given up, not set aside (R5)")
    d.mark("after")
    yield d.pass_ms(500)


def _checkpoints(node: BrokerNode) -> list[str]:
    folder = f"{DATA}/projections"
    return [f"{folder}/{name}" for name in node.disk.list(folder) if name.endswith(".ckpt")]


def _aside(node: BrokerNode) -> Iterator[str]:
    return (name for name in node.disk.list(f"{DATA}/log") if name.endswith(".aside"))


def gave_up_its_damage(result: Result) -> list[str]:
    return [*unseen(result, damages=1), *fell_silent(result, since="after")]


def began_anew(result: Result) -> list[str]:
    return [
        *unseen(result, damaged_checkpoints=1, standstills=1),
        *fell_silent(result, since="after"),
    ]
