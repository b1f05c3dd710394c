"""A broker that is asked to stop does so at once, whoever waits for an answer of it."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest
from tests.support.process.harness import eventually, running_cluster

from paceline.platform.runtime import spawn

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

STOP_MS_MAX = 3_000
LONG_MS = 30_000
"""Long polls wait so long unless something happens."""


@pytest.mark.alone
async def test_long_polls_do_not_keep_a_broker_that_nobody_replaces(tmp_path: Path) -> None:
    """Its hand-over is impossible; while it lingers its group has a master that takes nothing."""
    one_of_each = ("--controllers", "1", "--brokers", "1")
    with running_cluster(tmp_path / "data", *one_of_each) as cluster:
        [broker] = cluster.brokers()
        base = f"http://{broker['address']}"
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{base}/v1/status") as answer,
        ):
            version = (await answer.json())["view_version"]
        waiting = asyncio.Event()
        poll = spawn(_poll(f"{base}/v1/watch?from={version}", waiting), name="poll")
        await waiting.wait()

        cluster.send_signal(broker["name"], signal.SIGTERM)

        async def has_ended() -> bool:
            try:
                os.kill(broker["pid"], 0)
            except ProcessLookupError:
                return True
            return False

        await eventually(has_ended, within_ms=STOP_MS_MAX, what="the end of the broker")
        await poll


async def _poll(url: str, waiting: asyncio.Event) -> None:
    """A long poll: it is answered with the view that there is."""

    async def sent(*_: object) -> None:
        waiting.set()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(sent)
    async with (
        aiohttp.ClientSession(trace_configs=[trace]) as http,
        http.get(f"{url}&wait_ms={LONG_MS}") as answer,
    ):
        assert answer.status == 200
