"""Tokens of queue locks go with their clients, not before the lease is over."""

import asyncio

import pytest
from tests.support.client.consumers import eventually

from paceline.types import GroupName
from paceline_gateway.remoting.state import locks as module
from paceline_gateway.remoting.state.locks import LockKey, Locks, Token

G1 = GroupName("g1")
TOKEN: Token = (3, 100)


def key(client_id: str) -> LockKey:
    return ("group", client_id, "orders", "g1", 0)


def token(locks: Locks, client_id: str) -> Token | None:
    return locks.token_of("group", client_id, "orders", G1, 0)


async def test_a_token_is_kept_for_a_lease_and_for_whoever_is_a_member_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEASE_MS", 50)
    members = {("group", "stays"), ("group", "goes")}
    locks = Locks(lambda *member: member in members)
    for client_id in ("stays", "goes", "never-came"):
        locks.held(key(client_id), TOKEN)
    members.remove(("group", "goes"))

    assert token(locks, "goes") == TOKEN, "it may come back within the lease"
    await eventually(lambda: len(locks) == 1)
    assert token(locks, "stays") == TOKEN

    members.clear()
    await eventually(lambda: not len(locks))
    assert locks._timer is None
    locks.held(key("again"), TOKEN)
    assert token(locks, "again") == TOKEN
    locks.close()


async def test_a_client_that_renews_keeps_its_token_however_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locks = Locks(lambda *_: False)
    locks.held(key("renews"), TOKEN)
    now = asyncio.get_running_loop().time() + module.LEASE_MS / 1000
    monkeypatch.setattr(locks._loop, "time", lambda: now)
    locks.held(key("renews"), (4, 200))

    locks._forget_ended()

    assert token(locks, "renews") == (4, 200)
    locks.close()
