"""The operator of the bed: changes who the members are, one wish after the other (R18).

A wish is repeated at whoever leads until the member list shows that it was taken in, or for a
while. What follows, catching up, voting, leaving, is the leaders' own.
"""

from collections.abc import Callable

from paceline.errors import PacelineError
from paceline_chaos.raft.judge import Judge
from paceline_chaos.raft.node import PORT, RaftNode
from paceline_chaos.sim.loop import SimLoop
from paceline_controller.quorum import MembersWish
from paceline_controller.raft.members import Members

TRY_MS = 150
TRIES_MAX = 25
VOTERS_LEAST = 3
_TIMEOUT_MS = 1_500
_CLIENT_PORT = PORT + 1


class Operator:
    """One wish at a time."""

    def __init__(self, nodes: dict[str, RaftNode], *, judge: Judge, loop: SimLoop) -> None:
        self._nodes = nodes
        self._judge = judge
        self._loop = loop
        self._wish: MembersWish | None = None
        self._tries = 0
        self.on_joined: Callable[[RaftNode], None] = lambda node: None

    @property
    def is_busy(self) -> bool:
        return self._wish is not None

    def stop(self) -> None:
        """No wish is repeated any more."""
        self._wish = None

    def members(self) -> Members | None:
        """As the leader has them; None if nobody leads."""
        leading = [node for node in self._nodes.values() if node.is_leading]
        core = leading[-1].quorum._core if leading and leading[-1].quorum else None
        return None if core is None else core.members

    def voters(self) -> list[RaftNode]:
        """Who counts, as the leader has it; as far as is known, without one."""
        members = self.members()
        if members is None:
            return [n for n in self._nodes.values() if not n.is_spare and not n.is_removed]
        return [node for name, node in self._nodes.items() if node.name in members.voters]

    def replace(self, target: RaftNode) -> None:
        """By a new node; whoever lost its disk comes first."""
        lost = [node for node in self.voters() if node.is_out]
        old, new = (lost or [target])[0], self._spare()
        if new is not None and not self.is_busy and old in self.voters():
            self._begin(new, old)

    def add(self) -> None:
        new = self._spare()
        if new is not None and not self.is_busy and not any(n.is_out for n in self.voters()):
            self._begin(new, None)

    def remove(self, target: RaftNode) -> None:
        voters = self.voters()
        is_whole = not any(node.is_out or node.is_flipped for node in voters)
        if is_whole and len(voters) > VOTERS_LEAST and target in voters and not self.is_busy:
            self._begin(None, target)

    # -- inside ------------------------------------------------------------------------------------

    def _spare(self) -> RaftNode | None:
        return next((node for node in self._nodes.values() if node.is_spare), None)

    def _begin(self, new: RaftNode | None, old: RaftNode | None) -> None:
        address = "" if new is None else new.machine.ip
        self._wish = MembersWish(
            add=None if new is None else new.name,
            raft="" if new is None else f"{address}:{PORT}",
            client="" if new is None else f"{address}:{_CLIENT_PORT}",
            remove=None if old is None else old.name,
        )
        self._tries = 0
        if new is not None:
            new.is_spare = False
            new.start()
            self.on_joined(new)
        self._try()

    def _try(self) -> None:
        wish, members = self._wish, self.members()
        if wish is None:
            return
        self._tries += 1
        if self._tries > TRIES_MAX or (members is not None and _is_taken_in(wish, members)):
            self._wish = None
            return
        leading = [node for node in self._nodes.values() if node.is_leading]
        if leading and leading[-1].process is not None:
            process = leading[-1].process
            with self._loop.acting_as(process):
                self._loop.create_task(
                    self._ask(leading[-1], wish), name="operator", context=process.context.copy()
                )
        when_ns = self._loop.now_ns + TRY_MS * 1_000_000
        self._loop.kernel_at(when_ns, lambda _: self._try(), None)

    async def _ask(self, node: RaftNode, wish: MembersWish) -> None:
        assert node.quorum is not None
        try:
            await node.quorum.change_members(wish, timeout_ms=_TIMEOUT_MS)
        except PacelineError:
            return  # the list tells what came of it
        self._judge.counts["wishes"] += 1


def _is_taken_in(wish: MembersWish, members: Members) -> bool:
    if wish.add is not None:
        return members.find(wish.add) is not None
    return members.leaving == wish.remove or wish.remove not in members.voters
