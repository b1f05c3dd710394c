"""Controllers, for `AdminClient`: their state, their member list, who leads."""

import asyncio
from typing import Any

from paceline.admin.requests import AdminRequests
from paceline.errors import PeerError
from paceline.wire.controller_calls import quorum as calls


class Controllers:
    """`AdminClient.controllers`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def all(self, *, with_digests: bool = False) -> dict[str, dict[str, Any] | None]:
        """`/v1/status` of each controller by client address; None: it does not answer.

        `with_digests`: also the `digest` of its replicated state, in time that grows with that.
        """
        await self._requests.view()
        addresses = self._requests.controllers()
        request = calls.GetStatus(digest=with_digests)
        ask = self._requests.asked
        answers = await asyncio.gather(*(ask(address, request) for address in addresses))
        return dict(zip(addresses, answers, strict=True))

    async def members(self) -> dict[str, Any]:
        """The controllers' member list in force, from the one that leads."""
        last: dict[str, Any] | None = None
        for address, status in (await self.all()).items():
            if status is not None and (last is None or status["role"] == "leader"):
                last = await self._requests.ask(address, "/v1/members") or last
        if last is None:
            raise PeerError("no controller answers")
        return last

    async def transfer_leadership(self, to: str | None = None) -> dict[str, Any]:
        """Have another controller than the present leader lead; CommandRefusedError: it cannot."""
        known = await self._requests.read(calls.GetCluster(linearizable=True))
        request = calls.TransferLeadership(to=to, from_=known["leader"], term=known["term"])
        return await self._requests.write(request)

    async def add(
        self, controller_id: str, *, raft: str, client: str, replaces: str | None = None
    ) -> int:
        """Begin to add a controller, or to put it in another's place; the generation."""
        request = calls.AddMember(
            controller_id=controller_id,
            raft=raft,
            client=client,
            replaces=replaces,
            generation=await self._generation(),
        )
        return int((await self._requests.write(request))["generation"])

    async def remove(self, controller_id: str) -> int:
        """Begin to take a controller out, or give up one that is catching up; the generation."""
        generation = await self._generation()
        request = calls.RemoveMember(controller=controller_id, generation=generation)
        return int((await self._requests.write(request))["generation"])

    async def _generation(self) -> int:
        """Of the member list that a change starts from."""
        return int((await self._requests.read(calls.ListMembers(linearizable=True)))["generation"])

    __call__ = all  # its former name, for one version: `await admin.controllers()`
