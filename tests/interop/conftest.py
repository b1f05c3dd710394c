"""One peer for all tests, by default paceline, and a scene for each test: its programs."""

import asyncio
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from interop.rocketmq import RocketMQ
from tests.interop.peers import PacelinePeer, Peer, ToolsPeer
from tests.interop.scene import Scene
from tests.support.process.harness import running_cluster

FLAWS = {
    'because "settings" is null': (
        "RocketMQ's proxy refuses a receive that overtakes the settings of its client"
    ),
    "not support unquoted name": (
        "RocketMQ's tool cannot read what its controller answers to electMaster"
    ),
    "> not found.'": "RocketMQ's broker has no connection of Go's requester to push the reply to",
}
"""What a test of a real RocketMQ may fail with, and why it is RocketMQ's: DIVERGENCE.md has it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.config.getoption("--peer") == "rocketmq" and call.excinfo:
        told = str(call.excinfo.value)
        for words, why in FLAWS.items():
            if words in told:
                report.outcome, report.wasxfail = "skipped", why
    return report


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Peer]:
    """`--peer paceline`, `--peer rocketmq`, or `--peer GRPC,NAMESERVER`: two addresses."""
    wanted: str = request.config.getoption("--peer")
    if wanted == "paceline":
        folder = tmp_path_factory.mktemp("cluster") / "data"
        with running_cluster(folder, "--doors", "grpc,remoting", restart=True) as cluster:
            yield PacelinePeer(cluster)
    elif wanted == "rocketmq":
        rocketmq = RocketMQ()
        await rocketmq.start()
        yield ToolsPeer(
            grpc_endpoint=rocketmq.grpc_endpoint, nameserver=rocketmq.nameserver, owned=rocketmq
        )
        await rocketmq.stop()
    else:
        grpc_endpoint, _, nameserver = wanted.partition(",")
        yield ToolsPeer(grpc_endpoint=grpc_endpoint, nameserver=nameserver, owned=None)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(peer: Peer, tmp_path: Path) -> AsyncIterator[Scene]:
    """Programs that end with the test."""
    scene = Scene(peer, tmp_path)
    yield scene
    async with asyncio.timeout(30):
        await scene.close()
