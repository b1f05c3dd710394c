"""Queue locks of the remoting door: tokens that clients never see (R33)."""

from typing import Any

import orjson
import pytest
from tests.support.gateway.remoting import a_gateway

from paceline.net.group_links import GroupLinks
from paceline.wire.calls.offsets import Commit
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode

QUEUE = {"topic": "orders", "brokerName": "g1", "queueId": 0}


def locking(client_id: str) -> bytes:
    return orjson.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": [QUEUE]})


async def test_who_locks_before_its_first_heartbeat_commits_with_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that was made anew: the next heartbeat may be due in half a minute."""
    tokens = []
    call = GroupLinks.call

    async def noting(links: GroupLinks, group: Any, request: Any, **how: Any) -> Any:
        if isinstance(request, Commit):
            tokens.append(request.offsets[0].token)
        return await call(links, group, request, **how)

    monkeypatch.setattr(GroupLinks, "call", noting)
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one")
        await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c1"))

        committed = await client.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 1},
        )

        assert committed.code == ResponseCode.SUCCESS
        [token] = tokens
        assert token is not None


async def test_a_lock_that_was_got_at_another_gateway_is_given_back() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c1"))
        [user] = gateway.door.dispatcher._users.values()
        user.locks.gone("c1")  # as one that has never heard of it

        others = await client.ask(RequestCode.UNLOCK_BATCH_MQ, {}, locking("c2"))
        held = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c2"))
        await client.ask(RequestCode.UNLOCK_BATCH_MQ, {}, locking("c1"))
        free = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c2"))

        assert others.code == ResponseCode.SUCCESS
        assert orjson.loads(bytes(held.body))["lockOKMQSet"] == []
        assert orjson.loads(bytes(free.body))["lockOKMQSet"] == [QUEUE]
