"""Settings of one controller process."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from paceline.platform.address import Address, parse_address
from paceline.platform.config import require, require_addresses, setting
from paceline.security.node_settings import NodeSettings
from paceline.server.connections import CONNECTIONS_MAX
from paceline.types import ControllerId
from paceline.wire.cluster import GroupSettings
from paceline.wire.commands import CONTROLLER_ID_PATTERN, NAME_PATTERN


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(NodeSettings):
    """Effective configuration of `paceline-controller`; see `deploy/controller.example.toml`."""

    REMOVED: ClassVar = {f"raft_tls_{part}": f"tls_{part}" for part in ("cert", "key", "ca")}
    """Settings that are no more, and which ones count in their place."""

    controller_id: str = setting("Name of this controller in `peers`; never give it to another.")
    data_dir: str = setting("Folder of the journal. One controller per folder; never copy one.")
    peers: tuple[str, ...] = setting(
        "All controllers of the quorum, this one too, as name=host:port of their Raft listeners; "
        "the same list, in the same order, on all."
    )
    controllers: tuple[str, ...] = setting(
        "Client addresses (host:port) of all controllers, in the order of `peers`."
    )
    raft_listen: Address | None = setting(
        "host:port of the Raft listener; default: this controller's address in `peers`.",
        default=None,
    )
    cluster_name: str = setting(
        "Name of the cluster; a data folder of another one is refused.", default="paceline"
    )
    connections_max: int = setting(
        "Connections of clients. An address gets half of it at most, and less the more others "
        "there are; beyond that its oldest silent or idle one goes for each new one (ADR 18).",
        default=CONNECTIONS_MAX,
        minimum=64,
    )
    heartbeat_timeout_ms: int = setting(
        "A broker silent for this long is held for dead. Lower: faster failover of frozen hosts; "
        "too low: elections at every hiccup.",
        default=1500,
        minimum=300,
    )
    election_open_timeout_ms: int = setting(
        "A master that has not opened its epoch after this is replaced (R6).",
        default=3000,
        minimum=300,
    )
    progress_timeout_ms: int = setting(
        "A master whose confirm stands still this long while sends wait is replaced (R6).",
        default=6000,
        minimum=1000,
    )
    acting_settle_ms: int = setting(
        "While no member of a group can be elected for this long, another live replica acts as "
        "master: it serves reads (R36). Lower than a restart takes, and restarts cause it.",
        default=3000,
        minimum=300,
    )
    preferred_settle_ms: int = setting(
        "A member with a lower election_priority than the master's gets mastership back after so "
        "long in the set and healthy without a break.",
        default=30_000,
        minimum=1000,
    )
    command_timeout_ms: int = setting(
        "How long one command may take until its outcome is told as unknown.",
        default=3000,
        minimum=100,
        maximum=30_000,
    )
    watchdog_ms: int = setting(
        "A controller whose event loop hangs for this long writes all stacks to stderr and ends "
        "with 70, so that another one leads; 0 = never. A process that is stopped does not hang.",
        default=10_000,
        maximum=600_000,
    )
    total_replicas: int = setting(
        "For new broker groups: replicas that a group begins with.",
        default=3,
        minimum=1,
        maximum=64,
    )
    min_in_sync_replicas: int | None = setting(
        "For new broker groups: the sync state set never gets smaller; below it nothing is "
        "acknowledged. Default (total_replicas + 1) // 2. 1 = an acknowledged message may be on "
        "one disk only.",
        default=None,
        minimum=1,
    )
    durability: Literal["fsync", "memory"] = setting(
        "For new broker groups: acknowledged means on disk (fsync) or written to the page cache of "
        "every member (memory: a power cut of all members at once loses the last seconds).",
        default="fsync",
    )
    enable_slave_acting_master: bool = setting(
        "For new broker groups: while no member can be elected, a live replica that is no member "
        "serves reads, which may be stale, and takes group offsets and queue locks for the time.",
        default=True,
    )

    def validate(self) -> None:
        """Relations across fields; raises ConfigError with a sentence for the operator."""
        require(
            re.fullmatch(CONTROLLER_ID_PATTERN, self.controller_id) is not None,
            f"controller_id {self.controller_id!r} must be 1 to 64 of A-Z a-z 0-9 _ . - and more "
            "than dots",
        )
        require(
            re.fullmatch(NAME_PATTERN, self.cluster_name) is not None,
            f"cluster_name {self.cluster_name!r} must be 1 to 127 of A-Z a-z 0-9 _ . - and more "
            "than dots",
        )
        peers = self.peer_addresses()
        require(
            self.controller_id in peers,
            f"peers does not name this controller: add {self.controller_id}=host:port",
        )
        require(
            len(self.controllers) == len(peers),
            f"controllers has {len(self.controllers)} addresses, peers has {len(peers)}: name the "
            "same controllers in both, in the same order",
        )
        require(
            self.watchdog_ms == 0 or self.watchdog_ms >= 2_000,
            f"watchdog_ms ({self.watchdog_ms}) must be 0 or at least 2000: a busy machine is slow",
        )
        require_addresses("controllers", self.controllers)
        require(
            self.minimum() <= self.total_replicas,
            f"min_in_sync_replicas ({self.minimum()}) must not be above total_replicas "
            f"({self.total_replicas})",
        )
        self.require_protection({"listen": self.listen, "raft_listen": self.raft_address()})

    def minimum(self) -> int:
        """min_in_sync_replicas, or its default."""
        given = self.min_in_sync_replicas
        return (self.total_replicas + 1) // 2 if given is None else given

    def peer_addresses(self) -> dict[ControllerId, Address]:
        """Raft addresses of all controllers. Raises ConfigError."""
        found: dict[ControllerId, Address] = {}
        for entry in self.peers:
            name, separator, address = entry.partition("=")
            require(
                bool(separator) and re.fullmatch(CONTROLLER_ID_PATTERN, name) is not None,
                f"peers: {entry!r} must be name=host:port",
            )
            require(ControllerId(name) not in found, f"peers names {name} twice")
            found[ControllerId(name)] = parse_address(address)
        return found

    def client_addresses(self) -> dict[ControllerId, str]:
        """Client addresses of all controllers, by name."""
        return dict(zip(self.peer_addresses(), self.controllers, strict=True))

    def raft_address(self) -> Address:
        """Where to listen for the other controllers."""
        own = self.peer_addresses()[ControllerId(self.controller_id)]
        return own if self.raft_listen is None else self.raft_listen

    def group_settings(self) -> GroupSettings:
        """What a new broker group begins with."""
        return GroupSettings(
            total_replicas=self.total_replicas,
            min_in_sync_replicas=self.minimum(),
            durability=self.durability,
            enable_slave_acting_master=self.enable_slave_acting_master,
        )
