"""Where a client's connections start from."""

import asyncio

import pytest

from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.types import GroupName


@pytest.mark.parametrize("source_host", ["", "127.0.0.2"])
async def test_http_and_streams_start_from_the_source_host(source_host: str) -> None:
    seen: list[str] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[0])
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = "127.0.0.1:" + str(server.sockets[0].getsockname()[1])
    cluster = Cluster(address, source_host=source_host)
    async with server:
        with pytest.raises(PacelineError):
            await cluster.http.get(address, "/v1/routes", timeout_ms=5_000)
        with pytest.raises(PacelineError):
            await cluster.connect(address, GroupName("g1"))
        await cluster.close()

    assert set(seen) == {source_host or "127.0.0.1"}
    assert len(seen) >= 2
