"""What scripts ask of a running world, and scenarios of a finished one."""

from collections.abc import Collection

from paceline_chaos.cluster_sim.nodes import BrokerNode
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director
from paceline_chaos.history.model import Deliver, Outcome, ReplicaDump, Send

IN_FLIGHT_US = 100_000
"""An answer that has left is with its client by then."""


def acknowledged(
    result: Result, *, since: str = "", until: str = "", late_us: int = 0, client: str = ""
) -> list[Send]:
    """Sends acknowledged between two marks (`late_us` after the first) to a client, or to all."""
    assert result.notes is not None
    marks = result.notes.marks
    start_us = marks[since] + late_us if since else 0
    end_us = marks[until] if until else 1 << 62
    return [
        entry
        for entry in result.history.entries
        if isinstance(entry, Send)
        and entry.outcome is Outcome.OK
        and start_us <= entry.answered_us < end_us
        and (not client or entry.client == client)
    ]


def fell_silent(result: Result, *, since: str) -> list[str]:
    """That sends went on after a mark, or that they did not."""
    return [] if acknowledged(result, since=since) else ["nothing was acknowledged afterwards"]


def asked_and_acked(result: Result, *, since: str, until: str, client: str = "") -> list[Send]:
    """Those of them that were asked in that time too: they needed whoever was there then."""
    assert result.notes is not None
    acks = acknowledged(result, since=since, until=until, client=client)
    return [send for send in acks if send.asked_us >= result.notes.marks[since]]


def unseen(result: Result, **least: int) -> list[str]:
    """What was not counted so often."""
    assert result.notes is not None
    seen = result.notes.seen
    return [
        f"{name}: {seen[name]}, not {count}"
        for name, count in ((key.replace("_", " "), value) for key, value in least.items())
        if seen[name] < count
    ]


def uncounted(result: Result, **least: int) -> list[str]:
    """What the checkers or the logs did not count so often; `__` stands for a dot."""
    found = {**result.verdict.counters, **result.counters}
    names = ((key.replace("__", "."), value) for key, value in least.items())
    return [
        f"{name}: {found.get(name, 0)}, not {count}"
        for name, count in names
        if found.get(name, 0) < count
    ]


def unequal_logs(result: Result) -> list[str]:
    dumps = [entry for entry in result.history.entries if isinstance(entry, ReplicaDump)]
    ends = {dump.end for dump in dumps}
    return [] if len(ends) == 1 else [f"logs end at {sorted(ends)}"]


def unserved(result: Result, groups: Collection[str], *, since: str) -> list[str]:
    """Consumer groups of which no member was given anything after a mark."""
    assert result.notes is not None
    since_us = result.notes.marks[since]
    served = {
        entry.consumer_group
        for entry in result.history.entries
        if isinstance(entry, Deliver) and entry.asked_us > since_us
    }
    return [f"group {name} got nothing any more" for name in sorted(set(groups) - served)]


def unconfirmed(result: Result) -> list[str]:
    count = result.verdict.counters.get("acknowledged.unconfirmed", 0)
    return [f"{count} acknowledgements before confirm"] if count else []


def is_waiting(d: Director, master: BrokerNode, *holders: BrokerNode) -> bool:
    """Whether something is durable on the master and these, and not confirmed."""
    mastership = d.mastership_of(master)
    if mastership is None or mastership.end == mastership.confirm:
        return False
    return all(
        node.broker is not None and d.status(node)["flushed"] > mastership.confirm
        for node in (master, *holders)
    )
