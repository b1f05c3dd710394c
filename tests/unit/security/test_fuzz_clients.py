"""Everything that is read from a client before it is known: TLS, request heads, streams.

CVE-2026-27889 and CVE-2026-33218 (NATS): a malformed frame ended the server before anybody was
known. `--fuzz-seconds` makes it as long as one likes, `--fuzz-seed` another run.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
from tests.support.askers import PROOFS
from tests.support.controller.harness import Controllers, controllers
from tests.support.fuzzing import (
    Flood,
    Say,
    Sockets,
    bounded,
    client_hello,
    eventually_served,
    in_pieces,
    no_error_of_its_own,
    saying,
    spoiled,
)
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import UPGRADE, RawStream
from tests.support.rights import a_security

from paceline.platform.runtime import SystemClock
from paceline.platform.telemetry import Metrics
from paceline.security.authority import Authority
from paceline.security.certificates import TlsFiles
from paceline.security.node_tls import NodeTls, TlsMode
from paceline.security.passwords import AT_ONCE_MAX
from paceline.server import http_guard
from paceline.wire import session as wire
from paceline.wire.stream import Operation, encode_frame
from paceline.wire.users import LOGIN_PREFIX
from paceline_broker.server.http import BrokerHttp

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
HEADS = (
    b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    b"HEAD /v1/status HTTP/1.1\r\n" + HOST + b"Authorization: Bearer key-ana.sk_wrong\r\n\r\n",
    b"GET /v1/topics/%2e%2e%2f/queues/0/messages?offset=0 HTTP/1.0\r\n\r\n",
    b"POST /v1/call HTTP/1.1\r\n" + HOST + JSON + b'Content-Length: 18\r\n\r\n{"call":"clients"}',
    b"POST /v1/call HTTP/1.1\r\n"
    + HOST
    + JSON
    + b'Transfer-Encoding: chunked\r\n\r\n12\r\n{"call":"clients"}\r\n0\r\n\r\n',
    b"PUT /v1/users/ana HTTP/1.1\r\n" + HOST + JSON + b"Expect: 100-continue\r\n"
    b"Content-Length: 2\r\n\r\n{}",
    b"POST /v1/fetch HTTP/1.1\r\n" + HOST + JSON + b"Content-Encoding: gzip\r\n"
    b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n\x1f\x8b\x08\x00",
    b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X-%d: y\r\n" % n for n in range(200)) + b"\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/1.1\r\n" + HOST + b"Paceline-Node: c1 00 00\r\nPaceline-Source: \r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /v1/status HTTP/1.1\r\n"
    + HOST
    + b"Authorization: Bearer "
    + LOGIN_PREFIX.encode()
    + b"WyJhbmEiLDAsMSwiYWIiXQ.AAAA\r\n\r\n",
    b"GET /v1/status HTTP/1.1\r\n" + HOST + b"Authorization: Bearer "
    b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbmEifQ.AAAA\r\n\r\n",
    b"POST /v1/login HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 38\r\n\r\n"
    b'{"user":"ana","password":"0123456789"}',
    UPGRADE,
    b"GET %s HTTP/1.1\r\n" % wire.PATH.encode() + HOST + b"Connection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
)
FRAMES = (
    encode_frame(1, Operation.PRODUCE, a_batch(b"x")),
    encode_frame(2, Operation.FETCH, a_fetch((1, 0, 0))),
    encode_frame(3, Operation.FOLLOW, bytes(64)),
    encode_frame(4, Operation.CALL, b'{"call":"routes"}'),
    encode_frame(
        5, Operation.CALL, b'{"call":"heartbeat","group":"g","client_id":"c","topics":[]}'
    ),
)


PASSWORDS_BYTES = AT_ONCE_MAX * 64 * 2**20
"""What passwords take that are checked at once."""


def streaming(rng: random.Random) -> Sequence[bytes]:
    """A stream is opened as it should be, then frames."""
    frames = [
        spoiled(rng, each) if rng.randrange(3) == 0 else each
        for each in rng.choices(FRAMES, k=rng.randrange(1, 6))
    ]
    return [UPGRADE, *in_pieces(rng, b"".join(frames))]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[NodeTls, Path]:
    folder = tmp_path_factory.mktemp("authority")
    authority, now_ms = Authority(folder), SystemClock().unix_ms()
    authority.init(common_name="test", now_unix_ms=now_ms)
    authority.issue("node", ("127.0.0.1",), now_unix_ms=now_ms)
    certificate, key = authority.paths("node")
    files = TlsFiles(str(certificate), str(key), str(authority.certificate))
    return NodeTls(files, TlsMode.PREFERRED), authority.certificate


@asynccontextmanager
async def a_broker(tls: NodeTls, *, has_rights: bool = True) -> AsyncIterator[tuple[Door, int]]:
    """One that takes both kinds of connection, and its port."""
    async with a_door() as door:
        if has_rights:
            door.service.access.apply(a_security())
        metrics = Metrics(cluster="c", node_type="broker", node_id="g1/2")
        http = BrokerHttp(door.service, metrics=metrics, proofs=PROOFS)
        port = await http.start("127.0.0.1", 0, tls=tls)

        def held() -> dict[str, int]:
            return {"connections": http.connections_count, "bytes": door.service.budget.used_bytes}

        try:
            async with bounded(held):
                yield door, port
        finally:
            await http.close()


async def asked(port: int, context: ssl.SSLContext | None = None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(HEADS[0])
    head = await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    assert head.startswith(b"HTTP/1.1 200"), head


def tls_records(rng: random.Random) -> Sequence[bytes]:
    hello = client_hello()
    kinds = (
        hello,
        hello + hello,
        b"\x16\x03\x01" + rng.randbytes(2) + rng.randbytes(300),
        bytes([rng.choice((20, 21, 22, 23, 24)), 3, rng.randrange(5), 255, 255]) + bytes(70_000),
        b"\x80\x2e\x01\x00\x02" + bytes(50),  # as SSL 2 began
        b"\x15\x03\x03\x00\x02\x02\x28",  # an alert
        b"\x18\x03\x02\x00\x03\x01\x40\x00",  # a heartbeat that asks for more than it says
    )
    chosen = rng.choice(kinds)
    return in_pieces(rng, chosen if rng.randrange(3) == 0 else spoiled(rng, chosen))


SAYS: dict[str, Say] = {"heads": saying(*HEADS), "tls": tls_records, "streams": streaming}


@pytest.mark.parametrize("what", SAYS)
async def test_a_broker_outlives_what_strangers_say(
    what: str,
    tls: tuple[NodeTls, Path],
    fuzz: tuple[float, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    node_tls, authority = tls
    trusting = ssl.create_default_context(cafile=authority)
    with no_error_of_its_own(caplog):
        async with a_broker(node_tls, has_rights=what != "streams") as (_, port):
            flood = Flood(port, seed=fuzz[1])
            await flood.run(SAYS[what], seconds=fuzz[0])
            await eventually_served(lambda: asked(port))
            await eventually_served(lambda: asked(port, trusting))
            assert flood.count >= 20


async def test_a_broker_outlives_what_strangers_say_inside_of_tls(
    tls: tuple[NodeTls, Path], fuzz: tuple[float, int], caplog: pytest.LogCaptureFixture
) -> None:
    node_tls, authority = tls
    trusting = ssl.create_default_context(cafile=authority)
    with no_error_of_its_own(caplog):
        async with a_broker(node_tls) as (_, port):
            flood = Flood(port, seed=fuzz[1])
            await flood.run(SAYS["heads"], seconds=fuzz[0], context=trusting)
            await eventually_served(lambda: asked(port, trusting))


async def test_a_controller_outlives_what_strangers_say(
    fuzz: tuple[float, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions too: what comes where a broker's hello should."""
    session = HEADS[-1]

    def say(rng: random.Random) -> Sequence[bytes]:
        if rng.randrange(2):
            return SAYS["heads"](rng)
        text = b'{"type":"hello","group":"g1","store_id":"s","nonce":"%s","proof":"%s"}' % (
            b"00" * 16,
            b"00" * 32,
        )
        frame = bytes([0x81, 0x80 | 126]) + len(text).to_bytes(2, "big") + bytes(4) + text
        return [session, *in_pieces(rng, spoiled(rng, frame))]

    with no_error_of_its_own(caplog):
        async with controllers() as cluster:
            node = cluster.leader
            node.access.apply(a_security())
            async with bounded(lambda: held_by(cluster), more_bytes=PASSWORDS_BYTES):
                await Flood(cluster.addresses[0].port, seed=fuzz[1]).run(say, seconds=fuzz[0])
                await eventually_served(lambda: asked(cluster.addresses[0].port))
            assert not node.hub.sessions


def held_by(cluster: Controllers) -> dict[str, int]:
    node = cluster.leader
    return {"connections": node.places.count, "bytes": node.budget.used_bytes}


@pytest.mark.parametrize(
    "said",
    [b"", b"\x16", client_hello()[:40], client_hello()],
    ids=["silent", "byte", "half", "one"],
)
async def test_500_half_open_handshakes_keep_nobody_out(
    said: bytes, tls: tuple[NodeTls, Path], caplog: pytest.LogCaptureFixture
) -> None:
    node_tls, authority = tls
    trusting = ssl.create_default_context(cafile=authority)
    with no_error_of_its_own(caplog):
        async with a_broker(node_tls) as (_, port):
            half_open = Sockets(port)
            await half_open.say(said, 500)
            await eventually_served(lambda: asked(port))
            await eventually_served(lambda: asked(port, trusting))
            half_open.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_2])
async def test_a_handshake_of_an_older_version_is_refused_and_counted(
    version: ssl.TLSVersion, tls: tuple[NodeTls, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A downgrade: what the client offers, or what somebody between made of its offer."""
    node_tls, authority = tls
    with no_error_of_its_own(caplog):
        async with a_broker(node_tls) as (_, port):
            old = ssl.create_default_context(cafile=authority)
            old.set_ciphers("ALL:@SECLEVEL=0")
            with (
                pytest.warns(DeprecationWarning, match="TLSv1 is deprecated")
                if version < ssl.TLSVersion.TLSv1_2
                else nullcontext()
            ):
                old.minimum_version = old.maximum_version = version
            failed = node_tls.failed_count
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asked(port, old)
            assert node_tls.failed_count == failed + 1


async def test_who_begins_a_second_handshake_on_a_connection_is_cut_off(
    tls: tuple[NodeTls, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Renegotiation."""
    node_tls, authority = tls
    assert node_tls.server.options & ssl.OP_NO_RENEGOTIATION
    with no_error_of_its_own(caplog):
        async with a_broker(node_tls) as (_, port):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            context = ssl.create_default_context(cafile=authority)
            made = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                try:
                    made.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65536))
            writer.write(outgoing.read() + client_hello())
            async with asyncio.timeout(5):
                while await reader.read(65536):
                    pass
            writer.close()


async def test_a_stream_that_is_good_is_served_beside_bad_ones(
    tls: tuple[NodeTls, Path], fuzz: tuple[float, int], caplog: pytest.LogCaptureFixture
) -> None:
    with no_error_of_its_own(caplog):
        async with a_broker(tls[0], has_rights=False) as (_, port), asyncio.TaskGroup() as group:
            flooding = group.create_task(Flood(port, seed=fuzz[1]).run(streaming, seconds=fuzz[0]))
            served = 0
            while not flooding.done():
                stream = await RawStream.open(port)
                assert (await stream.call("routes"))[0] == 0
                stream.writer.transport.abort()
                served += 1
    assert served > 0


async def test_a_head_that_never_ends_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, tls: tuple[NodeTls, Path], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_guard, "HEADER_TIMEOUT_S", 0.3)
    with no_error_of_its_own(caplog):
        async with a_broker(tls[0]) as (_, port):
            slow = Sockets(port)
            await slow.say(b"GET / HTTP/1.1\r\nX: ", 300)
            await eventually_served(lambda: asked(port))
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(10):
                for each in slow.open:
                    try:
                        while await loop.sock_recv(each, 65536):
                            pass
                    except OSError:
                        continue  # reset, which is an end
            slow.close()
