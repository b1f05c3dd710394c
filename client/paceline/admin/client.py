"""The admin client: topics, groups, elections, and the state of a cluster.

Writes go to the leading controller, or are relayed to it, and are repeated until they are answered.
They happen once (R38): a session and a number name what is one command for the controllers; what is
more than one (transfers, members) names the epoch, term or generation that it starts from, so that
it moves things away from there or not at all. Reads of topics and groups show every write that was
answered before; views and status are what a controller has.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from paceline.admin.clients import ClientAdmin
from paceline.admin.dead_letters import DeadLetterAdmin
from paceline.admin.messages import MessageAdmin
from paceline.admin.offsets import OffsetAdmin
from paceline.admin.pins import PinAdmin
from paceline.admin.topics import TopicAdmin
from paceline.errors import (
    CommandRefusedError,
    DeadlineError,
    GroupNotFoundError,
    NotLeaderError,
    NotYetAvailableError,
    OutcomeUnknownError,
    PacelineError,
    PeerError,
)
from paceline.net.backoff import Backoff
from paceline.net.cluster import Cluster
from paceline.platform.runtime import pause
from paceline.queues import QueueName, broker_addresses
from paceline.types import GroupName, ReplicaId
from paceline.wire.cluster import ClusterView, GroupSettings
from paceline.wire.once import NOT_ADMITTED, Once
from paceline.wire.pins import PinsOfGroup, PinView

_REQUEST_TIMEOUT_MS = 3_000
_STATUS_TIMEOUT_MS = 1_000
_SESSION_BYTES = 16


class AdminClient(TopicAdmin, OffsetAdmin, DeadLetterAdmin, MessageAdmin, ClientAdmin):
    """Administration of one cluster; `async with` or `close`. All calls have `timeout_ms`."""

    def __init__(
        self, bootstrap: str | Sequence[str] | Cluster, *, timeout_ms: int = 10_000
    ) -> None:
        """`bootstrap`: "host:port,..." of controllers or brokers. `timeout_ms` is for each call."""
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap)
        self._timeout_ms = timeout_ms
        self._leader: str | None = None
        self._answering = ""
        """The controller that answered a question last."""
        self._sessions: list[Once] = []
        """The last command of each session in which none is under way."""

    async def __aenter__(self) -> "AdminClient":
        self._cluster.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect."""
        if self._owns_cluster:
            await self._cluster.close()

    # -- groups and the cluster -------------------------------------------------------------------

    async def view(self) -> ClusterView:
        """The cluster as its controllers publish it, asked now."""
        return ClusterView.from_json(await self._read("/v1/routes"))

    async def group(self, group: str) -> dict[str, Any]:
        """One broker group: view, standings, positions, history (docs/protocol/controller.md)."""
        return await self._read(f"/v1/groups/{group}{_LATEST}")

    async def set_group_settings(self, /, group: str, **changes: Any) -> GroupSettings:
        """Change settings of a broker group; they take effect with its next epoch (R8)."""
        path = f"/v1/groups/{group}/settings"
        answer = await self._once("PUT", path, changes)
        return GroupSettings.from_json(answer["settings"])

    async def set_write_permission(self, group: str, *, writable: bool) -> None:
        """Whether clients may send to a broker group; what it has is read and delivered anyway.

        Without it producers send elsewhere at once, so that consumers can drain it.
        """
        path = f"/v1/groups/{group}/write-permission"
        await self._once("PUT", path, {"writable": writable})

    async def elect(
        self, group: str, *, preferred: int | None = None, unclean: bool = False
    ) -> dict[str, Any]:
        """Have another master elected, or the `preferred` replica.

        `unclean` may elect a replica outside the sync state set and loses records (R21).
        """
        document: dict[str, Any] = {"group": GroupName(group)}
        if preferred is not None:
            document["preferred"] = ReplicaId(preferred)
        if unclean:
            document["unclean"] = True
        return await self._once("POST", "/v1/elections", document)

    async def transfer(self, group: str, *, to: int | None = None) -> dict[str, Any]:
        """Have the master hand over without a failed send, to replica `to` or to the best member.

        CommandRefusedError says why it cannot. `is_graceful` false: the master did not answer the
        order within a second and was replaced. From the master that is there now: mastership moves
        once, whatever answers are lost.
        """
        found = await self.group(group)
        if found["master"] is None:
            raise CommandRefusedError(f"{group} has no master to hand over", reason="NO_MASTER")
        document = {
            "group": GroupName(group),
            "from": found["master"],
            "master_epoch": found["master_epoch"],
        }
        return await self._write("POST", "/v1/transfers", _with(document, to=to))

    async def history(self, group: str) -> list[dict[str, Any]]:
        """Elections and set changes of a broker group with their reasons, oldest first."""
        document = await self._read(f"/v1/groups/{group}/history{_LATEST}")
        return list(document["history"])

    async def clean_replica(self, group: str, replica_id: int, *, force: bool = False) -> None:
        """Forget a dead replica; RocketMQ's cleanBrokerMetadata.

        `force` also forgets a member, or one that lives. CommandRefusedError says why not.
        """
        await self._clean(f"/v1/groups/{group}/replicas/{replica_id}", force=force)

    async def clean_group(self, group: str, *, force: bool = False) -> None:
        """Forget a broker group of which no replica lives; `force`: with its topics' queues."""
        await self._clean(f"/v1/groups/{group}", force=force)

    async def _clean(self, path: str, *, force: bool) -> None:
        await self._once("DELETE", path + ("?force=true" if force else ""), None)

    async def presented_stores(self) -> list[dict[str, Any]]:
        """Stores that wait because the controllers do not know their group (R18).

        The best of each group first; docs/protocol/controller.md says what each has.
        """
        return list((await self._read("/v1/stores"))["stores"])

    async def recover(
        self, group: str, *, store: str, give_up_missing: bool = False
    ) -> dict[str, Any]:
        """Put a group on record again, with the log of that store as the group's.

        CommandRefusedError says why it cannot be (details `reason`); MAY_LOSE_RECORDS: only with
        `give_up_missing`.
        """
        document = {"group": group, "store": store, "give_up_missing": give_up_missing}
        return await self._once("POST", "/v1/recoveries", document)

    async def forget_store(self, store: str) -> None:
        """Take a store that waits off the record; its broker must not run any more."""
        await self._once("DELETE", f"/v1/stores/{store}", None)

    async def epochs(self, group: str) -> dict[int, dict[str, Any] | None]:
        """The epoch table of each replica, as its broker tells it; None: it does not answer."""
        view = await self.view()
        found = view.groups.get(GroupName(group))
        if found is None:
            raise GroupNotFoundError(f"there is no broker group {group}", group=group)
        replicas = [found.replicas[key] for key in sorted(found.replicas)]
        answers = await asyncio.gather(
            *(self._ask(replica.client_address, "/v1/epochs") for replica in replicas)
        )
        return {
            replica.replica_id: None
            if answer is None or answer["replica_id"] != replica.replica_id
            else answer
            for replica, answer in zip(replicas, answers, strict=True)
        }

    # -- pins against retention (R26) -------------------------------------------------------------

    async def pins(self, group: str | None = None) -> dict[GroupName, PinsOfGroup]:
        """The pins of a broker group, or of all groups, as their masters have them."""
        return await (await self._pins()).all(group)

    async def add_pin(
        self,
        owner: str,
        *,
        lease_ms: int,
        queues: Mapping[QueueName, int | None] | None = None,
        group: str | None = None,
    ) -> dict[GroupName, PinView]:
        """Keep retention from passing what `owner` will read, for `lease_ms` (1 s to 7 days).

        `queues`: offsets from which on each queue is kept, None for its first kept one. Without
        `queues` all that is kept of `group`, or of every group. Set again it is renewed, or moved:
        an owner has one pin in each broker group. OffsetOutOfRangeError: deleted already, or beyond
        the end (`start`, `end`). TopicNotFoundError, QueueNotFoundError, GroupNotFoundError,
        BadNameError, BadRequestError; details `pinned`: groups in which it is pinned all the same.
        """
        pins = await self._pins()
        return await pins.add(owner, lease_ms=lease_ms, queues=queues, group=group)

    async def remove_pin(self, owner: str, *, group: str | None = None) -> frozenset[GroupName]:
        """Give the pins of `owner` up; the broker groups in which there was one."""
        return await (await self._pins()).remove(owner, group=group)

    async def _pins(self) -> PinAdmin:
        await self._find_cluster()
        return PinAdmin(self._cluster, timeout_ms=self._timeout_ms)

    # -- controllers ------------------------------------------------------------------------------

    async def controllers(self) -> dict[str, dict[str, Any] | None]:
        """`/v1/status` of each controller by client address; None: it does not answer."""
        await self.view()
        addresses = self._controllers()
        answers = await asyncio.gather(*(self._ask(address, "/v1/status") for address in addresses))
        return dict(zip(addresses, answers, strict=True))

    async def members(self) -> dict[str, Any]:
        """The controllers' member list in force, from the one that leads."""
        last: dict[str, Any] | None = None
        for address, status in (await self.controllers()).items():
            if status is not None and (last is None or status["role"] == "leader"):
                last = await self._ask(address, "/v1/members") or last
        if last is None:
            raise PeerError("no controller answers")
        return last

    async def transfer_leadership(self, to: str | None = None) -> dict[str, Any]:
        """Have another controller than the present leader lead; CommandRefusedError: it cannot."""
        known = await self._read(f"/v1/cluster{_LATEST}")
        document = {"from": known["leader"], "term": known["term"]}
        return await self._write("POST", "/v1/leadership", _with(document, to=to))

    async def add_controller(
        self, controller_id: str, *, raft: str, client: str, replaces: str | None = None
    ) -> int:
        """Begin to add a controller, or to put it in another's place; the generation."""
        document = {
            "controller_id": controller_id,
            "raft": raft,
            "client": client,
            "generation": await self._generation(),
        }
        document = _with(document, replaces=replaces)
        return int((await self._write("POST", "/v1/members", document))["generation"])

    async def remove_controller(self, controller_id: str) -> int:
        """Begin to take a controller out, or give up one that is catching up; the generation."""
        path = f"/v1/members/{controller_id}?generation={await self._generation()}"
        return int((await self._write("DELETE", path, None))["generation"])

    async def _generation(self) -> int:
        """Of the member list that a change starts from."""
        return int((await self._read(f"/v1/members{_LATEST}"))["generation"])

    async def cluster_status(self) -> dict[str, Any]:
        """The controllers' view of the cluster and, under `brokers`, what each broker says itself.

        `brokers` maps client address -> its `/v1/status`, or None if it does not answer.
        """
        document = await self._read("/v1/cluster")
        addresses = broker_addresses(await self.view())
        answers = await asyncio.gather(*(self._ask(address, "/v1/status") for address in addresses))
        return {**document, "brokers": dict(zip(addresses, answers, strict=True))}

    # -- inside -----------------------------------------------------------------------------------

    async def _ask(self, address: str, path: str) -> dict[str, Any] | None:
        try:
            return await self._cluster.http.get(address, path, timeout_ms=_STATUS_TIMEOUT_MS)
        except PacelineError:
            return None  # a broker that does not answer is part of the picture

    async def _find_cluster(self) -> None:
        """PeerError when no bootstrap address answers in time."""
        self._cluster.start()
        await self._cluster.watch.wait_for(lambda view: True, timeout_ms=self._timeout_ms)

    def _controllers(self) -> list[str]:
        view = self._cluster.view
        assert view is not None
        return list(view.controllers)

    async def _read(self, path: str) -> dict[str, Any]:
        """A GET from the first controller that answers; what is linearizable waits for a leader."""
        backoff = Backoff(self._cluster.random, first_ms=50)
        last: PacelineError | None = None
        await self._find_cluster()
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                while True:
                    # Who answered last is asked first: another one may cost a timeout each time.
                    for address in sorted(self._controllers(), key=self._answering.__ne__):
                        try:
                            answer = await self._cluster.http.get(
                                address, path, timeout_ms=_REQUEST_TIMEOUT_MS
                            )
                        except _READ_ELSEWHERE as error:
                            last = error
                        else:
                            self._answering = address
                            return answer
                    await pause(backoff.next_ms())
        except TimeoutError:
            raise self._gave_up(last) from last

    async def _once(
        self, method: str, path: str, document: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """A write that happens once, however often and wherever it is asked for (R38).

        OutcomeUnknownError if an attempt may have done it and the controllers know no more.
        """
        while True:
            command = await self._next_command()
            try:
                answer = await self._write(method, path, document, once=command)
            except PacelineError as error:
                was_idle = command.sequence > 1
                if was_idle and error.details.get("reason") in NOT_ADMITTED:
                    continue  # it was unused for long and has expired: certainly nothing was done
                if error.is_definite:
                    self._sessions.append(command)
                raise
            self._sessions.append(command)
            return answer

    async def _next_command(self) -> Once:
        """Of a session of this client in which nothing is under way, or of a new one."""
        if self._sessions:
            return self._sessions.pop().next()
        opening = Once(self._cluster.random.token(_SESSION_BYTES).hex(), 0)
        await self._write("POST", "/v1/sessions", None, once=opening)
        return opening.next()

    async def _write(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None,
        *,
        once: Once | None = None,
    ) -> dict[str, Any]:
        """A write at the leader, or relayed to it; repeated, so it must be safe to repeat (R38).

        OutcomeUnknownError if it is refused at last and an earlier try may have done it.
        """
        backoff = Backoff(self._cluster.random, first_ms=20)
        headers = None if once is None else once.headers()
        last: PacelineError | None = None
        is_unknown = False
        turn = 0
        await self._find_cluster()
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                while True:
                    addresses = self._controllers()
                    address = self._leader or addresses[turn % len(addresses)]
                    try:
                        return await self._cluster.http.send(
                            method,
                            address,
                            path,
                            document,
                            headers=headers,
                            timeout_ms=_REQUEST_TIMEOUT_MS,
                        )
                    except NotLeaderError as error:
                        last = error
                        named = error.details.get("leader")
                        self._leader = named if isinstance(named, str) and named else None
                        if self._leader not in (None, address):
                            continue  # ask the one it names, at once
                    except (PeerError, NotYetAvailableError) as error:
                        last, self._leader = error, None
                    except (DeadlineError, OutcomeUnknownError) as error:
                        last, self._leader, is_unknown = error, None, True
                    except PacelineError as error:
                        if not is_unknown:
                            raise
                        if error.details.get("reason") not in _UNDER_WAY:
                            raise _repeated(error, once) from error
                        last = error  # it may be our own earlier try: ask how that ends
                    turn += 1
                    await pause(backoff.next_ms())
        except TimeoutError:
            raise self._gave_up(last) from last

    def _gave_up(self, last: PacelineError | None) -> PacelineError:
        why = "no controller answered" if last is None else last.message
        if isinstance(last, NotLeaderError):
            why = "no controller leads; a majority of them must run and reach each other"
        return DeadlineError(f"no result within {self._timeout_ms} ms: {why}")


def _repeated(error: PacelineError, once: Once | None) -> PacelineError:
    """What an error after a try of unknown outcome says of all tries together."""
    if once is not None and error.details.get("sequence") == once.sequence:
        return error  # the log has it: so was the first try, and every other, answered
    return OutcomeUnknownError(f"an earlier try may have done it; the last: {error.message}")


def _with(document: dict[str, Any], **more: Any) -> dict[str, Any]:
    """And the members that are given."""
    return {**document, **{key: value for key, value in more.items() if value is not None}}


_LATEST = "?linearizable=true"
_READ_ELSEWHERE = (PeerError, DeadlineError, NotYetAvailableError, NotLeaderError)
_UNDER_WAY = ("TRANSFER_UNDER_WAY", "NOT_YET")
"""Reasons of refusals that are over in a moment."""
