"""How commands ask the cluster through the admin client; imports it when they do."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from paceline.cli.options import Connect, open_cluster, run_async

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient

Result = TypeVar("Result")


def ask_secret(what: str, *, confirm: bool = False) -> str:
    """A secret from the terminal, which does not show it, or a line of standard input."""
    if sys.stdin.isatty():
        text: str = click.prompt(what, hide_input=True, confirmation_prompt=confirm, err=True)
        return text
    return sys.stdin.readline().strip()


def ask(connect: Connect, work: "Callable[[AdminClient], Awaitable[Result]]") -> Result:
    """What `work` gets from the cluster; its errors are shown in one place."""

    async def run() -> Result:
        from paceline.admin.client import AdminClient

        async with open_cluster(connect) as cluster, AdminClient(cluster) as admin:
            return await work(admin)

    return run_async(run())


def ask_as_stranger(connect: Connect, work: "Callable[[AdminClient], Awaitable[Result]]") -> Result:
    """As `ask`, of what needs no view of the cluster; credentials of before are not shown."""

    async def run() -> Result:
        from paceline.admin.client import AdminClient
        from paceline.net.connect import ConnectSettings

        settings = ConnectSettings(connect.bootstrap, tls=connect.tls)
        async with AdminClient(settings, timeout_ms=connect.timeout_ms) as admin:
            return await work(admin)

    return run_async(run())
