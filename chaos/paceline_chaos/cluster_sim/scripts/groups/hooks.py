"""Hooks of clients and brokers, while a master and a client with hooks die (S41)."""

from collections import Counter

from paceline_chaos.cluster_sim.all_ack.questions import unseen
from paceline_chaos.cluster_sim.jobs.hooking import SENDER
from paceline_chaos.cluster_sim.refusing import BROKER
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps
from paceline_chaos.history.hooked import AFTER_CONSUME, AFTER_SEND, REFUSED, HookCall
from paceline_chaos.history.model import Send

MEMBER = "client-3"
_BETWEEN_MS = 1_200


def hooks(d: Director) -> Steps:
    """A client is killed, then the master."""
    yield d.is_whole
    yield d.pass_ms(_BETWEEN_MS)
    d.begin("kill", MEMBER, for_ms=300)
    yield d.pass_ms(_BETWEEN_MS)
    yield from d.fail_over(for_ms=800)
    d.saw("failovers")
    d.mark("after")
    yield d.pass_ms(_BETWEEN_MS)


def were_told(result: Result) -> list[str]:
    """Hooks are told of everything also after the failover, and both kinds have refused."""
    assert result.notes is not None
    since = result.notes.marks.get("after", 0)
    told: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for entry in result.history.entries:
        if isinstance(entry, HookCall) and entry.at_us >= since and entry.error is None:
            told[entry.what] += 1
        elif isinstance(entry, Send) and entry.asked_us >= since and entry.properties:
            refused[entry.properties.get(REFUSED, "")] += 1
    return [
        *unseen(result, failovers=1),
        *[f"no {what} afterwards" for what in (AFTER_SEND, AFTER_CONSUME) if not told[what]],
        *[f"nothing for the {who} to refuse" for who in (SENDER, BROKER) if not refused[who]],
    ]
