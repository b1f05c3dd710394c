"""A fake cluster in a thread beside the command, because the command owns its event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import pytest
from click.testing import CliRunner
from tests.support.client.fake_cluster import FakeCluster

from paceline.cli import main as cli

Served = TypeVar("Served")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str


class Runner:
    """Runs `paceline ...` in this process against one cluster."""

    def __init__(self, cluster: FakeCluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self._loop = loop

    def on_cluster(self, act: Callable[[FakeCluster], Any]) -> Any:
        """Let `act` work with the cluster on the cluster's own loop."""

        async def run() -> Any:
            return act(self.cluster)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def __call__(self, *arguments: str, stdin: str | bytes = b"") -> Outcome:
        """The outcome of a command that is told where the cluster is."""
        return run_command(*arguments, stdin=stdin, bootstrap=self.cluster.controller)

    def json(self, *arguments: str, stdin: str | bytes = b"") -> list[Any]:
        """The JSON lines that a command prints with --json; it must succeed."""
        result = self(*arguments, "--json", stdin=stdin)
        assert result.exit_code == 0, result.stderr
        return [orjson.loads(line) for line in result.stdout.splitlines()]


def run_command(
    *arguments: str,
    stdin: str | bytes = b"",
    bootstrap: str = "",
    environment: Mapping[str, str] = {},
) -> Outcome:
    """Run `main` as a program would, with the cluster's address from the environment."""
    runner = CliRunner(
        env={
            "PACELINE_BOOTSTRAP": bootstrap or None,
            "PACELINE_CONFIG_DIR": "/nowhere/of/anybody",  # nobody's own profile
            **environment,
        }
    )
    with runner.isolation(input=stdin) as (stdout, stderr, _):
        exit_code = cli.main(arguments)
    return Outcome(
        exit_code=exit_code,
        stdout=stdout.getvalue().decode(),
        stderr=stderr.getvalue().decode(),
    )


@contextmanager
def beside(serving: AbstractAsyncContextManager[Served]) -> Iterator[Served]:
    """What `serving` gives, served on an event loop of its own in another thread."""
    started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    found: list[Served] = []

    async def serve() -> None:
        async with serving as served:
            found.append(served)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@pytest.fixture
def paceline() -> Iterator[Runner]:
    """`paceline` against a cluster of one group with the topic `orders` of 2 queues."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[Runner]:
        async with FakeCluster() as cluster:
            cluster.add_topic("orders", 2)
            yield Runner(cluster, asyncio.get_running_loop())

    with beside(serve()) as runner:
        yield runner
