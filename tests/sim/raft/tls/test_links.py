"""Controllers with TLS on loopback sockets: who is let in, who is not, and what the logs say."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.sim.raft.cluster import NAMES, Cluster, eventually

from paceline.platform.runtime import SystemClock
from paceline.platform.secret import ClusterSecrets
from paceline.security import listening
from paceline.security.authority import Authority
from paceline.security.certificates import TlsFiles, make_contexts
from paceline.security.node_tls import NodeTls, TlsMode
from paceline.types import ControllerId

C1, C2, C3 = NAMES
DAY_MS = 24 * 3600 * 1000

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(60)]


def an_authority(folder: Path) -> Authority:
    authority = Authority(folder)
    authority.init(common_name=folder.name, now_unix_ms=SystemClock().unix_ms())
    return authority


def issued(authority: Authority, name: str, *, file: str = "", days_ago: int = 0) -> TlsFiles:
    """For that controller at 127.0.0.1, good for two days."""
    file = file or name
    began_ms = SystemClock().unix_ms() - days_ago * DAY_MS
    names = ("127.0.0.1", f"URI:paceline:controller/{name}")
    authority.issue(file, names, now_unix_ms=began_ms, days=2)
    certificate, key = authority.paths(file)
    return TlsFiles(str(certificate), str(key), str(authority.certificate))


class TlsCluster:
    """Three controllers, each with a certificate of one authority, and what they logged."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.authority = an_authority(folder / "certificates")
        self.files = {name: issued(self.authority, name) for name in NAMES}
        self.cluster = Cluster(str(folder / "data"))
        self._caplog = caplog
        self.loaded: dict[ControllerId, NodeTls | None] = {}
        self.refused: list[tuple[str, str]] = []
        """What the audit would tell."""

    def reload(self) -> list[bool]:
        """Each node looks at its files; whether it took others."""
        return [tls.reload() for tls in self.loaded.values() if tls is not None]

    def tls(self, name: ControllerId, mode: TlsMode = TlsMode.ENFORCING) -> NodeTls:
        return NodeTls(self.files[name], mode, own_uri=f"paceline:controller/{name}")

    async def start(self, name: ControllerId, tls: NodeTls | None) -> None:
        self.loaded[name] = tls
        node = self.cluster.make(name, tls=tls)
        node.on_refused(lambda source, error: self.refused.append((source, error.message)))
        await node.start()

    async def restart(self, name: ControllerId, tls: NodeTls | None) -> None:
        await self.cluster.nodes.pop(name).stop()
        self._caplog.clear()
        await self.start(name, tls)

    def reasons(self) -> list[tuple[str, str]]:
        """(Peer, why) of links that failed, as the logs of all nodes say."""
        warnings = [each for each in self._caplog.records if each.levelno >= logging.WARNING]
        return [
            (record.__dict__["peer"], record.__dict__["reason"])
            for record in warnings
            if record.getMessage() == "raft_link_failed"
        ] + [
            ("incoming", record.__dict__["why"])
            for record in warnings
            if record.getMessage() == "tls_handshake_failed"
        ]

    async def says(self, sentence: str, *peers: str) -> None:
        """Somebody says so, of each of the peers if there are any ("incoming" to a listener)."""

        def are_heard() -> bool:
            heard = {peer for peer, reason in self.reasons() if sentence in reason}
            return bool(heard) and heard.issuperset(peers)

        try:
            await eventually(are_heard)
        except TimeoutError:
            pytest.fail(f"nobody says {sentence!r} of {peers}: {self.reasons()}")

    async def is_linked_with_all(self, name: ControllerId) -> None:
        links = self.cluster.nodes[name]._links
        assert links is not None
        await eventually(lambda: all(links.is_linked(peer) for peer in NAMES if peer != name))

    def links_up(self) -> list[str]:
        """Peers that were linked since the last restart, on any side."""
        return [
            str(record.__dict__["peer"])
            for record in self._caplog.records
            if record.getMessage() == "raft_link_up"
        ]


@pytest_asyncio.fixture
async def bed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[TlsCluster]:
    caplog.set_level(logging.INFO, "paceline.raft")
    made = TlsCluster(tmp_path, caplog)
    try:
        yield made
        assert made.cluster.failures == {}
    finally:
        await made.cluster.stop()


@pytest_asyncio.fixture
async def secured(bed: TlsCluster) -> TlsCluster:
    for name in NAMES:
        await bed.start(name, bed.tls(name))
    await bed.cluster.write("first")
    await bed.cluster.settled()
    return bed


class Unchecked(NodeTls):
    """Of files that a controller would not start with."""

    def _load(self) -> None:
        self.client, self.node_server = make_contexts(self._files)
        self.server = self.node_server


def contexts(files: TlsFiles) -> NodeTls:
    return Unchecked(files, TlsMode.ENFORCING)


async def is_shut_out(bed: TlsCluster, name: ControllerId, value: str) -> None:
    """The others agree without it, and it learns of nothing."""
    await bed.cluster.write(value)
    assert name not in bed.links_up()
    assert value not in bed.cluster.machines[name].values


async def comes_back(bed: TlsCluster, name: ControllerId) -> None:
    await bed.restart(name, bed.tls(name))
    await bed.cluster.write("again")
    await eventually(lambda: "again" in bed.cluster.machines[name].values)
    assert bed.cluster.machines[name].values[0] == "first"


async def test_nothing_is_said_without_a_certificate(secured: TlsCluster) -> None:
    host, port = secured.cluster.addresses[C3]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"\x02\x00\x00\x00{}")
    said = b""
    with contextlib.suppress(ConnectionResetError):  # what it had said is not read there
        async with asyncio.timeout(5):
            said = await reader.read(100)
    assert said == b"" or said.startswith(b"HTTP/1.1 400 "), "as on all ports"
    writer.close()

    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(str(secured.authority.certificate))
    reader, writer = await asyncio.open_connection(host, port, ssl=bare)
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
        async with asyncio.timeout(5):
            await reader.readexactly(1)
    writer.close()
    await secured.says("the peer shows no certificate")
    assert [source for source, _ in secured.refused] == ["127.0.0.1"] * 2
    assert secured.refused[1][1] == "the peer shows no certificate"


async def test_only_tls_1_3_is_spoken(secured: TlsCluster) -> None:
    tls = secured.tls(C1)
    assert tls.client.minimum_version == ssl.TLSVersion.TLSv1_3
    assert tls.node_server.minimum_version == ssl.TLSVersion.TLSv1_3
    _, writer = await asyncio.open_connection(*secured.cluster.addresses[C3], ssl=tls.client)
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    shown = dict(writer.get_extra_info("peercert"))["subjectAltName"]
    assert ("URI", "paceline:controller/c3") in shown
    writer.transport.abort()


async def test_leadership_moves_and_links_return_with_tls(secured: TlsCluster) -> None:
    cluster = secured.cluster
    first = cluster.name_of(await cluster.leader())
    await cluster.nodes.pop(first).stop()
    await cluster.write("without it")
    second = cluster.name_of(await cluster.leader())
    assert second != first
    await secured.start(first, secured.tls(first))
    await cluster.write("with it")
    await cluster.settled()
    taken = [value for value in cluster.machines[first].values if value != "settled"]
    assert taken == ["first", "without it", "with it"]

    cluster.kill(second)
    await cluster.write("by another")
    assert cluster.name_of(await cluster.leader()) != second
    assert secured.reasons() == []


async def test_a_node_that_was_away_is_sent_many_megabytes(secured: TlsCluster) -> None:
    await secured.cluster.nodes.pop(C2).stop()
    values = [f"{number} " + "x" * 500_000 for number in range(12)]
    for value in values:
        await secured.cluster.write(value)
    await secured.start(C2, secured.tls(C2))
    await secured.cluster.settled()
    taken = [value for value in secured.cluster.machines[C2].values if value != "settled"]
    assert taken == ["first", *values]


async def test_a_certificate_for_another_controller_is_refused(secured: TlsCluster) -> None:
    await secured.restart(C2, contexts(secured.files[C3]))
    await secured.says("it is controller c2, and its certificate names c3: ", "incoming", C2)
    assert any(
        source == "127.0.0.1" and "it is controller c2" in why for source, why in secured.refused
    )
    await is_shut_out(secured, C2, "not for c2")
    await comes_back(secured, C2)


async def test_an_expired_certificate_is_refused(secured: TlsCluster) -> None:
    old = issued(secured.authority, "c2", file="old", days_ago=5)
    await secured.restart(C2, contexts(old))
    await secured.says("the peer's certificate is refused: certificate has expired", "incoming", C2)
    await is_shut_out(secured, C2, "not for c2")
    await comes_back(secured, C2)


async def test_a_certificate_of_another_authority_is_refused(
    secured: TlsCluster, tmp_path: Path
) -> None:
    foreign = issued(an_authority(tmp_path / "foreign"), "c2")
    knows_ours = foreign._replace(authority=str(secured.authority.certificate))
    await secured.restart(C2, contexts(knows_ours))
    await secured.says("certificate is refused: unable to get local issuer", "incoming", C2)
    await secured.restart(C2, contexts(foreign))
    await secured.says("certificate is refused: self-signed certificate in", C2, C3)
    await is_shut_out(secured, C2, "not for c2")
    await comes_back(secured, C2)


async def test_a_controller_without_tls_is_refused(secured: TlsCluster) -> None:
    await secured.restart(C2, None)
    await secured.says("the peer does not speak TLS, this node does", C2)
    await secured.says("the peer speaks TLS, this controller does not")
    await secured.says("the peer takes TLS only, this controller dials without", C3)
    await is_shut_out(secured, C2, "not for c2")
    await comes_back(secured, C2)


async def test_a_controller_with_tls_is_refused_by_those_without(bed: TlsCluster) -> None:
    for name in NAMES:
        await bed.start(name, None)
    await bed.cluster.write("first")
    await bed.cluster.settled()
    await bed.restart(C2, bed.tls(C2))
    await bed.says("the peer speaks TLS, this controller does not")
    await bed.says("the peer does not speak TLS, this node does")
    await is_shut_out(bed, C2, "not for c2")


async def test_certificates_and_authority_are_replaced_without_a_restart(
    secured: TlsCluster, tmp_path: Path
) -> None:
    """Only C2 is restarted, to see that the others take it, and whom they take."""
    trusted = secured.authority.certificate
    old_files = issued(secured.authority, "c2", file="old")
    other = an_authority(tmp_path / "other")
    both = trusted.read_bytes() + other.certificate.read_bytes()

    async def taken(step: str) -> None:
        assert secured.reload() == [True] * 3
        await secured.restart(C2, secured.loaded[C2])
        await secured.cluster.write(step)
        await eventually(lambda: step in secured.cluster.machines[C2].values)
        assert secured.reasons() == []

    trusted.write_bytes(both)
    await taken("both are trusted")
    for name in NAMES:
        made = issued(other, name)
        for ours, new in (
            (secured.files[name].certificate, made.certificate),
            (secured.files[name].key, made.key),
        ):
            Path(ours).write_bytes(Path(new).read_bytes())
    await taken("with certificates of the other")
    trusted.write_bytes(other.certificate.read_bytes())
    await taken("only the other is trusted")

    await secured.restart(C2, contexts(old_files._replace(authority=str(other.certificate))))
    await secured.says("certificate is refused", "incoming")
    await is_shut_out(secured, C2, "not for c2")


async def test_the_secret_is_asked_for_besides(secured: TlsCluster) -> None:
    await secured.cluster.nodes.pop(C2).stop()
    await secured.cluster.make(
        C2, secrets=ClusterSecrets(b"another secret"), tls=secured.tls(C2)
    ).start()
    await secured.says("has another cluster secret")
    await secured.cluster.write("not for c2")
    assert "not for c2" not in secured.cluster.machines[C2].values


async def test_a_quorum_goes_to_tls_and_back_one_node_at_a_time(bed: TlsCluster) -> None:
    """Through the modes of all ports, and nobody is shut out at any step."""
    for name in NAMES:
        await bed.start(name, None)
    await bed.cluster.write("first")
    there = (TlsMode.PERMISSIVE, TlsMode.PREFERRED, TlsMode.ENFORCING)
    for mode in (*there, *reversed(there[:-1]), None):
        for name in NAMES:
            await bed.restart(name, None if mode is None else bed.tls(name, mode))
            await bed.cluster.write(f"{name} {mode}")
            await bed.is_linked_with_all(name)
            assert bed.reasons() == []
        if mode is TlsMode.ENFORCING:
            used = [tls for tls in bed.loaded.values() if tls is not None]
            assert [tls.plain_count for tls in used] == [0] * 3
            assert sum(tls.tls_count for tls in used) >= 3


async def test_half_open_handshakes_are_nothing_to_the_quorum(
    secured: TlsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 600.0)
    leader = secured.cluster.name_of(await secured.cluster.leader())
    term = secured.cluster.nodes[leader].status().term
    with contextlib.ExitStack() as opened:
        for number in range(500):
            stranger = socket.create_connection(secured.cluster.addresses[NAMES[number % 3]])
            opened.enter_context(stranger)
            stranger.sendall(bytes([22, 3, 1, 2, 0]))  # the head of a record that never comes
            if number % 50 == 0:
                await secured.cluster.write(f"beside {number}")
        follower = next(name for name in NAMES if name != leader)
        await secured.restart(follower, secured.loaded[follower])
        await secured.cluster.write("again")
        await eventually(lambda: "again" in secured.cluster.machines[follower].values)

    assert secured.cluster.nodes[leader].status().term == term, "the leader has stayed"
