"""What a door of a gateway is, and what it is made of."""

from dataclasses import dataclass
from typing import Protocol

from paceline.net.cluster import Cluster
from paceline.platform.ports import Clock, Random
from paceline.platform.telemetry import Metrics
from paceline.security.audit_peers import OnRefused
from paceline.security.node_tls import NodeTls
from paceline.server.byte_budget import ByteBudget
from paceline_gateway.clusters import UserClusters
from paceline_gateway.config import GatewayConfig
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.identity import Authenticator


class Door(Protocol):
    """Takes clients of one protocol."""

    async def start(self) -> None:
        """Listen. OSError: the port is in use; ConfigError."""

    async def close(self) -> None:
        """Take no connection and no call more, let those under way end, then disconnect all.

        The gateway waits for the setting `stop_timeout_ms`, and cancels it then. Idempotent.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorContext:
    """Of one gateway; its doors share it."""

    config: GatewayConfig
    clusters: UserClusters
    """Where calls are carried out, each as its user."""
    cluster: Cluster
    """As the gateway itself sees it, all of it: for routes, never for what a client asks."""
    clients: ConnectedClients
    """Of all doors."""
    authenticator: Authenticator
    on_refused: OnRefused
    """Told of whom a listener refuses before he has asked anything."""
    tls: NodeTls | None
    """Of the listeners: certificates in use."""
    budget: ByteBudget
    metrics: Metrics
    clock: Clock
    random: Random
