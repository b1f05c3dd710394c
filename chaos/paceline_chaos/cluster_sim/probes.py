"""Looks at the servers of a stage: what brokers say of themselves, what controllers decide.

Brokers are asked by reading the object that `/v1/status` answers from, without a network: a probe
must not wait, and must not change the run. What only the logs tell (truncations, torn tails) is
counted from the events that nodes log.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import to_builtins

from paceline.platform.telemetry import current_node
from paceline.security.access import Access
from paceline.wire.users import Security
from paceline_broker.app import Broker
from paceline_chaos.cluster_sim.nodes import BrokerNode, ControllerServer, Node
from paceline_chaos.cluster_sim.stage import Stage
from paceline_chaos.history.entering import enter_probe
from paceline_chaos.history.model import Decision
from paceline_chaos.history.secured import SecurityApplied
from paceline_controller.node import ControllerNode

PROBE_MS = 200


class Prober:
    """Owner of what was seen of one stage's servers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._decided: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._securities: dict[int, Security] = {}
        """Version of users and rights -> what the controllers have decided."""
        self.zombies: set[tuple[str, int]] = set()
        """(broker, epoch) that believed to be master while a later epoch had begun."""
        for node in stage.nodes.values():
            self._added(node)
        stage.on_added.append(self._added)

    def _added(self, node: Node) -> None:
        if isinstance(node, ControllerServer):
            node.on_built = self._watch
        elif isinstance(node, BrokerNode) and self._stage.topology.has_rights:
            node.on_built = self._watch_rights_of

    def probe(self) -> None:
        """Enter what every broker that could answer says now."""
        newest: dict[str, int] = {}
        masters: list[tuple[str, str, int]] = []
        for node in self._stage.brokers.values():
            broker = node.broker
            if broker is None:
                continue
            if broker.role.mastership is not None:
                masters.append((node.group, node.name, broker.role.epoch))
            newest[node.group] = max(newest.get(node.group, 0), broker.role.epoch)
            status = node.status()
            if status is not None:
                enter_probe(self._stage.recorder, node.name, status)
        for server in self._stage.nodes.values():
            server.check_health(self._stage.now_ms)
        for group, name, epoch in masters:
            if epoch < newest[group]:
                self.zombies.add((name, epoch))

    def _watch(self, server: ControllerServer, node: ControllerNode) -> None:
        def applied(
            command: dict[str, Any], result: dict[str, Any], events: list[Any], index: int
        ) -> None:
            # After a restart a controller applies its log again; only what differs is news.
            if self._decided.get((server.name, index)) == events:
                return
            self._decided[server.name, index] = events
            for event in events:
                members = {key: value for key, value in event.items() if key != "kind"}
                self._stage.recorder.add(
                    Decision, node=server.name, index=index, kind=event["kind"], members=members
                )

        node.quorum.on_applied(applied)
        if self._stage.topology.has_rights:
            self._watch_rights(server.name, node.access, lambda: node.machine.security)

    def _watch_rights_of(self, node: BrokerNode, broker: Broker) -> None:
        access = broker._service.access
        decided = self._securities
        self._watch_rights(node.name, access, lambda: decided.get(access.version, access.security))

    def _watch_rights(self, name: str, access: Access, decided: Callable[[], Security]) -> None:
        """Enter what the node is to decide by, as it starts and at each change: the version that it
        says it has, with the content that the controllers' machine has of it."""

        def applied() -> None:
            security = decided()
            self._securities[security.version] = security
            self._stage.recorder.add(
                SecurityApplied,
                node=name,
                version=access.version,
                security=_without_secrets(security),
            )

        access.on_change(applied)
        applied()


def _without_secrets(security: Security) -> dict[str, Any]:
    """As `SecurityApplied` has it."""
    users = {
        name: {"type": str(user.type), "is_enabled": user.is_enabled, "keys": list(user.keys)}
        for name, user in security.users.items()
    }
    policies = {
        name: {
            "custom": [to_builtins(entry) for entry in policy.custom],
            "default": [to_builtins(entry) for entry in policy.default],
        }
        for name, policy in security.policies.items()
    }
    return {"mode": str(security.mode), "users": users, "policies": policies}


class EventCounter(logging.Handler):
    """Counts the events that nodes and clients log, tells of errors with their tracebacks, and
    keeps the lines if asked to."""

    def __init__(self, *, formatter: logging.Formatter | None = None) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.on_error: Callable[[str, str, BaseException], None] = lambda who, event, error: None
        """Node or logger, event, and what was raised."""
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        event = str(record.msg).partition(":")[0]  # a sentence may follow
        self.counts[event] += 1
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            node = current_node()
            self.on_error(record.name if node is None else node.name, event, error)
        if self.formatter is not None:
            self.lines.append(self.format(record))

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)  # one thread: no lock
        return True


@contextmanager
def counted_logs(counter: EventCounter) -> Iterator[None]:
    """Inside, everything that is logged goes to the counter and nowhere else."""
    root, ours = logging.getLogger(), logging.getLogger("paceline")
    handlers, level, our_level = root.handlers[:], root.level, ours.level
    root.handlers[:] = [counter]
    root.setLevel(logging.INFO)
    ours.setLevel(logging.NOTSET)  # whoever runs the world may have silenced it
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        ours.setLevel(our_level)
