"""Compares digests of the state machine with the other controllers (INV-10).

Owner: the event loop of one `RaftQuorum`. Whoever differs from most voters stops for good; those
others go on, and say so.
"""

import logging
from collections.abc import Callable

from paceline.types import ControllerId
from paceline_controller.raft.core import RaftCore
from paceline_controller.raft.digests import INDICES_MAX, Digests
from paceline_controller.raft.library import RaftInvariantError
from paceline_controller.raft.peers.frames import Message
from paceline_controller.raft.settings import RaftSettings

log = logging.getLogger("paceline.raft")


class Comparison:
    """One per node."""

    def __init__(
        self,
        own: ControllerId,
        settings: RaftSettings,
        digest_of_part: Callable[[int], str],
        send: Callable[[ControllerId, Message], None],
    ) -> None:
        self._own = own
        self._every = settings.digest_every_entries
        self._digest_of_part = digest_of_part
        self._send = send
        self._digests = Digests(own)
        self._complained: set[tuple[ControllerId, int]] = set()

    def applied(self, core: RaftCore, index: int) -> None:
        """A command was applied. Raises RaftInvariantError if this machine is the odd one out."""
        if index % self._every or index + self._every * INDICES_MAX < core.commit_index:
            return  # one that catches up is compared where the others are
        digest = self._digest_of_part(index // self._every)
        self._digests.note(self._own, index, bytes.fromhex(digest))
        for peer in core.members.everyone():
            if peer != self._own:
                self._tell(peer)
        self._judge(core, index)

    def restored(self) -> None:
        """The machine is a snapshot's now."""
        self._digests.forget_own()

    def link_up(self, peer: ControllerId) -> None:
        self._tell(peer)

    def received(self, core: RaftCore, peer: ControllerId, message: Message) -> None:
        """A peer says what its machine looks like. Raises as `applied` does."""
        self._digests.note(peer, message["index"], message["digest"])
        self._judge(core, message["index"])

    def _tell(self, peer: ControllerId) -> None:
        latest = self._digests.latest()
        if latest is not None:
            self._send(peer, {"type": "digest", "index": latest[0], "digest": latest[1]})

    def _judge(self, core: RaftCore, index: int) -> None:
        is_minority, others = self._digests.deviants(index, set(core.members.voters))
        for other in others:
            if (other, index) not in self._complained:
                self._complained.add((other, index))
                log.error("raft_divergence", extra={"peer": other, "index": index})
        if is_minority:
            raise RaftInvariantError(
                f"the state of controller {self._own} differs from that of most controllers after"
                f" entry {index} (INV-10): replace it under a new id; keep its folder for the bug"
                " report"
            )
