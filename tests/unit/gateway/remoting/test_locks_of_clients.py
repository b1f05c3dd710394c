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


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """That commits name."""
    tokens: list[Any] = []
    call = GroupLinks.call

    async def noting(links: GroupLinks, group: Any, request: Any, **how: Any) -> Any:
        if isinstance(request, Commit):
            tokens.append(request.offsets[0].token)
        return await call(links, group, request, **how)

    monkeypatch.setattr(GroupLinks, "call", noting)
    return tokens


COMMIT = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 1}


async def test_who_locks_before_its_first_heartbeat_commits_with_its_token(
    tokens: list[Any],
) -> None:
    """A connection that was made anew: the next heartbeat may be due in half a minute."""
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one")
        await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c1"))

        committed = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)

        assert committed.code == ResponseCode.SUCCESS
        [token] = tokens
        assert token is not None


@pytest.mark.parametrize("left", [{"producerGroup": "g"}, {"consumerGroup": "other"}])
async def test_a_client_that_leaves_one_group_keeps_the_locks_of_the_others(
    tokens: list[Any], left: dict[str, str]
) -> None:
    """Java's producers and consumers of one program are one client."""
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.heartbeat("c1", consumers=["g", "other"], producers=["g"])
        await client.send(b"one")
        await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c1"))

        await client.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", **left})
        [user] = gateway.door.dispatcher._users.values()
        assert user.groups.has_member("g", "c1")
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)
        await client.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g"})

        [token] = tokens
        assert token is not None
        assert not len(user.locks)


async def test_a_lock_that_was_got_at_another_gateway_is_given_back() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c1"))
        [user] = gateway.door.dispatcher._users.values()
        user.locks.gone("g", "c1")  # as one that has never heard of it

        others = await client.ask(RequestCode.UNLOCK_BATCH_MQ, {}, locking("c2"))
        held = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c2"))
        await client.ask(RequestCode.UNLOCK_BATCH_MQ, {}, locking("c1"))
        free = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, locking("c2"))

        assert others.code == ResponseCode.SUCCESS
        assert orjson.loads(bytes(held.body))["lockOKMQSet"] == []
        assert orjson.loads(bytes(free.body))["lockOKMQSet"] == [QUEUE]
