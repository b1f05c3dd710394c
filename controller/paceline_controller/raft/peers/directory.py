"""Pure: whom this controller talks to, from its configuration, its log and what peers told it.

Connections are wider than votes: who counts is decided by the log alone (`membership.py`). A peer
is known if it stands in the generation in force here, in the newest committed one that anybody
proved to know, or, as long as there is no generation, in the configuration. So a controller with a
stale list finds the others again, a new one is let in, and one that was removed is told so.
"""

from collections.abc import Mapping

from paceline.platform.address import Address, parse_address
from paceline.types import ControllerId
from paceline_controller.raft.members import Members, configured


class Directory:
    """Owner: the event loop of one `RaftQuorum`."""

    def __init__(self, own: ControllerId, addresses: Mapping[ControllerId, tuple[str, int]]):
        """`addresses` of the other controllers, as configured."""
        self._own = own
        self._addresses = {
            name: Address(*address) for name, address in addresses.items() if name != own
        }
        self.latest = self.committed = configured([own, *self._addresses])
        self._newest = self.committed

    def follow(self, *, latest: Members, committed: Members) -> None:
        """The log of this node changed."""
        self.latest, self.committed = latest, committed
        self._take(committed)

    def hear(self, sender: ControllerId, members: Members) -> None:
        """A proven peer says that this generation is committed.

        Only one of ours is believed, or one whose list has this controller in it: a quorum of
        the same name elsewhere must not take it away.
        """
        if self.knows(sender) or members.find(self._own) is not None:
            self._take(members)

    def _take(self, members: Members) -> None:
        if members.generation > self._newest.generation:
            self._newest = members

    @property
    def newest(self) -> Members:
        """The newest generation known to be committed; what a hello carries."""
        return self._newest

    @property
    def is_configured(self) -> bool:
        """Whether there is no generation yet: the configuration says who is who."""
        return self._newest.generation == 0 and self.latest.generation == 0

    @property
    def is_removed(self) -> bool:
        """Whether a committed generation is without this controller, and no later one has it."""
        newest = self._newest
        is_out = newest.generation > 0 and newest.find(self._own) is None
        return is_out and self.latest.generation <= newest.generation

    def knows(self, peer: ControllerId) -> bool:
        if peer == self._own:
            return False
        lists = (self.latest, self._newest)
        return any(members.find(peer) is not None for members in lists)

    def addresses(self) -> dict[ControllerId, Address]:
        """Where the known peers listen, as far as anybody said."""
        found: dict[ControllerId, Address] = {}
        for members in (self.latest, self._newest):
            for name, member in members.everyone().items():
                if name == self._own:
                    continue
                if member.raft:
                    found[name] = parse_address(member.raft)
                elif name in self._addresses:
                    found.setdefault(name, self._addresses[name])
        return found

    def store_of(self, peer: ControllerId) -> str:
        """The store that the newest list names under that id, "" if none."""
        for members in (self._newest, self.latest):
            member = members.find(peer)
            if member is not None and member.store:
                return member.store
        return ""
