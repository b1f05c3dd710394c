"""What every request to a controller uses: read barriers, commands, and groups by their name."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from paceline.errors import NotLeaderError
from paceline.platform.ports import Clock, Random
from paceline.security.access import Access
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.security.tokens import Secrets
from paceline.types import GroupName, ReplicaId
from paceline.wire.calls.request import Request
from paceline.wire.cluster import ClusterView
from paceline.wire.commands import Once
from paceline.wire.controller_calls.base import Read
from paceline_controller.config import ControllerConfig
from paceline_controller.leader.proposer import Encodable, Proposer
from paceline_controller.leader.supervisor import Supervisor
from paceline_controller.probe import ControllerMetrics
from paceline_controller.quorum import Quorum
from paceline_controller.server.broker_sessions import SessionServer
from paceline_controller.server.http_once import settled
from paceline_controller.server.not_found import no_broker_group
from paceline_controller.server.relay import Relay
from paceline_controller.sessions.hub import Hub
from paceline_controller.sessions.view_messages import ViewMessages
from paceline_controller.state import Machine
from paceline_controller.state.model import Group

Handler: TypeAlias = Callable[[Any, Once | None], Awaitable[Mapping[str, Any]]]
"""Carries out a request; once, if its caller has named it (R38). Raises PacelineError."""
Handlers: TypeAlias = Mapping[type[Request[Any]], Handler]


class Node(Protocol):
    """The controller, as its requests see it."""

    machine: Machine
    quorum: Quorum
    proposer: Proposer
    supervisor: Supervisor
    sessions: SessionServer
    hub: Hub
    relay: Relay
    access: Access
    random: Random
    secrets: Secrets
    proofs: NodeProofs
    dial: Dial
    views: ViewMessages

    @property
    def config(self) -> ControllerConfig: ...

    @property
    def metrics(self) -> ControllerMetrics: ...

    def view(self) -> ClusterView: ...

    def leader_address(self) -> str | None: ...


class CallContext:
    """Shared by all handlers of one controller."""

    def __init__(self, node: Node, *, clock: Clock) -> None:
        self.node = node
        self.clock = clock
        self.started_ms = clock.monotonic_ms()

    def ensure_leading(self) -> None:
        if not self.node.supervisor.is_leading:
            raise self._not_leader()

    def _not_leader(self) -> NotLeaderError:
        leader = self.node.leader_address()
        return NotLeaderError("this controller does not lead", leader=leader)

    async def read_point(self, call: Read[Any]) -> None:
        """Return once the machine may be read for that question."""
        if call.linearizable:
            await self.read_barrier()

    async def read_barrier(self) -> None:
        """Return once this leader has applied every write that was answered before."""
        self.ensure_leading()
        timeout_ms = self.node.config.command_timeout_ms
        await self.leaders_word(self.node.quorum.read_barrier(timeout_ms=timeout_ms))

    def earlier(self, once: Once | None) -> dict[str, Any] | None:
        """The result of that very command, if this leader's log has it; a refusal is raised again.

        It comes before all other judgement: what was there for the first attempt may be gone, by it
        (R38).
        """
        self.ensure_leading()
        if once is None:
            return None
        result = self.node.machine.result_of(once.session, once.sequence)
        return None if result is None else settled(result, once)

    async def write(self, command: Encodable, once: Once | None) -> dict[str, Any]:
        """The result of a command, or the error its refusal is; once, if the caller says so."""
        self.ensure_leading()
        work = self.node.proposer.submit(command, once=once)
        return settled(await self.leaders_word(work), once)

    async def leaders_word(self, work: Awaitable[Any]) -> Any:
        """The quorum names leaders by id; clients are told the address."""
        try:
            return await work
        except NotLeaderError as error:
            raise self._not_leader() from error

    def find_group(self, name: str, **details: str) -> Group:
        """GroupNotFoundError, with these details."""
        groups = self.node.machine.groups
        group = groups.get(GroupName(name))
        if group is None:
            raise no_broker_group(name, groups, **details)
        return group

    def is_alive(self, group_name: str, replica_id: int) -> bool:
        group = self.node.machine.groups[GroupName(group_name)]
        belief = self.node.supervisor.liveness.belief(
            group, ReplicaId(replica_id), self.clock.monotonic_ms()
        )
        return belief.standing.value in ("healthy", "unhealthy")
