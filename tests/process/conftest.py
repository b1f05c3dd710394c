"""Fixtures of the tests that throw bad input at one running cluster. Each of several test processes
has ports of its own, so that their clusters start side by side."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.process.harness import running_cluster
from tests.support.process.target import Target

from paceline.cli.local.free_ports import END, FIRST, RANGE_VARIABLE

if "PYTEST_XDIST_WORKER" in os.environ:
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    share = (END - FIRST) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    begin = FIRST + number * share
    os.environ[RANGE_VARIABLE] = f"{begin}-{begin + share}"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A healthy cluster, shared by the tests of a module."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        target = Target(cluster)
        with asyncio.Runner() as runner:
            runner.run(target.prepare())
        yield target


@pytest.fixture
async def nothing_changes(target: Target) -> AsyncIterator[None]:
    """After the test everything is as before, and the cluster works."""
    before = await target.state()
    yield
    assert await target.state() == before
    await target.send_and_pull()
