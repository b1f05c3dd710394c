"""Fixtures of the tests that throw bad input at one running cluster."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.process.harness import running_cluster
from tests.process.target import Target


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
