"""Settings of one gateway process."""

from dataclasses import dataclass

from paceline.platform.address import Address
from paceline.platform.config import require, require_addresses, setting
from paceline.security.node_settings import ProcessSettings
from paceline.server.byte_budget import LIMIT_BYTES, LIMIT_BYTES_MIN
from paceline.server.connections import CONNECTIONS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ProcessSettings):
    """Effective configuration of `paceline-gateway`; see `deploy/gateway.example.toml`."""

    controllers: tuple[str, ...] = setting(
        "Client addresses (host:port) of all controllers, as the cluster knows them."
    )
    grpc_listen: Address | None = setting(
        "host:port for RocketMQ's gRPC clients (5.x); default: no such door.", default=None
    )
    remoting_listen: Address | None = setting(
        "host:port of the name server for RocketMQ's remoting clients; the broker groups are at "
        "the ports 10, 20, ... above it, their VIP channels 2 below each. Default: no such door.",
        default=None,
    )
    advertised_host: str = setting(
        "The host that remoting clients are told to connect to; empty: the address that they have "
        "come to.",
        default="",
    )
    allow_plaintext: bool = setting(
        "While rights are on, take signatures also over connections that are not encrypted, from "
        "other machines: whoever sees the traffic can use them.",
        default=False,
    )
    user_clusters_max: int = setting(
        "Users, each from each address, that are served at a time: each has connections of its own "
        "to the cluster. Beyond it the one that has been idle longest goes; if none is, 429. One "
        "user has at most three quarters of them.",
        default=1000,
        minimum=1,
    )
    user_idle_ms: int = setting(
        "A user whose clients ask nothing for so long is disconnected from the cluster.",
        default=300_000,
        minimum=1000,
    )
    connections_max: int = setting(
        "Connections of clients at each listener. Each needs an open file.",
        default=CONNECTIONS_MAX,
        minimum=64,
    )
    request_bytes_max: int = setting(
        "Bytes that this gateway holds for requests and answers, over all connections; beyond it, "
        "and beyond a client's share of it, requests are refused (ADR 18).",
        default=LIMIT_BYTES,
        minimum=LIMIT_BYTES_MIN,
    )
    stop_timeout_ms: int = setting(
        "How long calls under way may take to end when the gateway stops.",
        default=10_000,
        minimum=0,
    )

    def doors(self) -> dict[str, Address]:
        """The listeners for clients, by the names of their settings."""
        found = {"grpc_listen": self.grpc_listen, "remoting_listen": self.remoting_listen}
        return {name: address for name, address in found.items() if address is not None}

    def own_addresses(self) -> tuple[str, ...]:
        """host:port by which nodes, and whoever runs them, reach `listen`."""
        host = self.advertised_host or self.listen.host
        return str(self.listen), str(self.listen._replace(host=host))

    def node_id(self) -> str:
        """What tells this gateway from the others."""
        return f"gateway@{self.listen}"

    @property
    def is_closed(self) -> bool:
        """Whether rights are enforced here whatever the cluster says: others reach a door."""
        listeners = (self.listen, *self.doors().values())
        return not (self.insecure or all(address.is_loopback for address in listeners))

    def validate(self) -> None:
        """Relations across fields; raises ConfigError with a sentence for the operator."""
        require(len(self.controllers) > 0, "controllers is empty: name at least one host:port")
        require_addresses("controllers", self.controllers)
        doors = self.doors()
        require(
            bool(doors),
            "grpc_listen and remoting_listen are not set, so nobody could come: set one of them",
        )
        listeners = {"listen": self.listen, **doors}
        taken = [address for address in listeners.values() if address.port]
        require(
            len(set(taken)) == len(taken),
            f"{' and '.join(listeners)} must differ: {', '.join(map(str, listeners.values()))}",
        )
        self.require_protection(listeners)
