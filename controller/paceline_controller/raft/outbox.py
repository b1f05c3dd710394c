"""Messages on their way out of one Raft node, in order behind the journal's sync (F3).

A message leaves when every change made before it is durable. What promises nothing that is not on
the disk does not wait, else a slow sync would look like a dead node: pre-votes and their answers,
the news of a term, answers that acknowledge nothing but durable entries. An append waits for its
entries, and a heartbeat goes ahead of it: an append without entries, behind what that follower has
acknowledged. An answer that waits for entries is preceded by one for those that are durable. Votes,
requests for them and acknowledgements of new entries always wait.

None of these leaves before the node's own term and vote are durable, pre-votes excepted, which are
of no term: so the terms that others see of a node never fall, in whatever life (INV-10).
"""

from collections import deque
from collections.abc import Callable

from paceline.types import ControllerId
from paceline_controller.raft.frames import Message
from paceline_controller.raft.journal import Journal


class Outbox:
    """Owner of the messages that wait. Part of `RaftCore`."""

    def __init__(
        self,
        journal: Journal,
        *,
        send: Callable[[ControllerId, Message], None],
        heartbeat: Callable[[ControllerId], Message | None],
    ) -> None:
        """`heartbeat`: the one that is due for that follower while its appends wait, if one is."""
        self._journal = journal
        self._send = send
        self._heartbeat = heartbeat
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
            if self._journal.is_term_durable:
                self._show_life(peer, message)

    def let_go(self) -> None:
        """Send what waited for changes that are durable by now, in order."""
        while self._held and self._held[0][0] <= self._journal.durable:
            _, peer, message = self._held.popleft()
            self._send(peer, message)

    def _promises_nothing(self, message: Message) -> bool:
        match message["type"]:
            case "pre_vote" | "pre_vote_granted":
                return True
            case "newer_term":
                return self._journal.is_term_durable
            case "next_node_idx":
                acknowledged = message["next_node_idx"] - 1 if message["success"] else 0
                return self._journal.is_term_durable and acknowledged <= self._journal.durable_index
        return False

    def _show_life(self, peer: ControllerId, message: Message) -> None:
        """What goes ahead of a message that waits, so that nobody is taken for dead."""
        ahead: Message | None = None
        if message["type"] == "append_entries":
            ahead = self._heartbeat(peer)
        elif message["type"] == "next_node_idx":
            # Of what matches the leader's log, as much as is durable.
            ahead = message | {"next_node_idx": self._journal.durable_index + 1}
        if ahead is not None:
            self._send(peer, ahead)
