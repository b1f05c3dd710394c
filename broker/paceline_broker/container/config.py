"""Settings of one broker container."""

from dataclasses import dataclass
from typing import Literal

from paceline.platform.config import require, setting
from paceline_broker.container.placement import ports_count

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """Effective configuration of `paceline-broker-container`; see
    `deploy/container.example.toml`."""

    machines: tuple[str, ...] = setting(
        "Hosts of all machines that run a container, the same list in the same order on each. Only "
        "append to it, `replicas` machines at a time: brokers stay where their data is."
    )
    machine: int = setting("Which of `machines` this one is, from 1.", minimum=1)
    broker_config: str = setting(
        "TOML file with the settings that all brokers here share: controllers, secret_file, TLS. "
        "group, data_dir, listen, replication_listen and election_priority are the container's."
    )
    data_dir: str = setting("Folder of the brokers' folders, one for each broker group.")
    groups_per_machine: int = setting(
        "Broker groups whose preferred master is here; 0: one for each core that this process may "
        "use. The same on all machines of a set (docs/SCALE.md); never lower it.",
        default=0,
        minimum=0,
        maximum=256,
    )
    replicas: int = setting(
        "Brokers of each group, each on another machine: total_replicas of the controllers.",
        default=3,
        minimum=1,
        maximum=9,
    )
    first_port: int = setting(
        "The brokers take the ports from this one on, two each: 2 x replicas x groups_per_machine.",
        default=7800,
        minimum=1,
        maximum=PORT_MAX,
    )
    stop_timeout_ms: int = setting(
        "A broker that takes longer to stop is killed, which is safe too.",
        default=15_000,
        minimum=100,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "Least important lines that the container itself logs.", default="info"
    )

    def validate(self) -> None:
        """ConfigError where settings do not fit each other."""
        count = len(self.machines)
        require(
            count > 0 and count % self.replicas == 0,
            f"machines has {count} hosts: the brokers of a group are on {self.replicas} machines of"
            f" their own (replicas), so give a multiple of {self.replicas}",
        )
        require(len(set(self.machines)) == count, "machines names a host twice")
        require(self.machine <= count, f"machine is {self.machine}, but machines has {count} hosts")
        needed = ports_count(groups_per_machine=self.groups_per_machine, replicas=self.replicas)
        require(
            self.first_port + needed - 1 <= PORT_MAX,
            f"first_port {self.first_port} leaves no room for {needed} ports",
        )
