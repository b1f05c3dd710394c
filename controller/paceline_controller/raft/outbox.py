"""Outgoing messages of one Raft node, held until the journal is synced (F3).

A message leaves when every change made before it is durable. What promises nothing that is not on
the disk does not wait, else a slow sync would look like a dead node: pre-votes and their answers,
the news of a term, answers that acknowledge nothing but durable entries, and a leader's appends: it
counts answers only as far as its own copy is durable (`SafeNode.count_early`), so that all disks
sync at the same time. An answer that waits for entries is preceded by one for those that are
durable. Votes, requests for them and acknowledgements of new entries always wait.

None of these leaves before the node's own term and vote are durable, pre-votes excepted, which are
of no term: so the terms that others see of a node never fall, in whatever life (INV-10).
"""

from collections import deque
from collections.abc import Callable

from paceline.types import ControllerId
from paceline_controller.raft.log.journal import Journal
from paceline_controller.raft.peers.frames import Message


class Outbox:
    """Owner of the messages that wait. Part of `RaftCore`."""

    def __init__(self, journal: Journal, send: Callable[[ControllerId, Message], None]) -> None:
        self._journal = journal
        self._send = send
        self._held: deque[tuple[int, ControllerId, Message]] = deque()

    def hold(self, peer: ControllerId, message: Message) -> None:
        """Send a message as soon as it may leave."""
        if self._journal.is_durable:
            self.let_go()
            self._send(peer, message)
        elif self._promises_nothing(message):
            self._send(peer, message)
        else:
            self._held.append((self._journal.appended, peer, message))
            if message["type"] == "next_node_idx" and self._journal.is_term_durable:
                # Of what matches the leader's log, as much as is durable.
                self._send(peer, message | {"next_node_idx": self._journal.durable_index + 1})

    def let_go(self) -> None:
        """Send what waited for changes that are durable by now, in order."""
        while self._held and self._held[0][0] <= self._journal.durable:
            _, peer, message = self._held.popleft()
            self._send(peer, message)

    def _promises_nothing(self, message: Message) -> bool:
        match message["type"]:
            case "pre_vote" | "pre_vote_granted":
                return True
            case "newer_term" | "append_entries":
                return self._journal.is_term_durable
            case "next_node_idx":
                acknowledged = message["next_node_idx"] - 1 if message["success"] else 0
                return self._journal.is_term_durable and acknowledged <= self._journal.durable_index
        return False
