"""Clients of RocketMQ's protocols at gateways that die, while a master dies (S1 to S41, S31)."""

from collections import Counter

from paceline_chaos.cluster_sim.all_ack.questions import unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.model import (
    Ack,
    BeginTransaction,
    CheckTransaction,
    Deliver,
    EndTransaction,
    Lock,
    Operation,
    Outcome,
    Pop,
    Send,
)

_BETWEEN_MS = 3_000
_DARK_MS = 2_000
_IN_THE_DARK_MS = 200
_CLIENT = "client-2"
"""Who has the gateways."""


def failovers(d: Director) -> Steps:
    """The master dies, and later all brokers: what is sent waits at gateways, which all die too."""
    yield from a_failover(d)
    d.kill(*d.running, for_ms=_DARK_MS)
    yield d.pass_ms(_IN_THE_DARK_MS)
    d.begin("kill", _CLIENT, for_ms=400)
    yield d.is_whole
    d.saw("failovers")
    yield d.pass_ms(_BETWEEN_MS)


def a_failover(d: Director) -> Steps:
    """The master dies, once."""
    yield d.is_whole
    yield d.pass_ms(_BETWEEN_MS)
    yield from d.fail_over(for_ms=800)
    d.saw("failovers")
    yield d.pass_ms(_BETWEEN_MS)


def all_was_done(result: Result) -> list[str]:
    """Of each kind something went well, a lock was refused, and something was sent again."""
    operations = [one for one in result.history.entries if isinstance(one, Operation)]
    done = Counter(type(one) for one in operations if one.outcome is Outcome.OK)
    kinds = (Send, BeginTransaction, EndTransaction, CheckTransaction, Deliver, Lock, Pop, Ack)
    refused = [one for one in operations if isinstance(one, Lock) and one.error == "LOCK_HELD"]
    return [
        *unseen(result, failovers=2),
        *[f"never done: {kind.__name__}" for kind in kinds if not done[kind]],
        *([] if refused else ["no lock was refused"]),
    ]


def keys_counted(result: Result) -> list[str]:
    """Through both doors somebody was allowed, and somebody refused by gateways for his key."""
    entries = [one for one in result.history.entries if isinstance(one, Send) and one.access_key]
    allowed = {
        door
        for one in entries
        for door in ("grpc", "remoting")
        if f"/{door}-sends" in one.session and one.outcome is Outcome.OK
    }
    refused = [one for one in entries if one.error == "UNAUTHENTICATED_BY_GATEWAY"]
    return [
        *unseen(result, failovers=1),
        *[f"nobody sent by {door}" for door in {"grpc", "remoting"} - allowed],
        *([] if refused else ["no gateway refused a key"]),
    ]
