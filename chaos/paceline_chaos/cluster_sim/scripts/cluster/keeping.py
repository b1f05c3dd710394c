"""What retention must not touch: what no record gave up, a pin, a checkpoint; a wrong clock (R26).

Logs of a few small segments, of which the oldest go each half second. In every look, on every
broker: its log begins no higher than a confirmed retention record and its checkpoints allow.
"""

from collections.abc import Callable, Mapping

from paceline.records.header import Kind
from paceline_broker.projections.pins import PinRequest
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, uncounted, unseen
from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Condition, Director, Steps

_SEGMENT_BYTES = 16 * 1024
SMALL_LOGS: Mapping[str, int] = {
    "segment_size_bytes": _SEGMENT_BYTES,
    "log_bytes_max": 2 * _SEGMENT_BYTES,
}
"""What retention soon takes something from."""
HELD_MS = 2_000
"""Four looks of a cleaner, each of which would give something up."""
OWNER = "export"
CLOCK_AHEAD_MS = 3_600_000


def kept(d: Director) -> Steps:
    """Segments go; then a pin holds them, then a wrong clock; then a replica is far below."""
    yield d.is_whole
    yield _watched(d, lambda: all(node_start(d, node) > 0 for node in d.stage.group("g1")))
    d.saw("deletions")
    yield from _pinned(d)
    yield from _wrong_clock(d)
    yield from _far_below(d)
    d.mark("after")


def _pinned(d: Director) -> Steps:
    """While a pin stands nothing at or above it is given up; afterwards it goes on."""
    projections = d.projections(d.master)
    position = int(projections.log_start)
    put_pin(d, position)
    yield _watched(d, d.pass_ms(HELD_MS))
    d.expect(d.projections(d.master).log_start <= position, "a pinned position was given up (R26)")
    d.expect(OWNER in d.projections(d.master).pins.all(), "the pin fell before its lease ended")
    put_pin(d, None)
    yield _watched(d, lambda: d.projections(d.master).log_start > position)
    d.saw("pins")


def _wrong_clock(d: Director) -> Steps:
    """A master whose clock is far off most controllers' gives nothing up (R29)."""
    master = d.master
    d.begin("clock_step", master.name, for_ms=HELD_MS, offset_ms=CLOCK_AHEAD_MS)
    position = int(d.projections(master).log_start)
    yield _watched(d, d.pass_ms(HELD_MS))
    d.expect(d.master is master, f"{master.name} was replaced for its clock")
    d.expect(
        d.projections(master).log_start == position,
        f"{master.name} gave up messages by a clock that is wrong (R29)",
    )
    d.begin("clock_step", master.name, for_ms=HELD_MS, offset_ms=-CLOCK_AHEAD_MS)
    yield _watched(d, lambda: d.projections(master).log_start > position)
    d.saw("clocks")


def _far_below(d: Director) -> Steps:
    """A replica that ended below its master's start holds the master's state when it is back."""
    replica = d.replicas[0]
    end = int(d.status(replica)["end"])
    d.kill(replica, for_ms=4_000)
    yield _watched(d, lambda: node_start(d, d.master) > end)
    yield _watched(d, d.is_whole)
    d.expect(_is_as_its_master(d, replica), f"{replica.name} has not its master's state (R14)")
    d.saw("installs")


def _is_as_its_master(d: Director, replica: BrokerNode) -> bool:
    """Whether the replica's state, as far as it has come, is the master's (R14)."""
    ours, theirs = d.projections(replica), d.projections(d.master)
    return ours.topics == theirs.topics and all(
        queue.confirmed_end(ours.position) == ours.queue_end(queue.key)
        for queue in theirs.consume_queues.all()
    )


def put_pin(d: Director, position: int | None) -> None:
    """The master appends a record that no client waits for."""
    mastership = d.mastership_of(d.master)
    assert mastership is not None
    projections = d.projections(d.master)
    request = PinRequest(owner=OWNER, position=position, lease_ms=3_600_000)
    now_ms = projections.log_time_ms
    mastership.appender.record(Kind.PIN, request.to_json(), store_unix_ms=now_ms)


def node_start(d: Director, node: BrokerNode) -> int:
    """Where the log of a broker begins; 0 while it does not run."""
    return 0 if node.broker is None else int(d.status(node)["start"])


def _watched(d: Director, condition: Callable[[], bool]) -> Condition:
    """`condition`, and at each look what holds of every broker."""

    def look() -> bool:
        for node in d.stage.group("g1"):
            if node.broker is not None:
                _look_at(d, node)
        return condition()

    return look


def _look_at(d: Director, node: BrokerNode) -> None:
    status = d.status(node)
    start = int(status["start"])
    for limit, sentence in (
        ("log_start", "begins above what was given up (R26)"),
        ("checkpoint", "begins above its newest checkpoint (R14)"),
    ):
        whole = f"the log of {node.name} {sentence}"
        d.expect(start <= int(status[limit]) or whole in d.notes.wrong, whole)


def was_kept(result: Result) -> list[str]:
    """Each part came, and sends went on."""
    return [
        *unseen(result, deletions=1, pins=1, clocks=1, installs=1),
        *uncounted(result, retentions=5),
        *fell_silent(result, since="after"),
    ]
