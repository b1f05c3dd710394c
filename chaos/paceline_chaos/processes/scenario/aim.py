"""Who is meant: targets of faults as nodes, clients and pairs of addresses.

Roles are looked up when a fault begins: "master:g1" is whoever says so then, in the highest epoch.
"""

import asyncio
from collections.abc import Mapping

from paceline.errors import ConfigError
from paceline.platform.ports import Random
from paceline.platform.runtime import pause
from paceline_chaos.faults.plan import Fault
from paceline_chaos.processes.cluster import Cluster, Node
from paceline_chaos.processes.network import Pair
from paceline_chaos.processes.watch import Watch

_RESOLVE_TIMEOUT_MS = 5_000
_POLL_MS = 50


class Aim:
    """Finds targets; draws where a role leaves a choice."""

    def __init__(
        self, cluster: Cluster, watch: Watch, random: Random, clients: Mapping[str, str]
    ) -> None:
        """`clients`: client -> its address."""
        self._cluster = cluster
        self._watch = watch
        self._random = random
        self._clients = clients
        self.missed: list[str] = []
        """Targets that meant nobody when their fault began: it hit nothing."""

    async def nodes(self, target: str) -> list[Node]:
        """The nodes that a target means now; waits a while for a master or leader to exist."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RESOLVE_TIMEOUT_MS / 1000
        while True:
            found = [node for part in target.split(",") for node in self._meant(part)]
            if found:
                return found
            if loop.time() > deadline:
                self.missed.append(target)
                return []
            await pause(_POLL_MS)

    def _meant(self, target: str) -> list[Node]:
        cluster = self._cluster
        kind, _, group = target.partition(":")
        master = self._watch.master(group) if group else None
        members = [node for node in cluster.brokers if node.group == group]
        replicas = [node for node in members if node is not master and node.is_running]
        leader = self._watch.leader()
        followers = [node for node in cluster.controllers if node is not leader]
        everybody = list(cluster.nodes.values())
        sets: dict[str, list[Node]] = {
            "all": everybody,
            "brokers": cluster.brokers,
            "controllers": cluster.controllers,
            "master": [master] if master else [],
            "replica": self._pick(replicas) if master else [],
            "replicas": replicas if master else [],
            "any": self._pick(members or everybody),
            "leader": [leader] if leader else [],
            "follower": self._pick(followers) if leader else [],
        }
        if kind in sets:
            return sets[kind]
        if target not in cluster.nodes:
            raise ConfigError(f"a fault is aimed at {target!r}, which this cluster does not have")
        return [cluster.nodes[target]]

    def _pick(self, nodes: list[Node]) -> list[Node]:
        return [nodes[int(self._random.uniform(0, len(nodes)))]] if nodes else []

    async def pairs(self, fault: Fault) -> tuple[list[Pair], str]:
        """Addresses that no longer reach each other, one way each; and who it is."""
        sides = [await self._side(part) for part in fault.target.split(",")]
        here = {name: host for side in sides for name, host in side.items()}
        everybody = self._everybody()
        rest = {name: host for name, host in everybody.items() if name not in here}
        target = ",".join(here)
        if fault.kind == "bridge":
            names = sorted(rest)
            left, right = names[::2], names[1::2]
            pairs = _both({rest[name] for name in left}, {rest[name] for name in right})
            return pairs, f"{target} between {','.join(left)} and {','.join(right)}"
        there = rest
        if fault.other is not None:
            others = [await self._side(part) for part in fault.other.split(",")]
            merged = {name: host for side in others for name, host in side.items()}
            there = {name: host for name, host in merged.items() if name not in here}
        if fault.kind == "cut":
            one_way = [(a, b) for a in sorted(here.values()) for b in sorted(there.values())]
            return one_way, f"{target}>{fault.other or 'all'}"
        return _both(set(here.values()), set(there.values())), (
            target if fault.other is None else f"{target}-{','.join(there)}"
        )

    async def _side(self, name: str) -> dict[str, str]:
        if name == "clients":
            return dict(self._clients)
        if name in self._clients:
            return {name: self._clients[name]}
        return {node.name: node.host for node in await self.nodes(name)}

    def _everybody(self) -> dict[str, str]:
        return {node.name: node.host for node in self._cluster.nodes.values()} | dict(self._clients)


def _both(left: set[str], right: set[str]) -> list[Pair]:
    return [pair for a in sorted(left) for b in sorted(right) for pair in ((a, b), (b, a))]
