"""Where a client's connections start from, and what it says of an answer that is none."""

import asyncio
import logging

import pytest

from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.connect import ConnectSettings, Credentials
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


@pytest.mark.parametrize(
    "answer", [b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03", b"hello\r\n\r\n"]
)
async def test_an_answer_that_is_no_http_is_told_without_the_key(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Aiohttp's error shows the request with all its headers."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    address = "127.0.0.1:" + str(server.sockets[0].getsockname()[1])
    credentials = Credentials(access_key="ana", secret_key="hush")
    cluster = Cluster(ConnectSettings(address, credentials))
    caplog.set_level(logging.DEBUG)
    cluster.start()
    async with server:
        with pytest.raises(PacelineError, match="one of a gateway's doors") as told:
            await cluster.http.get(address, "/v1/routes", timeout_ms=5_000)
        with pytest.raises(PacelineError) as of_watch:
            await cluster.watch.wait_for(lambda view: True, timeout_ms=100)
        await cluster.close()

    texts = [str(told.value), str(of_watch.value), *(str(vars(each)) for each in caplog.records)]
    assert not [text for text in texts if "hush" in text]
