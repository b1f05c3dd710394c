"""Controllers as processes, their links by TLS: who is let in, and how a quorum comes to it."""

import asyncio
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.support.process.consuming import bodies_of
from tests.support.process.harness import eventually, http_session, log_tails, tracebacks

from paceline.admin.client import AdminClient
from paceline.cli.local.local_cluster import ClusterPlan, LocalCluster, Node
from paceline.message import Message
from paceline.net.connect import ClientTls, ConnectSettings
from paceline.platform.runtime import SystemClock, spawn
from paceline.producer.producer import Producer
from paceline.security.authority import Authority
from paceline.security.node_tls import TlsMode

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

NAMES = ("c1", "c2", "c3")
BROKER = "g1-b1"
DAY_MS = 24 * 3600 * 1000
HANGS_MS = 40_000
"""Four interpreters may start at once on a busy machine."""
PLAIN, ENFORCING = TlsMode.DISABLED, TlsMode.ENFORCING


class Secured:
    """Three controllers and one broker; each has a certificate of one authority."""

    def __init__(self, folder: Path) -> None:
        plan = ClusterPlan(data_dir=folder / "data", brokers_per_group=1, port=0, has_tls=True)
        self.local = LocalCluster(plan)
        self.local.prepare()
        self._plain = {node.name: _without_tls(node.config_path) for node in self.local.nodes}
        self._read_up_to = dict.fromkeys(self._plain, 0)
        self._modes = dict.fromkeys(self._plain, PLAIN)
        self.authority = Authority(plan.tls_folder)
        self.trusting = ssl.create_default_context(cafile=self.authority.certificate)

    def node(self, name: str) -> Node:
        return next(node for node in self.local.nodes if node.name == name)

    def by_tls(self, *names: str) -> ConnectSettings:
        """To these nodes, by whoever trusts the authority."""
        tls = ClientTls(ca_file=str(self.authority.certificate))
        return ConnectSettings([self.node(name).address for name in names], tls=tls)

    def issue_expired(self, name: str) -> None:
        names = ("127.0.0.1", f"URI:paceline:controller/{name}")
        began_ms = SystemClock().unix_ms() - 3 * DAY_MS
        self.authority.issue(name, names, now_unix_ms=began_ms, days=1)

    def start(self, name: str, mode: TlsMode, authority: Authority | None = None) -> None:
        """A fresh process with its certificate of that authority, or of the one of all; from now
        on logs count anew."""
        authority = authority or self.authority
        certificate, key = authority.paths(name)
        self._modes[name] = mode
        settings = "" if mode is PLAIN else _settings(mode, certificate, key, authority.certificate)
        self.node(name).config_path.write_text(self._plain[name] + settings)
        for other in self.local.nodes:
            self._read_up_to[other.name] = len(_text(other.log_path))
        self.local.restart(self.node(name))

    async def go(self, name: str, mode: TlsMode) -> None:
        """Restart it with another mode, and wait until it follows, or leads, again."""
        assert await self.end(name, signal.SIGTERM) == 0
        self.start(name, mode)
        if name in NAMES:
            await self.leader()

    async def end(self, name: str, number: signal.Signals | None = None) -> int:
        """Wait for the end of a process, of a signal or by itself; its exit status."""
        if number is not None:
            self.local.signal(self.node(name), number)

        async def has_ended() -> bool:
            self.local.reap()
            return not self.node(name).is_running

        await eventually(has_ended, within_ms=HANGS_MS, what=f"the end of {name}")
        status = self.node(name).exit_status
        assert status is not None
        return status

    async def says(self, name: str, sentence: str) -> None:
        """It writes that into its log, since the last start of any node."""

        async def is_said() -> bool:
            return sentence in _text(self.node(name).log_path)[self._read_up_to[name] :]

        await eventually(is_said, within_ms=HANGS_MS, what=f"{name} says {sentence!r}")

    async def leader(self, among: tuple[str, ...] = NAMES) -> str:
        """Waited for; the one that says so itself, and is agreed upon by all of `among`."""

        async def agreed() -> str | None:
            async with http_session() as http:
                told = [await self._status(http, name) for name in among]
            leaders = {leader for _, leader in told}
            if len(leaders) != 1 or ("leader", *leaders) not in told:
                return None
            return leaders.pop()

        return await eventually(agreed, within_ms=HANGS_MS, what=f"a leader of {among}")

    async def _status(self, http: aiohttp.ClientSession, name: str) -> tuple[str, str | None]:
        """(role, leader) as one controller tells it."""
        try:
            async with http.get(self._url(name, "/v1/status"), ssl=self.trusting) as answer:
                document = await answer.json()
                return document.get("role", "none"), document.get("leader")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return "none", None

    async def metric(self, name: str, counted: str) -> float:
        """`paceline_tls_..._total` of a node."""
        async with (
            http_session() as http,
            http.get(self._url(name, "/metrics"), ssl=self.trusting) as answer,
        ):
            lines = (await answer.text()).splitlines()
        (line,) = (line for line in lines if line.startswith(f"paceline_tls_{counted}_total "))
        return float(line.rsplit(" ", 1)[1])

    def _url(self, name: str, path: str) -> str:
        scheme = "http" if self._modes[name] is PLAIN else "https"
        return f"{scheme}://{self.node(name).address}{path}"


def _without_tls(config: Path) -> str:
    lines = config.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("tls_"))


def _settings(mode: TlsMode, certificate: Path, key: Path, authority: Path) -> str:
    return (
        f'tls_mode = "{mode}"\n'
        f'tls_cert = "{certificate}"\n'
        f'tls_key = "{key}"\n'
        f'tls_ca = "{authority}"\n'
    )


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def _running(folder: Path, *, controllers: TlsMode, broker: TlsMode) -> Iterator[Secured]:
    """All started; stopped on exit, and none of them told of a bug."""
    made = Secured(folder)
    try:
        for name in NAMES:
            made.start(name, controllers)
        made.start(BROKER, broker)
        yield made
    except BaseException as error:
        error.add_note(log_tails(folder / "data"))
        raise
    finally:
        made.local.stop()
    assert tracebacks(folder / "data") == []


async def test_controllers_over_tls_shut_strangers_out_and_outlive_their_leader(
    tmp_path: Path,
) -> None:
    now_ms = SystemClock().unix_ms()
    foreign = Authority(tmp_path / "foreign")
    foreign.init(common_name="foreign", now_unix_ms=now_ms)
    with _running(tmp_path, controllers=ENFORCING, broker=ENFORCING) as secured:
        await secured.leader()
        away, others = "c3", ("c1", "c2")  # lower ids dial
        foreign.issue(away, ("127.0.0.1", "URI:paceline:controller/c3"), now_unix_ms=now_ms)
        assert await secured.end(away, signal.SIGTERM) == 0

        async with AdminClient(secured.by_tls(*others)) as admin:
            secured.start(away, ENFORCING, foreign)
            for name in others:
                await secured.says(name, "the peer's certificate is refused: ")
            await admin.topics.create("without-the-foreign-one", queues=1)
            await secured.end(away, signal.SIGKILL)

            secured.start(away, PLAIN)
            await secured.says(away, "the peer speaks TLS, this controller does not")
            for name in others:
                await secured.says(name, "the peer does not speak TLS, this node does")
            await secured.end(away, signal.SIGKILL)

            secured.issue_expired(away)
            secured.start(away, ENFORCING)
            assert await secured.end(away) == 2
            await secured.says(away, f"tls_cert {secured.authority.paths(away)[0]} (or its")

            secured.authority.renew(away, now_unix_ms=now_ms)
            secured.start(away, ENFORCING)
            dying = await secured.leader()
            await secured.end(dying, signal.SIGKILL)
            rest = tuple(name for name in NAMES if name != dying)
            assert await secured.leader(rest) in rest
        async with AdminClient(secured.by_tls(*rest)) as admin:
            await admin.topics.create("after-the-leader", queues=1)
            topics = [topic.topic for topic in await admin.topics.all()]

    assert topics == ["after-the-leader", "without-the-foreign-one"]


async def test_a_quorum_in_use_goes_to_tls_and_back_by_restarts_and_no_send_fails(
    tmp_path: Path,
) -> None:
    """The broker goes with it: it dials as its mode says, and takes the producer by TLS."""
    with _running(tmp_path, controllers=PLAIN, broker=TlsMode.PERMISSIVE) as secured:
        await secured.leader()
        async with AdminClient(secured.local.controller_addresses) as admin:
            await admin.topics.create("orders", queues=1)
        connect, sent, is_done = secured.by_tls(BROKER), list[bytes](), asyncio.Event()

        async def send() -> None:
            async with Producer(connect) as producer:
                while not is_done.is_set():
                    body = b"%d" % len(sent)
                    await producer.send(Message("orders", body))
                    sent.append(body)

        async def all_go(mode: TlsMode) -> None:
            for name in NAMES:
                await secured.go(name, mode)
            await grows(sent, sending)

        sending = spawn(send(), name="sending")
        await grows(sent, sending)
        await all_go(TlsMode.PERMISSIVE)
        await secured.go(BROKER, TlsMode.PREFERRED)
        await all_go(TlsMode.PREFERRED)
        await all_go(ENFORCING)
        plain = [await secured.metric(name, "plain_connections") for name in NAMES]
        by_tls = [await secured.metric(name, "connections") for name in NAMES]

        await all_go(TlsMode.PREFERRED)
        await all_go(TlsMode.PERMISSIVE)
        await secured.go(BROKER, TlsMode.PERMISSIVE)
        await all_go(PLAIN)
        is_done.set()
        await sending
        bodies = await bodies_of(connect, "orders", len(sent))

    assert plain == [0, 0, 0]
    assert min(by_tls) > 0
    assert bodies == sent, "in order, each once"


async def grows(sent: list[bytes], sending: "asyncio.Task[None]") -> None:
    count = len(sent)

    async def more() -> bool:
        if sending.done():
            await sending  # raises what it failed with
        return len(sent) > count + 20

    await eventually(more, within_ms=HANGS_MS, what="messages are sent")
