"""Logins with a password: checked here, guesses are slowed down, a token is made."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from paceline.errors import LoginFailedError
from paceline.security.login_backoff import LoginBackoff
from paceline.security.passwords import Passwords
from paceline.security.tokens import ID_BYTES, LoginToken, Secrets, write_token
from paceline.wire.calls.request import Request
from paceline.wire.commands import Once
from paceline.wire.controller_calls.security import ChangePassword, Login
from paceline.wire.users import User
from paceline_controller.server.call_context import CallContext
from paceline_controller.state.security_commands import PutUser

SourcedHandler: TypeAlias = Callable[[Any, Once | None, str], Awaitable[Mapping[str, Any]]]
"""As `Handler`, and is told the address that a request came from."""


class Logins:
    """Of the controller that leads: another one relays."""

    def __init__(self, context: CallContext, *, secrets: Secrets) -> None:
        self._context = context
        self._secrets = secrets
        self.passwords = Passwords(context.node.random)
        self._backoff = LoginBackoff(context.clock.monotonic_ms)
        self.handlers: Mapping[type[Request[Any]], SourcedHandler] = {
            Login: self._login,
            ChangePassword: self._change,
        }

    async def _login(self, call: Login, _: Once | None, source: str) -> dict[str, Any]:
        user = await self._checked(call.user, call.password, source)
        expires_unix_ms = self._context.clock.unix_ms() + call.lifetime_ms
        token = LoginToken(
            call.user, user.logins, expires_unix_ms, self._context.node.random.token(ID_BYTES).hex()
        )
        cluster_id = self._context.node.machine.cluster_id
        access_key, secret_key = write_token(token, cluster_id=cluster_id, secrets=self._secrets)
        return {
            "user": call.user,
            "access_key": access_key,
            "secret_key": secret_key,
            "expires_unix_ms": expires_unix_ms,
        }

    async def _change(self, call: ChangePassword, once: Once | None, source: str) -> dict[str, Any]:
        user = await self._checked(call.user, call.present, source)
        hashed = await self.passwords.hash(call.password)
        # Both waited: somebody may have set another one, or made another user of that name.
        command = PutUser(user=call.user, password=hashed, if_logins=user.logins)
        return await self._context.write(command, once)

    async def _checked(self, name: str, password: str, source: str) -> User:
        """The user with that password. LoginFailedError, QuotaExceededError, OverloadedError."""
        with self._backoff.trying(name, source):
            await self._context.read_barrier()
            user = self._context.node.machine.security.users.get(name) or User()
            if not await self.passwords.is_password(user.password, password) or not user.is_enabled:
                raise LoginFailedError(
                    "there is no such user, it is disabled or has no password, or its password is"
                    " another"
                )
            return user
