"""A node's audit goes to a master: at least once, in order, and nothing waits for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.askers import PROOFS
from tests.support.audit import FOLDER, on_disk, sequences, tell
from tests.support.controller.harness import eventually
from tests.support.rights import a_security
from tests.support.service.fakes import GROUP, a_view

from paceline.errors import UnauthenticatedError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.platform.telemetry import Metrics
from paceline.security import audit_files, audit_sending
from paceline.security.access import Access
from paceline.security.audit_files import AuditFiles, AuditKept, AuditMemory
from paceline.security.audit_sending import AuditNode, AuditSending
from paceline.security.node_tls import Dial
from paceline.types import GroupName, ReplicaId
from paceline.wire.cluster import ClusterView
from paceline.wire.proof import CHALLENGE_HEADER
from paceline.wire.users import Mode

NODE = AuditNode("c1", 0, "")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_MS", "RETRY_FIRST_MS", "RETRY_MAX_MS"):
        monkeypatch.setattr(audit_sending, name, 1)


class Masters:
    """Two broker groups, whose masters answer as the test says."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []
        """(group, sequence) of each record that was taken."""
        self.dropped: list[int] = []
        """What each of them says."""
        self.answers: dict[str, Callable[[], int]] = {"g1": lambda: 200, "g2": lambda: 200}
        self.asked_count = 0
        self.view: ClusterView | None = None

    def app(self, group: str) -> web.Application:
        async def take(request: web.Request) -> web.Response:
            body = await request.read()
            try:
                assert PROOFS.is_node("POST", request.raw_path, request.headers)
            except UnauthenticatedError:
                headers = {CHALLENGE_HEADER: PROOFS.challenge}
                return web.json_response({}, status=401, headers=headers)
            self.asked_count += 1
            status = self.answers[group]()
            if status == 200:
                rows: list[dict[str, Any]] = orjson.loads(body)["records"]
                self.got += [(group, row["sequence"]) for row in rows]
                self.dropped += [row.get("dropped", 0) for row in rows]
            return web.json_response({}, status=status)

        app = web.Application()
        app.router.add_post("/v1/audit", take)
        return app


@asynccontextmanager
async def masters() -> AsyncIterator[Masters]:
    found = Masters()
    async with TestServer(found.app("g1")) as one, TestServer(found.app("g2")) as two:
        view = a_view()
        groups = {}
        for name, server in (("g1", one), ("g2", two)):
            group = view.groups[GROUP]
            master = replace(
                group.replicas[ReplicaId(1)], client_address=f"127.0.0.1:{server.port}"
            )
            replicas = {**group.replicas, ReplicaId(1): master}
            groups[GroupName(name)] = replace(group, group=GroupName(name), replicas=replicas)
        found.view = replace(view, groups=groups)
        yield found


@asynccontextmanager
async def a_node(
    found: Masters,
    disk: MemoryDisk | None = None,
    *,
    mode: Mode = Mode.ON,
    open_kept: Callable[[], AuditKept] | None = None,
) -> AsyncIterator[tuple[Access, AuditSending]]:
    access = Access(ManualClock())
    sending = AuditSending(
        NODE,
        access,
        open_kept=open_kept or partial(AuditFiles, disk or MemoryDisk(), FOLDER),
        random=SeededRandom("audit"),
        view=lambda: found.view,
        proofs=PROOFS,
        dial=Dial(),
    )
    access.apply(a_security(mode=mode))
    sending.start()
    try:
        yield access, sending
    finally:
        await sending.stop()


async def test_records_arrive_in_order_and_once() -> None:
    async with masters() as found, a_node(found) as (access, sending):
        tell(access.audit, 3)
        await eventually(lambda: len(found.got) >= 3, "the first")
        tell(access.audit, 2)
        await eventually(lambda: sending.sent_count == 5, "all")

    assert found.got == [("g1", number) for number in range(1, 6)]


async def test_while_no_master_takes_records_they_wait_and_another_group_does() -> None:
    async with masters() as found, a_node(found) as (access, sending):
        found.answers = {"g1": lambda: 503, "g2": lambda: 503}
        tell(access.audit, 3)
        await eventually(lambda: found.asked_count > 4, "some attempts")
        assert found.got == []

        found.answers["g2"] = lambda: 200
        await eventually(lambda: sending.sent_count == 3, "the other group")
        asked = found.asked_count
        tell(access.audit)
        await eventually(lambda: sending.sent_count == 4, "it is asked first from now on")

    assert found.got == [("g2", number) for number in range(1, 5)]
    assert found.asked_count == asked + 1


async def test_what_waited_is_sent_after_a_restart_also_without_a_view_for_long() -> None:
    disk = MemoryDisk()
    async with masters() as found:
        view, found.view = found.view, None
        async with a_node(found, disk) as (access, _):
            tell(access.audit, 3)
        async with a_node(found, disk) as (access, sending):
            tell(access.audit)
            found.view = view
            await eventually(lambda: sending.sent_count == 4, "all")

    assert found.got == [("g1", number) for number in range(1, 5)]


async def test_records_that_a_master_holds_for_none_stop_nothing() -> None:
    async with masters() as found, a_node(found) as (access, sending):
        found.answers["g1"] = lambda: 400
        tell(access.audit)
        await eventually(lambda: sending.refused_count == 1, "it is passed over")
        found.answers["g1"] = lambda: 200
        tell(access.audit)
        await eventually(lambda: sending.sent_count == 1, "the next one")

    assert found.got == [("g1", 2)]


async def test_a_cluster_without_rights_has_no_files_and_no_task() -> None:
    disk = MemoryDisk()
    async with masters() as found:
        before = len(asyncio.all_tasks())
        async with a_node(found, disk, mode=Mode.OFF) as (access, _):
            assert len(asyncio.all_tasks()) == before
            assert not disk.exists("/data/audit/sent.json")

            access.apply(a_security(version=2, mode=Mode.DRY_RUN))
            assert disk.exists("/data/audit/sent.json")


async def test_a_full_disk_hurts_nobody_and_what_it_did_not_take_is_told_later() -> None:
    """The files were opened once only: a disk that was full then meant no audit, and no count."""
    disk = MemoryDisk(capacity_bytes=0)
    async with masters() as found, a_node(found, disk) as (access, sending):
        tell(access.audit, 3)
        assert access.is_on
        assert (sending.sent_count, access.audit.dropped_count) == (0, 3)

        disk.capacity_bytes = None
        await eventually(lambda: disk.exists("/data/audit/sent.json"), "it is tried again")
        tell(access.audit)
        await eventually(lambda: sending.sent_count == 1, "it is sent")

    assert [record.dropped for record in on_disk(disk)] == [3]


async def test_a_disk_that_cannot_be_read_for_a_moment_delays_what_waits() -> None:
    """Without a record that comes later."""
    disk = MemoryDisk()
    async with masters() as found, a_node(found, disk) as (access, sending):
        found.answers = {"g1": lambda: 503, "g2": lambda: 503}
        tell(access.audit, 3)
        await eventually(lambda: found.asked_count > 2, "some attempts")
        disk.fail_next("pread", count=5)
        found.answers = {"g1": lambda: 200, "g2": lambda: 200}

        await eventually(lambda: sending.sent_count == 3, "it is sent all the same")


async def test_days_without_a_master_cost_a_bounded_disk_and_the_rest_is_sent_in_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_files, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(audit_files, "FILES_MAX", 3)
    disk = MemoryDisk()
    async with masters() as found:
        view, found.view = found.view, None
        async with a_node(found, disk) as (access, sending):
            metrics = Metrics(cluster="c", node_type="broker", node_id="g1/1")
            sending.register(metrics)
            tell(access.audit, 200)
            assert len(disk.list("/data/audit")) == 3 + 1
            lost, unsent = measured(metrics, "lost_total"), measured(metrics, "unsent_bytes")
            left = sequences(on_disk(disk))

            found.view = view
            await eventually(lambda: sending.sent_count == len(left), "the rest")
            assert measured(metrics, "unsent_bytes") == 0

    assert [sequence for _, sequence in found.got] == left == list(range(left[0], 201))
    assert lost > 0
    assert caplog.messages.count("audit_file_lost") == lost, "each is told"
    assert 2 * 2_000 < unsent <= 3 * 2_000


async def test_a_process_without_a_disk_keeps_a_bounded_audit_and_says_what_it_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_files, "KEPT_BYTES_MAX", 2_000)
    kept = AuditMemory()
    async with masters() as found:
        view, found.view = found.view, None
        async with a_node(found, open_kept=lambda: kept) as (access, sending):
            tell(access.audit, 200)
            assert 0 < kept.unsent_bytes <= 2_000
            waiting = access.audit.written_count
            assert access.audit.dropped_count == 200 - waiting

            found.view = view
            await eventually(lambda: sending.sent_count == waiting, "what waited")
            tell(access.audit)
            await sending.drain(timeout_ms=10_000)

            assert (kept.unsent_bytes, kept.has_unsent, kept.unsent()) == (0, False, None)

    assert [sequence for _, sequence in found.got] == list(range(1, waiting + 2))
    assert found.dropped == [0] * waiting + [200 - waiting]


async def test_what_no_master_takes_before_a_process_without_a_disk_ends_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with masters() as found, a_node(found, open_kept=AuditMemory) as (access, sending):
        found.view = None
        tell(access.audit)

        await sending.drain(timeout_ms=20)

        assert "audit_lost" in caplog.messages


def measured(metrics: Metrics, name: str) -> float:
    text = metrics.exposition()[0].decode()
    [line] = [each for each in text.splitlines() if each.startswith(f"paceline_audit_{name} ")]
    return float(line.split()[1])
