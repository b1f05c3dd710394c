"""Somebody hostile beside ordinary clients: a replica and a master die meanwhile (ADR 18)."""

from paceline.server.byte_budget import MIB
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.jobs.flooding import CONNECTIONS
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps

_BETWEEN_MS = 1_200
_TURN_BYTES_MAX = MIB // 2
_TURN_COST = 64
_TURN_COST_MAX = 3 * _TURN_COST
"""What was begun may cost more than is left: a fetch of 1,024 queues costs a turn."""
_ORDINARY_BYTES = MIB // 2
"""What the ordinary clients of a world have under way at most."""


def flood(d: Director) -> Steps:
    """A replica comes back through the flood, then another master takes the clients."""
    yield d.is_whole
    yield lambda: _is_flooded(d)
    d.saw("floods")
    yield d.pass_ms(_BETWEEN_MS)
    _judge(d)
    d.kill(d.replicas[0], for_ms=300)
    yield lambda: not d.is_whole()
    yield d.is_whole
    yield d.pass_ms(_BETWEEN_MS)
    _judge(d)
    yield from d.fail_over(for_ms=800)
    d.saw("failovers")
    d.mark("after")
    yield d.pass_ms(_BETWEEN_MS)
    _judge(d)


def _is_flooded(d: Director) -> bool:
    """The master has much of each kind."""
    broker = d.master.broker
    assert broker is not None
    many = min(broker.http.places.count, broker.replication.strangers.count)
    return many >= CONNECTIONS and broker.budget.peak_bytes > MIB


def _judge(d: Director) -> None:
    """One address never has more than half of what a broker has for all; it asked for more."""
    for node in d.running:
        broker = node.broker
        assert broker is not None
        budget, places = broker.budget, broker.http.places
        d.expect(
            budget.peak_bytes <= budget.limit_bytes // 2 + _ORDINARY_BYTES,
            f"{node.name} held {budget.peak_bytes} of {budget.limit_bytes} bytes",
        )
        unpacked_bytes = broker._service.work.turn_bytes_max
        d.expect(
            unpacked_bytes <= _TURN_BYTES_MAX,
            f"{node.name} unpacked {unpacked_bytes} bytes in one turn of its loop",
        )
        cost = broker._service.fetcher.turns.spent_max
        d.expect(cost <= _TURN_COST_MAX, f"{node.name} spent {cost} in one turn of its loop")
        if unpacked_bytes:
            d.saw("bombs")
        if cost >= _TURN_COST:
            d.saw("crowds")
        strangers = broker.replication.strangers
        d.expect(
            bool(budget.refused and places.common.displaced and strangers.displaced),
            f"{node.name} has refused and displaced nobody",
        )
        d.expect(
            places.common.count < places.common.limit,
            f"{node.name} has {places.common.count} connections of {places.common.limit}",
        )


def were_served(result: Result) -> list[str]:
    """The others went on, and nobody was deposed but the master that was killed."""
    elections = result.counters.get("elections", 0)
    return [
        *unseen(result, floods=1, failovers=1, bombs=1, crowds=1),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
        *([f"{elections} elections, not 2"] if elections > 2 else []),
    ]
