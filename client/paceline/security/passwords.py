"""Shell: passwords are hashed with argon2id, beside the event loop and a few at a time.

A hash takes 64 MiB and some 50 ms of a core on purpose (RFC 9106, second choice). Without a bound a
storm of logins would take the whole machine.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from paceline.errors import OverloadedError
from paceline.platform.ports import Random

ResultT = TypeVar("ResultT")

AT_ONCE_MAX = 2
WAITING_MAX = 32


class Passwords:
    """Of one controller."""

    def __init__(self, random: Random) -> None:
        self._hasher = PasswordHasher(type=Type.ID)
        self._random = random
        self._running = asyncio.Semaphore(AT_ONCE_MAX)
        self._count = 0
        self._of_nobody = ""

    async def hash(self, password: str) -> str:
        """What is kept of a password. OverloadedError."""
        salt = self._random.token(16)
        return await self._aside(partial(self._hasher.hash, password, salt=salt))

    async def is_password(self, kept: str, password: str) -> bool:
        """Whether `kept` is of that password. Empty: of none, which takes as long to find out, so
        that nobody can tell whether a user exists. OverloadedError."""
        if not self._of_nobody:
            self._of_nobody = await self.hash(self._random.token(16).hex())
        return await self._aside(partial(self._verify, kept or self._of_nobody, password))

    def _verify(self, kept: str, password: str) -> bool:
        try:
            return self._hasher.verify(kept, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _aside(self, work: Callable[[], ResultT]) -> ResultT:
        if self._count >= WAITING_MAX:
            raise OverloadedError("too many passwords are being checked", retry_after_ms=1_000)
        self._count += 1
        try:
            async with self._running:
                return await asyncio.get_running_loop().run_in_executor(None, work)
        finally:
            self._count -= 1
