"""The controllers themselves: the cluster as this one sees it, its state, members, leadership."""

from typing import Any

from paceline.errors import BadRequestError, CommandRefusedError, NotFoundError, OverloadedError
from paceline.types import ControllerId
from paceline.wire.commands import SEQUENCE_HEADER, SESSION_HEADER, Once
from paceline.wire.controller_calls import quorum as calls
from paceline.wire.session_commands import OpenSession
from paceline_controller.quorum import MembersWish, QuorumMembers
from paceline_controller.server.call_context import CallContext, Handlers
from paceline_controller.server.http_once import refuse_once
from paceline_controller.state.machine import SESSIONS_MAX

TRANSFER_MS = 2_000


class QuorumCalls:
    """Handlers."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        return {
            calls.GetCluster: self._cluster,
            calls.GetStatus: self._status,
            calls.ListMembers: self._members,
            calls.AddMember: self._add,
            calls.RemoveMember: self._remove,
            calls.TransferLeadership: self._transfer,
            calls.OpenSession: self._open_session,
        }

    async def _cluster(self, call: calls.GetCluster, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        node, is_alive = self._context.node, self._context.is_alive
        view = node.view()
        groups = [
            {
                **group.to_json(),
                "replicas": [
                    {**replica.to_json(), "is_alive": is_alive(group.group, replica.replica_id)}
                    for _, replica in sorted(group.replicas.items())
                ],
            }
            for group in view.groups.values()
        ]
        status = node.quorum.status()
        return {
            **view.to_json(),
            "groups": groups,
            "cluster_name": node.machine.cluster_name or None,
            "controller_id": node.config.controller_id,
            "leader": status.leader,
            "leader_address": node.leader_address(),
            "term": status.term,
        }

    async def _status(self, call: calls.GetStatus, _: Once | None) -> dict[str, Any]:
        node, clock = self._context.node, self._context.clock
        status = node.quorum.status()
        members = status.members
        return {
            "controller_id": node.config.controller_id,
            "role": "leader" if node.supervisor.is_leading else "follower",
            "leader": status.leader,
            "leader_address": node.leader_address(),
            "term": status.term,
            "commit_index": status.commit_index,
            "applied_index": status.applied_index,
            "log_length": status.log_length,
            "cluster_id": node.machine.cluster_id or None,
            "cluster_name": node.config.cluster_name,
            "version": node.machine.version,
            "digest": node.machine.digest() if call.digest else None,
            "sessions": len(node.hub.sessions),
            "uptime_ms": clock.monotonic_ms() - self._context.started_ms,
            "is_handing_over": status.is_handing_over,
            "sync": {
                "count": status.sync_count,
                "p50_ms": status.sync_p50_ms,
                "p99_ms": status.sync_p99_ms,
                "max_ms": status.sync_max_ms,
            },
            "snapshot_age_ms": status.snapshot_age_ms,
            "leader_silent_ms": status.leader_silent_ms,
            "heartbeat_gap_ms": status.heartbeat_gap_ms,
            "election_timeout_ms": status.election_timeout_ms,
            "waiting_commands": status.waiting_count,
            "generation": 0 if members is None else members.generation,
            "members": None if members is None else _members_json(members)["members"],
        }

    # -- members ------------------------------------------------------------------------------

    async def _members(self, call: calls.ListMembers, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        members = self._context.node.quorum.status().members
        if members is None:
            raise NotFoundError("this quorum has no member list")
        return _members_json(members)

    async def _add(self, call: calls.AddMember, once: Once | None) -> dict[str, Any]:
        refuse_once(call, once)
        wish = MembersWish(
            add=ControllerId(call.controller_id),
            raft=call.raft,
            client=call.client,
            remove=None if call.replaces is None else ControllerId(call.replaces),
            generation=call.generation,
        )
        return await self._change(wish)

    async def _remove(self, call: calls.RemoveMember, once: Once | None) -> dict[str, Any]:
        refuse_once(call, once)
        wish = MembersWish(remove=ControllerId(call.controller), generation=call.generation)
        return await self._change(wish)

    async def _change(self, wish: MembersWish) -> dict[str, Any]:
        context = self._context
        context.ensure_leading()
        timeout_ms = context.node.config.command_timeout_ms
        work = context.node.quorum.change_members(wish, timeout_ms=timeout_ms)
        return {"generation": await context.leaders_word(work)}

    # -- leadership ---------------------------------------------------------------------------

    async def _transfer(self, call: calls.TransferLeadership, once: Once | None) -> dict[str, Any]:
        refuse_once(call, once)
        to = None if call.to is None else ControllerId(call.to)
        if (call.from_ is None) != (call.term is None):
            missing = "from" if call.from_ is None else "term"
            raise BadRequestError(
                f"from and term are given together: {missing} is missing", field=missing
            )
        context = self._context
        context.ensure_leading()
        own = context.node.config.controller_id
        leaving, term = call.from_, call.term
        if leaving is not None and term is not None and self._has_moved(to, leaving, term):
            return self._leadership(own, 0)
        if to == own:
            raise CommandRefusedError(f"{to} leads already", reason="TRANSFER_REFUSED")
        started_ms = context.clock.monotonic_ms()
        leader = await context.leaders_word(
            context.node.quorum.transfer(to, timeout_ms=TRANSFER_MS)
        )
        return self._leadership(leader, context.clock.monotonic_ms() - started_ms)

    def _has_moved(self, to: ControllerId | None, leaving: str, term: int) -> bool:
        """On the leader (R38). Raises CommandRefusedError if it moved, and not as it was wanted."""
        own, now = self._context.node.config.controller_id, self._context.node.quorum.status().term
        if (own, now) == (leaving, term):
            return False
        if now > term and own != leaving and to in (None, own):
            return True
        raise CommandRefusedError(
            f"{own} leads in term {now}, not {leaving} in term {term}: ask again if you still "
            "want to",
            reason="STALE_TERM",
        )

    def _leadership(self, leader: str, elapsed_ms: int) -> dict[str, Any]:
        node = self._context.node
        return {
            "leader": leader,
            "leader_address": node.leader_address(),
            "term": node.quorum.status().term,
            "elapsed_ms": elapsed_ms,
        }

    # -- sessions -----------------------------------------------------------------------------

    async def _open_session(self, call: calls.OpenSession, once: Once | None) -> dict[str, Any]:
        """For commands that are to be done once, however often they are asked for (R38)."""
        if once is None or once.sequence != 0:
            raise BadRequestError(
                f"{SESSION_HEADER} names the session, {SEQUENCE_HEADER} is 0", field=SEQUENCE_HEADER
            )
        if self._context.node.machine.sessions_count >= SESSIONS_MAX // 2:
            # The other half is the brokers': without a session they cannot even register.
            raise OverloadedError("too many sessions are open", retry_after_ms=1000)
        result = await self._context.write(OpenSession(), once)
        return {"session": once.session, "version": result["version"]}


def _members_json(members: QuorumMembers) -> dict[str, Any]:
    return {
        "generation": members.generation,
        "committed_generation": members.committed_generation,
        "leaving": members.leaving,
        "waits_for": members.waits_for or None,
        "members": [
            {
                "controller_id": member.controller_id,
                "raft": member.raft,
                "client": member.client,
                "is_voter": member.is_voter,
                "is_linked": member.is_linked,
                "lag_entries": member.lag_entries,
                "silent_ms": member.silent_ms,
            }
            for member in members.members
        ],
    }
