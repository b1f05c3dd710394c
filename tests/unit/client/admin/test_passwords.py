"""A password that is changed by whoever knows it: what a repetition can say of the first try."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web
from tests.support.app_server import AppServer

from paceline.admin.client import AdminClient
from paceline.errors import LoginFailedError, OutcomeUnknownError, PacelineError, to_problem


@asynccontextmanager
async def answering(*errors: PacelineError) -> AsyncIterator[AdminClient]:
    """A client of a controller that answers changes of passwords with these, one after the other;
    then that they are done."""
    left = list(errors)

    async def change(_: web.Request) -> web.Response:
        if not left:
            return web.json_response({})
        error = left.pop(0)
        body = orjson.dumps(to_problem(error))
        return web.Response(status=error.status, body=body, content_type="application/problem+json")

    app = web.Application()
    app.add_routes([web.post("/v1/users/bob/password", change)])
    async with AppServer(app) as server, AdminClient(server.address) as admin:
        yield admin


async def change(admin: AdminClient) -> None:
    await admin.users.change_password("bob", "the present one", "a quite different one")


async def test_a_change_that_is_repeated_may_have_been_carried_out_before() -> None:
    """The repetition is refused because the password is another: perhaps by the first try."""
    failed = LoginFailedError("its password is another")
    async with answering(OutcomeUnknownError("no answer of the leader came"), failed) as admin:
        with pytest.raises(OutcomeUnknownError, match="an earlier try may have done it"):
            await change(admin)


async def test_a_change_whose_repetition_is_carried_out_is_done() -> None:
    async with answering(OutcomeUnknownError("no answer of the leader came")) as admin:
        await change(admin)


async def test_a_wrong_password_is_told_as_such() -> None:
    async with answering(LoginFailedError("its password is another")) as admin:
        with pytest.raises(LoginFailedError):
            await change(admin)
