"""One port for TLS and plain connections, told apart by the first byte; certificates in use."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.platform.runtime import SystemClock
from paceline.security import listening
from paceline.security.authority import Authority
from paceline.security.certificates import TlsFiles
from paceline.security.listening import Listening, listen
from paceline.security.node_tls import Dial, NodeTls, TlsMode

DAY_MS = 24 * 3600 * 1000
TIMEOUT_S = 5.0


class Upper(asyncio.Protocol):
    """Says back what it hears, in capitals."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's

    def data_received(self, data: bytes) -> None:
        self._transport.write(data.upper())


class Bed:
    """An authority, a node's files, and its listener."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.now_ms = SystemClock().unix_ms()
        self.authority.init(common_name="test", now_unix_ms=self.now_ms)
        self.issue("node")
        self.listening: Listening

    def issue(self, name: str, *, days: int = 2, began_days_ago: int = 0) -> None:
        began_ms = self.now_ms - began_days_ago * DAY_MS
        self.authority.issue(name, ("127.0.0.1",), now_unix_ms=began_ms, days=days)

    @property
    def files(self) -> TlsFiles:
        certificate, key = self.authority.paths("node")
        return TlsFiles(str(certificate), str(key), str(self.authority.certificate))

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority.certificate)

    async def ask(self, word: bytes, context: ssl.SSLContext | None = None) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.listening.port, ssl=context
            )
            try:
                writer.write(word)
                return await reader.read(1024)
            finally:
                writer.close()


@asynccontextmanager
async def a_bed(
    folder: Path,
    mode: TlsMode = TlsMode.PREFERRED,
    *,
    minimum: str = "1.3",
    is_for_nodes: bool = False,
) -> AsyncIterator[tuple[Bed, NodeTls]]:
    bed = Bed(folder)
    tls = NodeTls(bed.files, mode, minimum=minimum)
    bed.listening = await listen(Upper, "127.0.0.1", 0, tls=tls, is_for_nodes=is_for_nodes)
    try:
        yield bed, tls
    finally:
        bed.listening.close()


async def test_both_kinds_are_served_and_counted(tmp_path: Path) -> None:
    async with a_bed(tmp_path) as (bed, tls):
        assert await bed.ask(b"plain") == b"PLAIN"
        assert await bed.ask(b"hidden", bed.trusting()) == b"HIDDEN"

        assert (tls.plain_count, tls.tls_count, tls.failed_count) == (1, 1, 0)


async def test_where_tls_is_enforced_a_plain_client_is_told_so(tmp_path: Path) -> None:
    async with a_bed(tmp_path, TlsMode.ENFORCING) as (bed, _):
        said = await bed.ask(b"GET / HTTP/1.1\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"this port takes TLS only" in said
        assert await bed.ask(b"hidden", bed.trusting()) == b"HIDDEN"


async def test_a_new_certificate_counts_for_new_connections_and_old_ones_stay(
    tmp_path: Path,
) -> None:
    async with a_bed(tmp_path) as (bed, tls):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", bed.listening.port, ssl=bed.trusting()
        )
        before = writer.get_extra_info("peercert")["serialNumber"]
        assert not tls.reload(), "nothing has changed"
        bed.issue("node")

        assert tls.reload()

        writer.write(b"still here")
        assert await reader.read(100) == b"STILL HERE"
        _, other = await asyncio.open_connection(
            "127.0.0.1", bed.listening.port, ssl=bed.trusting()
        )
        assert other.get_extra_info("peercert")["serialNumber"] != before
        for each in (writer, other):
            each.close()


@pytest.mark.parametrize("wrong", ["pair", "expired", "gone", "garbage"])
async def test_a_pair_that_is_no_good_is_refused_and_the_old_one_stays(
    wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_bed(tmp_path) as (bed, tls):
        certificate, key = bed.authority.paths("node")
        if wrong == "pair":
            bed.issue("other")
            bed.authority.paths("other")[1].replace(key)
        elif wrong == "expired":
            bed.issue("node", days=1, began_days_ago=3)
        elif wrong == "gone":
            certificate.unlink()
        else:
            certificate.write_text("not a certificate")

        assert not tls.reload()

        assert "tls_not_reloaded" in caplog.text
        assert await bed.ask(b"hidden", bed.trusting()) == b"HIDDEN"


async def test_an_authority_is_replaced_in_two_steps(tmp_path: Path) -> None:
    """First both, then the new one: nobody is shut out on the way."""
    (tmp_path / "new").mkdir()
    async with a_bed(tmp_path / "old") as (bed, tls):
        other = Bed(tmp_path / "new")
        both = bed.authority.certificate.read_text() + other.authority.certificate.read_text()
        bed.authority.certificate.write_text(both)
        assert tls.reload()
        for ours, theirs in zip(
            bed.authority.paths("node"), other.authority.paths("node"), strict=True
        ):
            theirs.replace(ours)
        assert tls.reload()

        assert await bed.ask(b"new", other.trusting()) == b"NEW"
        bed.authority.certificate.write_text(other.authority.certificate.read_text())
        assert tls.reload()
        assert await bed.ask(b"new", other.trusting()) == b"NEW"


async def test_a_port_for_nodes_wants_a_certificate_of_whoever_comes(tmp_path: Path) -> None:
    async with a_bed(tmp_path, TlsMode.ENFORCING, is_for_nodes=True) as (bed, tls):
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await bed.ask(b"nobody", bed.trusting()) == b"", "it is closed, or reset"
        options = Dial(tls).options("127.0.0.1")
        assert options["ssl"] is tls.client
        assert await bed.ask(b"node", tls.client) == b"NODE"


@pytest.mark.parametrize(
    ("names", "is_taken"),
    [
        (("URI:paceline:client/ana",), False),
        (("URI:paceline:client/ana", "127.0.0.1"), False),
        (("URI:paceline:client/ana", "URI:paceline:broker/b1"), True),
        (("127.0.0.1",), True),
    ],
)
async def test_a_port_for_nodes_takes_no_certificate_of_a_client(
    names: tuple[str, ...], is_taken: bool, tmp_path: Path
) -> None:
    """GHSA-38x3-76xf-cq45 of NATS: what was for clients opened the port between servers."""
    async with a_bed(tmp_path, TlsMode.ENFORCING, is_for_nodes=True) as (bed, tls):
        bed.authority.issue("ana", names, now_unix_ms=bed.now_ms)
        shown = bed.trusting()
        shown.load_cert_chain(*bed.authority.paths("ana"))
        said = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            said = await bed.ask(b"ana", shown)

        assert said == (b"ANA" if is_taken else b"")
        assert tls.failed_count == (0 if is_taken else 1)


async def test_an_older_version_is_refused(tmp_path: Path) -> None:
    async with a_bed(tmp_path) as (bed, tls):
        old = bed.trusting()
        old.maximum_version = ssl.TLSVersion.TLSv1_2

        with pytest.raises((ssl.SSLError, ConnectionError)):
            await bed.ask(b"old", old)
    assert NodeTls(bed.files, TlsMode.PREFERRED, minimum="1.2").server.minimum_version == (
        ssl.TLSVersion.TLSv1_2
    )


@pytest.mark.parametrize("is_for_nodes", [False, True])
async def test_the_older_version_is_for_clients_alone(is_for_nodes: bool, tmp_path: Path) -> None:
    async with a_bed(tmp_path, minimum="1.2", is_for_nodes=is_for_nodes) as (bed, tls):
        old = bed.trusting()
        old.load_cert_chain(*bed.authority.paths("node"))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        said = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            said = await bed.ask(b"old", old)

        assert said == (b"" if is_for_nodes else b"OLD")
        assert tls.client.minimum_version == ssl.TLSVersion.TLSv1_3, "of dials to nodes"


async def test_half_open_handshakes_are_bounded_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKES_OF_ADDRESS_MAX", 8)
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 0.3)
    async with a_bed(tmp_path) as (bed, tls):
        silent = [socket.create_connection(("127.0.0.1", bed.listening.port)) for _ in range(40)]
        half = [socket.create_connection(("127.0.0.1", bed.listening.port)) for _ in range(20)]
        for each in half:
            each.sendall(bytes([22, 3, 1, 2, 0]))  # the head of a record that never comes

        assert await bed.ask(b"hidden", bed.trusting()) == b"HIDDEN"
        for each in (*silent, *half):
            each.setblocking(False)
            with closing(each):
                await ended(each)
        assert tls.failed_count >= 1


async def test_half_open_handshakes_keep_nobody_of_their_address_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKES_OF_ADDRESS_MAX", 8)
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 600.0)
    async with a_bed(tmp_path, is_for_nodes=True) as (bed, tls):
        with contextlib.ExitStack() as opened:
            half = [
                opened.enter_context(socket.create_connection(("127.0.0.1", bed.listening.port)))
                for _ in range(40)
            ]
            for each in half:
                each.setblocking(False)
                each.sendall(bytes([22, 3, 1, 2, 0]))
            for each in half[:-8]:
                await ended(each)

            assert await bed.ask(b"hidden", tls.client) == b"HIDDEN"
            assert tls.failed_count >= 1, "the oldest went for the new one"


async def ended(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(TIMEOUT_S):
        with contextlib.suppress(ConnectionResetError):
            assert await loop.sock_recv(connection, 1) in (b"", b"\x15"), "an alert, or the end"


async def test_a_port_that_can_accept_nobody_rests_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "RETRY_S", 0.01)
    tries = 0

    class Full(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(socket, "socket", Full)
    async with a_bed(tmp_path) as (bed, _):
        assert await bed.ask(b"hidden", bed.trusting()) == b"HIDDEN"
    assert 3 <= tries < 10, "each time after a rest"


async def test_garbage_harms_nobody(tmp_path: Path) -> None:
    async with a_bed(tmp_path, TlsMode.ENFORCING) as (bed, _):
        for size in (1, 5, 6, 100, 20_000):
            with closing(socket.create_connection(("127.0.0.1", bed.listening.port))) as stranger:
                stranger.sendall(bytes([22]) + os.urandom(size))
        assert await bed.ask(b"hidden", bed.trusting()) == b"HIDDEN"


def test_files_that_others_can_read_or_that_are_none_are_named(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    key = bed.authority.paths("node")[1]
    key.chmod(0o640)
    with pytest.raises(ConfigError, match=f"tls_key {key} has mode 0640"):
        NodeTls(bed.files, TlsMode.ENFORCING)
    key.chmod(0o600)
    bed.issue("node", days=1, began_days_ago=3)
    with pytest.raises(ConfigError, match="has expired"):
        NodeTls(bed.files, TlsMode.ENFORCING)
