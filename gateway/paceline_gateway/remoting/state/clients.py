"""Who is connected to the remoting door, and whose clients they are."""

from collections import Counter

from paceline_gateway.remoting.state.peers import Peer
from paceline_gateway.remoting.state.users import RemotingUser


class Clients:
    """Owned by the door."""

    def __init__(self) -> None:
        self._users: dict[Peer, RemotingUser | None] = {}
        """Of each connection; None: it has asked for nothing yet."""
        self._counts: Counter[RemotingUser] = Counter()
        """Connections of each user."""

    def come(self, peer: Peer) -> None:
        """A connection is there."""
        self._users[peer] = None

    def gone(self, peer: Peer) -> None:
        """It has ended."""
        user = self._users.pop(peer, None)
        if user is not None:
            self._leave(peer, user)

    def ask_as(self, peer: Peer, user: RemotingUser) -> None:
        """A connection, which is still there, asks for that user."""
        before = self._users[peer]
        if before is user:
            return
        self._users[peer] = user
        self._counts[user] += 1
        if before is not None:
            self._leave(peer, before)

    def user_of(self, peer: Peer) -> RemotingUser | None:
        """For whom a connection has asked last."""
        return self._users.get(peer)

    def is_used(self, user: RemotingUser) -> bool:
        """A connection asks for that user."""
        return user in self._counts

    def _leave(self, peer: Peer, user: RemotingUser) -> None:
        self._counts[user] -= 1
        if not self._counts[user]:
            del self._counts[user]
        if peer.client_id:
            user.groups.left(peer)
