"""What every route of a controller uses: read barriers, commands, and groups by their name."""

from collections.abc import Awaitable
from typing import Any, Protocol

from aiohttp import web

from paceline.errors import NotLeaderError
from paceline.platform.ports import Clock
from paceline.types import GroupName, ReplicaId
from paceline_controller.config import ControllerConfig
from paceline_controller.leader.proposer import Encodable, Proposer
from paceline_controller.leader.supervisor import Supervisor
from paceline_controller.probe import ControllerMetrics
from paceline_controller.quorum import Quorum
from paceline_controller.server.broker_sessions import SessionServer
from paceline_controller.server.http_errors import query_flag
from paceline_controller.server.http_once import earlier, once_of, settled
from paceline_controller.server.not_found import no_broker_group
from paceline_controller.server.relay import Relay
from paceline_controller.sessions.hub import Hub
from paceline_controller.state import Machine
from paceline_controller.state.model import Group


class Node(Protocol):
    """The controller, as its routes see it."""

    machine: Machine
    quorum: Quorum
    proposer: Proposer
    supervisor: Supervisor
    sessions: SessionServer
    hub: Hub
    relay: Relay

    @property
    def config(self) -> ControllerConfig: ...

    @property
    def metrics(self) -> ControllerMetrics: ...

    def view_json(self) -> dict[str, Any]: ...

    def view_body(self) -> bytes: ...

    def leader_address(self) -> str | None: ...


class HttpContext:
    """Shared by all routes of one controller."""

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

    async def read_point(self, request: web.Request) -> None:
        if query_flag(request, "linearizable"):
            self.ensure_leading()
            timeout_ms = self.node.config.command_timeout_ms
            await self.leaders_word(self.node.quorum.read_barrier(timeout_ms=timeout_ms))

    def earlier(self, request: web.Request) -> dict[str, Any] | None:
        """What this very command has led to, if it was done before (R38)."""
        self.ensure_leading()
        return earlier(request, self.node.machine)

    async def write(self, request: web.Request, command: Encodable) -> dict[str, Any]:
        """The result of a command, or the error its refusal is; once, if the caller says so."""
        self.ensure_leading()
        work = self.node.proposer.submit(command, once=once_of(request))
        return settled(await self.leaders_word(work), once_of(request))

    async def leaders_word(self, work: Awaitable[Any]) -> Any:
        """The quorum names leaders by id; clients are told the address."""
        try:
            return await work
        except NotLeaderError as error:
            raise self._not_leader() from error

    def find_group(self, request: web.Request) -> Group:
        name = GroupName(request.match_info["group"])
        group = self.node.machine.groups.get(name)
        if group is None:
            raise no_broker_group(name, self.node.machine.groups)
        return group

    def is_alive(self, group_name: str, replica_id: int) -> bool:
        group = self.node.machine.groups[GroupName(group_name)]
        belief = self.node.supervisor.liveness.belief(
            group, ReplicaId(replica_id), self.clock.monotonic_ms()
        )
        return belief.standing.value in ("healthy", "unhealthy")
