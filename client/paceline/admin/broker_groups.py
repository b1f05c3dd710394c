"""Broker groups, for `AdminClient`: settings, elections, history, recovery."""

import asyncio
from typing import Any

from paceline.admin.requests import AdminRequests
from paceline.errors import (
    CommandRefusedError,
    GroupNotFoundError,
)
from paceline.types import GroupName
from paceline.wire.calls.request import read_request
from paceline.wire.cluster import GroupSettings
from paceline.wire.controller_calls import broker_groups as calls


class BrokerGroups:
    """`AdminClient.broker_groups`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def get(self, group: str) -> dict[str, Any]:
        """One broker group: view, standings, positions, history (docs/protocol/controller.md)."""
        return await self._requests.read(calls.GetGroup(group=group, linearizable=True))

    async def set_settings(self, /, group: str, **changes: Any) -> GroupSettings:
        """Change settings of a broker group; they take effect with its next epoch (R8)."""
        request = read_request(calls.SetGroupSettings, {**changes, "group": group})
        answer = await self._requests.once(request)
        return GroupSettings.from_json(answer["settings"])

    async def set_write_permission(self, group: str, *, writable: bool) -> None:
        """Whether clients may send to a broker group; what it has is read and delivered anyway.

        Without it producers send elsewhere at once, so that consumers can drain it.
        """
        await self._requests.once(calls.SetWritePermission(group=group, writable=writable))

    async def elect(
        self, group: str, *, preferred: int | None = None, unclean: bool = False
    ) -> dict[str, Any]:
        """Have another master elected, or the `preferred` replica.

        `unclean` may elect a replica outside the sync state set and loses records (R21).
        """
        request = calls.Elect(group=group, preferred=preferred, unclean=unclean)
        return await self._requests.once(request)

    async def transfer(self, group: str, *, to: int | None = None) -> dict[str, Any]:
        """Have the master hand over without a failed send, to replica `to` or to the best member.

        CommandRefusedError says why it cannot. `is_graceful` false: the master did not answer the
        order within a second and was replaced. From the master that is there now: mastership moves
        once, whatever answers are lost.
        """
        found = await self.get(group)
        if found["master"] is None:
            raise CommandRefusedError(f"{group} has no master to hand over", reason="NO_MASTER")
        request = calls.Transfer(
            group=group, to=to, from_=found["master"], master_epoch=found["master_epoch"]
        )
        return await self._requests.write(request)

    async def history(self, group: str) -> list[dict[str, Any]]:
        """Elections and set changes of a broker group with their reasons, oldest first."""
        document = await self._requests.read(calls.GetHistory(group=group, linearizable=True))
        return list(document["history"])

    async def remove_replica(self, group: str, replica_id: int, *, force: bool = False) -> None:
        """Forget a dead replica; RocketMQ's cleanBrokerMetadata.

        `force` also forgets a member, or one that lives. CommandRefusedError says why not.
        """
        request = calls.RemoveReplica(group=group, replica=replica_id, force=force)
        await self._requests.once(request)

    async def remove(self, group: str, *, force: bool = False) -> None:
        """Forget a broker group of which no replica lives; `force`: with its topics' queues."""
        await self._requests.once(calls.RemoveGroup(group=group, force=force))

    async def presented_stores(self) -> list[dict[str, Any]]:
        """Stores that wait because the controllers do not know their group (R18).

        The best of each group first; docs/protocol/controller.md says what each has.
        """
        return list((await self._requests.read(calls.ListStores()))["stores"])

    async def recover(
        self, group: str, *, store: str, give_up_missing: bool = False
    ) -> dict[str, Any]:
        """Put a group on record again, with the log of that store as the group's.

        CommandRefusedError says why it cannot be (details `reason`); MAY_LOSE_RECORDS: only with
        `give_up_missing`.
        """
        request = calls.Recover(group=group, store=store, give_up_missing=give_up_missing)
        return await self._requests.once(request)

    async def forget_store(self, store: str) -> None:
        """Take a store that waits off the record; its broker must not run any more."""
        await self._requests.once(calls.ForgetStore(store=store))

    async def epochs(self, group: str) -> dict[int, dict[str, Any] | None]:
        """The epoch table of each replica, as its broker tells it; None: it does not answer."""
        view = await self._requests.view()
        found = view.groups.get(GroupName(group))
        if found is None:
            raise GroupNotFoundError(f"there is no broker group {group}", group=group)
        replicas = [found.replicas[key] for key in sorted(found.replicas)]
        answers = await asyncio.gather(
            *(self._requests.ask(replica.client_address, "/v1/epochs") for replica in replicas)
        )
        return {
            replica.replica_id: None
            if answer is None or answer["replica_id"] != replica.replica_id
            else answer
            for replica, answer in zip(replicas, answers, strict=True)
        }
