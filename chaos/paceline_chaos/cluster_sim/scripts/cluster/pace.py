"""Who leaves the set, and for what (R12)."""

from dataclasses import replace

from paceline_broker.storage.store import Store
from paceline_chaos.cluster_sim.all_ack.questions import acknowledged, fell_silent, unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps
from paceline_chaos.cluster_sim.topology import FAST

PATIENT = replace(FAST, heartbeat_timeout_ms=4_000, replica_lag_ms_max=900)
"""A master may stall for longer than a replica may lag, and is not replaced for it."""
SHORT_MS = 450
STALL_MS = 1_800
_DEAD_MS = 2_000
_SILENT_MS = 2_400
"""Less than `progress_timeout_ms`: no other master comes to drop who is gone (R6)."""
SLOW_FAILOVER_MS, SLOW_SYNC_MS = 12_000, 700
SLOW_MS, SYNC_MS = 9_000, 1_700
"""Longer than `disk_stall_ms`; two such syncs are longer than `replica_lag_ms_max`."""
_DECIDED_MS = 700
"""A probe, of which the next comes after half a second, and a command to the controllers."""


def short_silence(d: Director) -> Steps:
    """Less than `replica_lag_ms_max`: everybody waits; and a port that answers is no refusal."""
    yield d.is_whole
    yield d.pass_ms(300)
    for replica in d.replicas:
        d.begin("pause", replica.name, for_ms=SHORT_MS)
        yield d.pass_ms(SHORT_MS + 300)
        d.begin("reset", replica.name, for_ms=1)
        d.saw("silences")
        yield d.pass_ms(500)
    yield d.is_whole
    d.mark("after")


def own_stall(d: Director) -> Steps:
    """The master stands still for longer than a replica may lag."""
    for _ in range(2):
        yield d.is_whole
        yield d.pass_ms(300)
        d.begin("pause", d.master.name, for_ms=STALL_MS)
        d.saw("silences")
        yield d.pass_ms(STALL_MS + 400)
    yield d.is_whole
    d.mark("after")


def gone(d: Director) -> Steps:
    """A member dies, then another one falls silent: the master goes on without each of them."""
    yield d.is_whole
    yield d.pass_ms(300)
    dead, silent = d.replicas
    d.mark("dead")
    d.kill(dead, for_ms=_DEAD_MS)
    yield d.pass_ms(_DECIDED_MS)
    d.expect(dead.name not in d.committed(), "a dead member keeps its place (R12)")
    d.saw("gone")
    yield d.is_whole
    yield d.pass_ms(300)
    d.mark("silent")
    d.begin("pause", silent.name, for_ms=_SILENT_MS)
    yield d.pass_ms(FAST.replica_lag_ms_max + _DECIDED_MS)
    d.expect(silent.name not in d.committed(), "a silent member keeps its place (R12)")
    d.saw("gone")
    d.mark("decided")
    yield d.pass_ms(500)
    d.mark("back")
    yield d.is_whole
    d.mark("after")


def slow_disks(d: Director) -> Steps:
    """The disks of all brokers take longer for a sync than a disk may stall."""
    yield d.is_whole
    yield d.pass_ms(300)
    d.mark("slow")
    _slow_all(d, for_ms=SLOW_MS, sync_ms=SYNC_MS)
    for _ in range(SLOW_MS // 500 - 1):
        yield d.pass_ms(500)
        d.expect(d.is_open(), "sends are refused because members are as slow as the master (R12)")
    d.mark("decided")
    yield d.pass_ms(1_000)
    yield d.is_whole
    d.mark("after")


def _slow_all(d: Director, *, for_ms: int, sync_ms: int) -> None:
    for node in (d.master, *d.replicas):
        d.begin("disk_stall", node.name, for_ms=for_ms, delay_ms=sync_ms)
        d.saw("silences")


def slow_alone(d: Director) -> Steps:
    """The master's disk does, and no other."""
    yield d.is_whole
    yield d.pass_ms(300)
    slow = d.master
    d.begin("disk_stall", slow.name, for_ms=SLOW_MS, delay_ms=SYNC_MS)
    yield d.pass_ms(SYNC_MS)
    d.expect(d.master is not slow, "a master on a slow disk leads on, beside good ones (R22)")
    yield d.pass_ms(SLOW_MS)
    yield d.is_whole
    d.mark("after")


def slow_failover(d: Director) -> Steps:
    """The master dies while all disks are slow: its successor needs a few syncs for its epoch."""
    yield d.is_whole
    yield d.pass_ms(300)
    _slow_all(d, for_ms=SLOW_FAILOVER_MS, sync_ms=SLOW_SYNC_MS)
    yield d.pass_ms(3 * SLOW_SYNC_MS)
    old, epoch = d.master, int(d.status(d.master)["epoch"])
    d.kill(old, for_ms=1_500)
    yield lambda: bool(_adopting(d))
    yield d.pass_ms(2.5 * SLOW_SYNC_MS)  # one of the two files has its new content
    stores = _adopting(d)
    for store in stores:
        store.replace_bad_side_files()
        d.saw("adoptions")
    yield lambda: d.stage.master(GROUP) not in (None, old) and d.is_open()
    elections = int(d.status(d.master)["epoch"]) - epoch
    d.expect(elections == 1, f"{elections} elections after one death (R6)")
    for store in stores:
        d.expect(not store.replace_bad_side_files(), "an epoch that was adopted was undone (R2)")
    d.mark("after")
    yield d.pass_ms(1_000)
    yield d.is_whole


def _adopting(d: Director) -> list[Store]:
    """Of brokers that write down a new epoch; asked beneath the property that a mutant replaces."""
    stores = [node.broker._store for node in d.running if node.broker is not None]
    return [store for store in stores if store.identity._is_adopting]


def went_on_after_it(result: Result) -> list[str]:
    return [*unseen(result, silences=3, adoptions=1), *fell_silent(result, since="after")]


def went_on_slowly(result: Result) -> list[str]:
    """As nobody is better, nobody leaves and nobody else leads; sends go on (R12, R22)."""
    went_on = acknowledged(result, since="slow", until="decided")
    return [
        *nobody_left(result),
        *([] if went_on else ["nothing was acknowledged while all disks were slow"]),
    ]


def was_replaced(result: Result) -> list[str]:
    return fell_silent(result, since="after")


def slow_member(d: Director) -> Steps:
    """A member goes on acknowledging, but its disk ends no sync: all wait for it, then go on."""
    yield d.is_whole
    yield d.pass_ms(300)
    slow = d.replicas[0]
    d.begin("disk_stall", slow.name, for_ms=SLOW_MS, delay_ms=SLOW_MS)
    yield d.pass_ms(FAST.replica_lag_ms_max + _DECIDED_MS)
    d.expect(slow.name not in d.committed(), "a member that stays behind keeps its place (R12)")
    d.saw("gone")
    d.mark("decided")
    yield d.pass_ms(SLOW_MS - 2_000)
    d.expect(slow.name not in d.committed(), "a member that stays behind comes back (R10)")
    d.mark("back")
    yield d.pass_ms(2_500)
    yield d.is_whole
    d.mark("after")


def was_left_out(result: Result) -> list[str]:
    """It left once, and sends went on under the same master (R12)."""
    counters = result.verdict.counters
    went_on = acknowledged(result, since="decided", until="back")
    return [
        *unseen(result, gone=1),
        *([f"{counters['elections']} elections"] if counters.get("elections") else []),
        *([f"{counters['shrinks']} shrinks"] if counters.get("shrinks", 0) > 1 else []),
        *([] if went_on else ["nothing was acknowledged without the slow one"]),
        *fell_silent(result, since="after"),
    ]


def was_left_behind(result: Result) -> list[str]:
    """Sends went on meanwhile, under the same master (R12)."""
    elections = result.verdict.counters.get("elections", 0)
    went_on = acknowledged(result, since="decided", until="back")
    return [
        *unseen(result, gone=2),
        *([f"{elections} elections that nobody needed"] if elections else []),
        *([] if went_on else ["nothing was acknowledged without the silent one"]),
        *fell_silent(result, since="after"),
    ]


def nobody_left(result: Result) -> list[str]:
    """Nothing called for a change of the set, nor for an election (R12)."""
    counters = result.verdict.counters
    return [
        *unseen(result, silences=2),
        *[
            f"{counters[name]} {name} that nobody needed"
            for name in ("shrinks", "elections")
            if counters.get(name)
        ],
        *fell_silent(result, since="after"),
    ]
