"""Who is connected to the remoting door, by client id."""

from typing import TYPE_CHECKING

from paceline_gateway.remoting.peers import Peer

if TYPE_CHECKING:
    from paceline_gateway.remoting.users import RemotingUser


class Clients:
    """Owned by the door."""

    def __init__(self) -> None:
        self.peers: set[Peer] = set()

    def peer_of(self, client_id: str, user: "RemotingUser") -> Peer | None:
        """An open connection of a client of the same user: nobody writes to another's clients."""
        for peer in self.peers:
            if peer.client_id == client_id and peer.is_open and _is_of(peer, user):
                return peer
        return None

    def of_group(self, group: str) -> list[Peer]:
        """One connection of each client that is a member of a consumer group."""
        found: dict[str, Peer] = {}
        for peer in self.peers:
            known = None if peer.user is None else peer.user.groups.group(group)
            if known is not None and peer.client_id in known.members and peer.is_open:
                found.setdefault(peer.client_id, peer)
        return list(found.values())


def _is_of(peer: Peer, user: "RemotingUser") -> bool:
    """The same user, from whatever address."""
    return peer.user is not None and peer.user.cluster.principal.user == user.cluster.principal.user
