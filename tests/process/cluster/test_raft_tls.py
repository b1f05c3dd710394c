"""Controllers as processes, their Raft over mutual TLS: who is let in, and that the rest works."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.support.certificates import Authority, Files
from tests.support.process.harness import eventually, http_session, log_tails, tracebacks

from paceline.admin.client import AdminClient
from paceline.cli.local.local_cluster import ClusterPlan, LocalCluster, Node

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

NAMES = ("c1", "c2", "c3")


class Secured:
    """Three controllers and one broker; each controller has a certificate of one authority."""

    def __init__(self, folder: Path) -> None:
        plan = ClusterPlan(data_dir=folder / "data", brokers_per_group=1, port=0)
        self.local = LocalCluster(plan)
        self.local.prepare()
        self._plain = {node.name: node.config_path.read_text() for node in self.local.nodes}
        self._read_up_to = dict.fromkeys(self._plain, 0)
        self.authority = Authority(folder / "certificates")
        self.files = {name: self.authority.issue(name, file=name) for name in NAMES}

    def node(self, name: str) -> Node:
        return next(node for node in self.local.nodes if node.name == name)

    def start(self, name: str, files: Files | None = None) -> None:
        """A fresh process, with `raft_tls_*` if there are files; from now on logs count anew."""
        tls = "" if files is None else _settings(files)
        self.node(name).config_path.write_text(self._plain[name] + tls)
        for other in self.local.nodes:
            self._read_up_to[other.name] = len(_text(other.log_path))
        self.local.restart(self.node(name))

    async def end(self, name: str, number: signal.Signals | None = None) -> int:
        """Wait for the end of a process, of a signal or by itself; its exit status."""
        if number is not None:
            self.local.signal(self.node(name), number)

        async def has_ended() -> bool:
            self.local.reap()
            return not self.node(name).is_running

        await eventually(has_ended, what=f"the end of {name}")
        status = self.node(name).exit_status
        assert status is not None
        return status

    async def says(self, name: str, sentence: str) -> None:
        """It writes that into its log, since the last start of any node."""

        async def is_said() -> bool:
            return sentence in _text(self.node(name).log_path)[self._read_up_to[name] :]

        await eventually(is_said, what=f"{name} says {sentence!r}")

    async def leader(self, among: tuple[str, ...] = NAMES) -> str:
        """Waited for; the one that says so itself, and is agreed upon by all of `among`."""

        async def agreed() -> str | None:
            async with http_session() as http:
                told = [await _status(http, self.node(name).address) for name in among]
            leaders = {leader for _, leader in told}
            if len(leaders) != 1 or ("leader", *leaders) not in told:
                return None
            return leaders.pop()

        return await eventually(agreed, what=f"a leader of {among}")


def _settings(files: Files) -> str:
    return (
        f'raft_tls_cert = "{files.certificate}"\n'
        f'raft_tls_key = "{files.key}"\n'
        f'raft_tls_ca = "{files.authority}"\n'
    )


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


async def _status(http: aiohttp.ClientSession, address: str) -> tuple[str, str | None]:
    """(role, leader) as one controller tells it."""
    try:
        async with http.get(f"http://{address}/v1/status") as answer:
            document = await answer.json()
            return document.get("role", "none"), document.get("leader")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return "none", None


@contextmanager
def _running(folder: Path) -> Iterator[Secured]:
    """All started, with TLS; stopped on exit, and none of them told of a bug."""
    made = Secured(folder)
    try:
        for name in NAMES:
            made.start(name, made.files[name])
        made.start("g1-b1")
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
    foreign = Authority(tmp_path / "foreign")
    with _running(tmp_path) as secured:
        await secured.leader()
        away, others = "c3", ("c1", "c2")  # lower ids dial
        expired = secured.authority.issue(away, file="expired", is_expired=True)
        assert await secured.end(away, signal.SIGTERM) == 0

        async with AdminClient(secured.local.controller_addresses) as admin:
            secured.start(away, foreign.issue(away))
            for name in others:
                await secured.says(name, "the peer's certificate is refused: ")
            await admin.topics.create("without-the-foreign-one", queues=1)
            await secured.end(away, signal.SIGKILL)

            secured.start(away)
            await secured.says(away, "the peer speaks TLS, this controller does not")
            for name in others:
                await secured.says(name, "the peer does not speak TLS, this controller does")
            await secured.end(away, signal.SIGKILL)

            secured.start(away, expired)
            assert await secured.end(away) == 2
            await secured.says(away, f"raft_tls_cert {expired.certificate} (or its authority in")

            secured.start(away, secured.files[away])
            dying = await secured.leader()
            await secured.end(dying, signal.SIGKILL)
            rest = tuple(name for name in NAMES if name != dying)
            assert await secured.leader(rest) in rest
            await admin.topics.create("after-the-leader", queues=1)
            topics = [topic.topic for topic in await admin.topics.all()]

    assert topics == ["after-the-leader", "without-the-foreign-one"]
