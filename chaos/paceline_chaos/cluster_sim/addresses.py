"""Where the machines of a world are, and what operators have written into configurations.

Machines come and go: who takes another's place has a new name and a new address. Configurations
name the controllers that were there when the last change of them was complete, as an operator
brings files up to date before the next restart.
"""

from collections.abc import Mapping

from paceline_chaos.cluster_sim.topology import Topology

CONTROLLER_PORT, RAFT_PORT, CLIENT_PORT, REPLICATION_PORT = 7000, 7001, 8000, 8001


class Addresses:
    """Owner of hosts and of the list of controllers."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._added: dict[str, str] = {}
        self.controllers = list(topology.controllers)
        """As configurations have them."""
        self.names: dict[str, str] = {}
        """Client address of a node -> its name; shared with all clients."""
        self.bootstrap: list[str] = []
        """What clients are given, kept up to date; shared with all of them."""
        for name in topology.controllers:
            self.names[self.controller(name)] = name
            self.bootstrap.append(self.controller(name))
        for name in topology.brokers:
            self.names[self.broker(name)] = name

    def host_of(self, name: str) -> str:
        return self._added.get(name) or self._topology.host_of(name)

    def add(self, name: str, *, is_controller: bool) -> str:
        """The host of a machine that comes later."""
        low = 21 if is_controller else 61
        taken = set(self._added.values())
        host = next(f"127.0.0.{low + n}" for n in range(10) if f"127.0.0.{low + n}" not in taken)
        self._added[name] = host
        address = self.controller(name) if is_controller else self.broker(name)
        self.names[address] = name
        return host

    def replace_controller(self, old: str, new: str) -> None:
        """The members have changed: configurations say so from now on."""
        place = self.controllers.index(old)
        self.controllers[place] = new
        self.bootstrap[place] = self.controller(new)

    # -- addresses ---------------------------------------------------------------------------------

    def broker(self, name: str) -> str:
        """Client address."""
        return f"{self.host_of(name)}:{CLIENT_PORT}"

    def brokers(self) -> list[tuple[str, str]]:
        """Client address and replication address of those that there were first."""
        names = self._topology.brokers
        return [(self.broker(n), f"{self.host_of(n)}:{REPLICATION_PORT}") for n in names]

    def controller(self, name: str) -> str:
        """Client address."""
        return f"{self.host_of(name)}:{CONTROLLER_PORT}"

    def raft(self, name: str) -> str:
        return f"{self.host_of(name)}:{RAFT_PORT}"

    def peers(self, name: str) -> Mapping[str, str]:
        """What the configuration of controller `name` says: itself, and those that are there."""
        return {peer: self.raft(peer) for peer in dict.fromkeys([*self.controllers, name])}

    def controller_addresses(self, name: str | None = None) -> tuple[str, ...]:
        """Client addresses of the controllers; in the configuration of one, its own too."""
        names = dict.fromkeys([*self.controllers, *([] if name is None else [name])])
        return tuple(self.controller(name) for name in names)
