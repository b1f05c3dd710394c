"""Passwords: hashed for good, and a few at a time."""

import asyncio

import pytest

from paceline.errors import OverloadedError
from paceline.platform.runtime import SystemRandom
from paceline.security import passwords as module
from paceline.security.passwords import Passwords

PASSWORD = "correct horse battery"


async def test_a_hash_knows_its_password_and_no_other() -> None:
    passwords = Passwords(SystemRandom())
    kept = await passwords.hash(PASSWORD)

    assert kept.startswith("$argon2id$")
    assert PASSWORD not in kept
    assert kept != await passwords.hash(PASSWORD), "each has its own salt"
    assert await passwords.is_password(kept, PASSWORD)
    for wrong in ("", PASSWORD + " ", PASSWORD.upper(), kept):
        assert not await passwords.is_password(kept, wrong)
    assert not await passwords.is_password("", ""), "who has no password cannot log in"
    assert not await passwords.is_password("no hash", PASSWORD)


async def test_a_storm_of_logins_is_refused_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 4)
    passwords = Passwords(SystemRandom())
    kept = await passwords.hash(PASSWORD)
    checks = [passwords.is_password(kept, PASSWORD) for _ in range(14)]
    results = await asyncio.gather(*checks, return_exceptions=True)

    assert results.count(True) == 4
    assert sum(isinstance(each, OverloadedError) for each in results) == 10
    assert await passwords.is_password(kept, PASSWORD)
