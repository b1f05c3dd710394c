"""Pure: whether a fault can be carried out at all, before anything is started.

Whom a role means is found when the fault begins (aim.py); that it can mean somebody in this cluster
is known from the file. A sentence says what is wrong and what would be right; None: nothing is.
"""

from paceline_chaos.faults.plan import KINDS
from paceline_chaos.processes.specs import ClusterSpec, FaultSpec, LoadSpec

LINK_KINDS = frozenset({"cut", "isolate", "split", "bridge", "flap", "thin_link"})
"""Faults between two sides, either of which may be clients."""
UNSUPPORTED: dict[str, str] = {
    "slow_link": "exists in the simulated world only: thin_link is for real processes",
    "exit": "is never planned: a node does it by itself",
    **dict.fromkeys(
        ("disk_missing", "disk_wiped", "replace", "transfer", "lead"),
        "exists in the simulated world only",
    ),
}
_ROLES = ("master", "replica", "replicas", "any")
"""Of a broker group."""
_WHOLE = ("all", "brokers", "controllers", "leader", "follower", "any")
_NEEDED = {"clock_step": "offset_ms", "clock_rate": "rate", "thin_link": "rate_kbit"}
_POSITIVE = ("rate", "period_ms", "rate_kbit")


def wrong_with(spec: FaultSpec, cluster: ClusterSpec, load: LoadSpec) -> str | None:
    """What is wrong with a fault, in one sentence without its end."""
    if spec.kind not in KINDS:
        return f"no fault is called {spec.kind!r}; known: {', '.join(KINDS)}"
    if spec.kind in UNSUPPORTED:
        return f"{spec.kind} {UNSUPPORTED[spec.kind]}"
    if spec.kind == "renew" and not cluster.secure:
        return "renew needs certificates: say secure = true in [cluster]"
    return _wrong_numbers(spec) or _wrong_targets(spec, cluster, load)


def _wrong_numbers(spec: FaultSpec) -> str | None:
    for name in ("at_ms", "for_ms", "every_ms", "jitter_ms", "for_jitter_ms"):
        if getattr(spec, name) < 0:
            return f"{name} is {getattr(spec, name)}: milliseconds from the load's beginning, >= 0"
    if spec.times < 1 or (spec.times > 1 and spec.every_ms < 1):
        return "times must be at least 1, and above 1 needs every_ms"
    needed = _NEEDED.get(spec.kind)
    if needed is not None and needed not in spec.details:
        return f"{spec.kind} needs details = {{ {needed} = ... }}"
    for name in spec.details:
        if spec.details[name] < 0 and name != "offset_ms":
            return f"details: {name} is {spec.details[name]}, must not be negative"
        if spec.details[name] == 0 and name in _POSITIVE:
            return f"details: {name} must be above 0"
    return None


def _wrong_targets(spec: FaultSpec, cluster: ClusterSpec, load: LoadSpec) -> str | None:
    if bool(spec.target) == bool(spec.choose):
        return "give target, or choose"
    is_link = spec.kind in LINK_KINDS
    if spec.other is not None and not is_link:
        return f"other means nothing for {spec.kind}: only links have another side"
    sides = {"target": [spec.target] if spec.target else list(spec.choose)}
    if spec.other is not None:
        sides["other"] = [spec.other]
    for name, targets in sides.items():
        for part in (part for target in targets for part in target.split(",")):
            if not _is_known(part, cluster, load, has_clients=is_link):
                known = ", ".join(_known(cluster, load, has_clients=is_link))
                return f"{name} {part!r} is nobody in this cluster; {spec.kind} may hit: {known}"
    return None


def _groups(cluster: ClusterSpec) -> list[str]:
    return [f"g{number}" for number in range(1, cluster.groups + 1)]


def _is_known(target: str, cluster: ClusterSpec, load: LoadSpec, *, has_clients: bool) -> bool:
    role, colon, group = target.partition(":")
    if colon:
        return role in _ROLES and group in _groups(cluster)
    names = {f"c{number}" for number in range(1, cluster.controllers + 1)}
    for group in _groups(cluster):
        names |= {f"{group}-b{number}" for number in range(1, cluster.brokers + 1)}
    if has_clients:
        names |= {"clients"} | {
            f"client-{number}" for number in range(1, sum(load.clients.values()) + 1)
        }
    return target in names or target in _WHOLE


def _known(cluster: ClusterSpec, load: LoadSpec, *, has_clients: bool) -> list[str]:
    """All that may be named, short."""
    groups = _groups(cluster)
    known = [*_WHOLE, *(f"{role}:{groups[0]}" for role in _ROLES)]
    known += [f"{groups[-1]}-b{cluster.brokers}", f"c{cluster.controllers}"]
    if has_clients:
        known += ["clients", f"client-{sum(load.clients.values())}"]
    return known
