"""Connections between replicas and masters: FIFO each way, lossy only by breaking.

Like TCP: what one side sent before it closed may still arrive long after, also after the replica
has opened another connection. A break loses a random tail of what is under way, each side learns of
it on its own.
"""

from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from paceline_broker.replication.frames import Acknowledgement
from paceline_broker.replication.handshake import ConnectionId, Introduction, Welcome
from paceline_broker.replication.messages import Refused
from paceline_chaos.protocol_sim.dice import Dice


class Peer(Protocol):
    """A process that a connection ends at."""

    @property
    def generation(self) -> int: ...


PeerT = TypeVar("PeerT", bound=Peer)


class Closed(NamedTuple):
    """The other side has ended the connection, or the network has."""


class WelcomeWith(NamedTuple):
    """A welcome, and the checkpoint that follows it (R14)."""

    welcome: Welcome
    checkpoint: bytes | None


Message: TypeAlias = Introduction | Acknowledgement | WelcomeWith | Refused | Closed | bytes
"""What is under way; bytes are a frame of the master."""


class End(Generic[PeerT]):
    """One side of a connection: a process, and what is under way to it."""

    __slots__ = ("generation", "inbox", "is_open", "node")

    def __init__(self, node: PeerT) -> None:
        self.node = node
        self.generation = node.generation
        self.inbox: deque[Message] = deque()
        self.is_open = True


class Connection(Generic[PeerT]):
    """One connection of a replica to the process that it takes for its master."""

    def __init__(self, number: int, replica: PeerT, master: PeerT) -> None:
        self.connection = ConnectionId(number)
        self.replica = End(replica)
        self.master = End(master)
        self.is_broken = False

    @property
    def is_over(self) -> bool:
        return not self.replica.is_open and not self.master.is_open

    @property
    def is_busy(self) -> bool:
        return bool(self.replica.inbox or self.master.inbox)

    def send(self, to: End[PeerT], message: Message) -> None:
        if to.is_open and not self.is_broken:
            to.inbox.append(message)

    def close(self, own: End[PeerT]) -> None:
        """`own` side ends it: hears nothing more; what it sent is still under way."""
        if not own.is_open:
            return
        own.is_open = False
        own.inbox.clear()
        self.send(self._other(own), Closed())

    def break_off(self, dice: Dice) -> None:
        """The network, or a process that dies, ends it; a random tail each way is lost."""
        if self.is_broken:
            return
        for end in (self.replica, self.master):
            if end.is_open:
                while end.inbox and dice.happens(0.3):
                    end.inbox.pop()
                end.inbox.append(Closed())
        self.is_broken = True

    def end_of(self, node: object) -> End[PeerT]:
        return self.replica if self.replica.node is node else self.master

    def _other(self, end: End[PeerT]) -> End[PeerT]:
        return self.master if end is self.replica else self.replica
