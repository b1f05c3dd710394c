"""Shell: the controllers themselves, over HTTP: status, members, leadership.

Beside the routes of `http.py`; docs/protocol/controller.md lists all.
"""

import re
from typing import Any

from aiohttp import web

from paceline.errors import CommandRefusedError, NotFoundError
from paceline.types import ControllerId
from paceline.wire.fields import Fields
from paceline.wire.session_commands import CONTROLLER_ID_PATTERN
from paceline_controller.quorum import MembersWish, QuorumMembers
from paceline_controller.server.http_answers import json_answer, json_body
from paceline_controller.server.http_context import HttpContext
from paceline_controller.server.http_errors import query_integer
from paceline_controller.server.http_once import refuse_once

TRANSFER_MS = 2_000


class QuorumRoutes:
    """Handlers."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/status", self._status),
            web.get("/v1/members", self._members),
            web.post("/v1/members", self._add),
            web.delete("/v1/members/{controller}", self._remove),
            web.post("/v1/leadership", self._transfer),
        ]

    async def _status(self, request: web.Request) -> web.Response:
        node, clock = self._context.node, self._context.clock
        status = node.quorum.status()
        members = status.members
        return json_answer(
            {
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
                "digest": node.machine.digest(),
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
        )

    async def _members(self, request: web.Request) -> web.Response:
        """The list in force, as this node has it; with `linearizable=true` the leader's."""
        await self._context.read_point(request)
        members = self._context.node.quorum.status().members
        if members is None:
            raise NotFoundError("this quorum has no member list")
        return json_answer(_members_json(members))

    async def _add(self, request: web.Request) -> web.Response:
        """{controller_id, raft, client, replaces?, generation?}: a new one, perhaps for an old."""
        refuse_once(request)
        fields = Fields(await json_body(request), name="member")
        wish = MembersWish(
            add=_controller(fields, "controller_id"),
            raft=fields.address("raft"),
            client=fields.address("client"),
            remove=_controller(fields, "replaces") if fields.has("replaces") else None,
            generation=fields.integer("generation") if fields.has("generation") else None,
        )
        fields.done()
        return await self._change(wish)

    async def _remove(self, request: web.Request) -> web.Response:
        refuse_once(request)
        name = request.match_info["controller"]
        if re.fullmatch(CONTROLLER_ID_PATTERN, name) is None:
            raise NotFoundError("there is no such controller")
        generation = query_integer(request, "generation", default=-1)
        wish = MembersWish(
            remove=ControllerId(name), generation=None if generation < 0 else generation
        )
        return await self._change(wish)

    async def _change(self, wish: MembersWish) -> web.Response:
        context = self._context
        context.ensure_leading()
        timeout_ms = context.node.config.command_timeout_ms
        work = context.node.quorum.change_members(wish, timeout_ms=timeout_ms)
        generation: int = await context.leaders_word(work)
        return json_answer({"generation": generation}, status=202)

    async def _transfer(self, request: web.Request) -> web.Response:
        """{to?, from?, term?}: let another controller lead; answered when it does.

        With `from` and `term`, who led in which term, it may be asked for again: once another one
        leads, that is the answer, and leadership does not move a second time.
        """
        refuse_once(request)
        fields = Fields(await json_body(request), name="leadership")
        to = _controller(fields, "to") if fields.has("to") else None
        basis = None
        if fields.has("from") or fields.has("term"):
            basis = _controller(fields, "from"), fields.integer("term", low=1)
        fields.done()
        context = self._context
        context.ensure_leading()
        if basis is not None and self._has_moved(to, *basis):
            return self._leadership(context.node.config.controller_id, 0)
        if to == context.node.config.controller_id:
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

    def _leadership(self, leader: str, elapsed_ms: int) -> web.Response:
        context = self._context
        return json_answer(
            {
                "leader": leader,
                "leader_address": context.node.leader_address(),
                "term": context.node.quorum.status().term,
                "elapsed_ms": elapsed_ms,
            }
        )


def _controller(fields: Fields, key: str) -> ControllerId:
    return ControllerId(fields.text(key, pattern=CONTROLLER_ID_PATTERN))


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
