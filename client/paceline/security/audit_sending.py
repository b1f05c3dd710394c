"""The audit of a node on its way into the topic `%SYS%AUDIT`, where it is replicated.

Each node sends what its files have to the master of any broker group, at least once and in order,
as a node of the cluster (`security.node_proof`). It is no producer: those are part of the client,
and have users. Nothing waits for it: while no master takes records they stay in the files.

The files are opened when rights are switched on for the first time; before, there is no task. A
process without a disk has its records in memory.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import aiohttp
import orjson

from paceline.errors import BadRequestError, StorageError, in_words
from paceline.platform.ports import Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.platform.telemetry import Metrics
from paceline.security.access import Access
from paceline.security.audit_files import AuditKept, Batch
from paceline.security.audit_peers import RefusedPeers
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.wire.calls.audit import TakeAudit
from paceline.wire.calls.request import http_form
from paceline.wire.cluster import ClusterView

log = logging.getLogger("paceline.audit")

GATHER_MS = 200
"""Records that come so close after each other are sent together."""
RETRY_FIRST_MS, RETRY_MAX_MS = 500, 10_000
TIMEOUT_S = 5.0


class AuditNode(NamedTuple):
    """Whose audit it is."""

    name: str
    sample_one_in: int
    source_host: str


class AuditSending:
    """Of one node. `start`, then `stop`."""

    def __init__(
        self,
        node: AuditNode,
        access: Access,
        *,
        open_kept: Callable[[], AuditKept],
        random: Random,
        view: Callable[[], ClusterView | None],
        proofs: NodeProofs,
        dial: Dial,
    ) -> None:
        """`open_kept`: opens where records wait; StorageError. `view`: the newest one that this
        node knows."""
        self._node, self._access = node, access
        self.peers = RefusedPeers(access)
        self._open_kept, self._random, self._view = open_kept, random, view
        self._proofs, self._dial = proofs, dial
        self._files: AuditKept | None = None
        self._news = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._http: aiohttp.ClientSession | None = None
        self._is_running = False
        self._preferred = ""
        """The group whose master has taken records last."""
        self.sent_count = 0
        self.refused_count = 0
        """Records that a master holds for none: they are in the files only."""
        access.on_change(self._rights_changed)

    def start(self) -> None:
        self._is_running = True
        self._rights_changed()

    async def drain(self, *, timeout_ms: int) -> None:
        """Before `stop`, where nothing keeps what is not sent: tell all, and wait until it is."""
        self.peers.close()
        if self._files is None or not self._files.has_unsent:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._all_sent.wait()
        except TimeoutError:
            log.error("audit_lost", extra={"bytes": self._files.unsent_bytes})

    async def stop(self) -> None:
        """What is not sent yet stays in the files."""
        self._is_running = False
        self.peers.close()
        await cancel_and_wait(self._task)
        if self._http is not None:
            await self._http.close()
        if self._files is not None:
            self._files.close()

    def register(self, metrics: Metrics) -> None:
        """Metrics of the audit's way."""
        metrics.sampled(
            "paceline_audit_sent_total",
            "Records of the audit that a master has stored; alert when it lags behind"
            " paceline_audit_records_total for long.",
            lambda: self.sent_count,
        )
        metrics.sampled(
            "paceline_audit_lost_total",
            "Audit files that went before they were sent, and records that a master refused; alert"
            " when it grows.",
            lambda: self.refused_count + (self._files.lost_files if self._files else 0),
        )
        metrics.sampled(
            "paceline_audit_unsent_bytes",
            "Bytes of the audit that no master has taken yet, at most; alert when it stays above a"
            " file (4 MiB): beyond 64 MiB the oldest are lost.",
            lambda: self._files.unsent_bytes if self._files else 0,
        )

    def _rights_changed(self) -> None:
        if not self._is_running or self._task is not None or not self._access.is_on:
            return
        self._open()
        self._task = spawn(self._run(), name="audit")

    def _open(self) -> AuditKept | None:
        """None: the disk does not take files now."""
        try:
            files = self._files = self._open_kept()
        except StorageError as error:
            log.error("audit_not_opened", extra={"fault": error.message})
            self._access.audit.await_files()
            return None
        self._access.audit.keep(
            files,
            node=self._node.name,
            sample_one_in=self._node.sample_one_in,
            on_record=self._recorded,
        )
        self._recorded()
        return files

    def _recorded(self) -> None:
        self._all_sent.clear()
        self._news.set()

    async def _run(self) -> None:
        while (files := self._files or self._open()) is None:
            await pause(RETRY_MAX_MS)
        wait_ms = RETRY_FIRST_MS
        while True:
            await self._news.wait()
            self._news.clear()
            await pause(GATHER_MS)
            while files.has_unsent:
                if await self._send_some(files):
                    wait_ms = RETRY_FIRST_MS
                else:
                    await pause(wait_ms * self._random.uniform(0.5, 1.0))
                    wait_ms = min(wait_ms * 2, RETRY_MAX_MS)
            self._all_sent.set()

    async def _send_some(self, files: AuditKept) -> bool:
        """False: neither sent nor read; it is to be tried again."""
        try:
            batch = files.unsent()
        except StorageError as error:
            log.error("audit_not_read", extra={"fault": error.message})
            return False
        if batch is None:
            return True
        if not await self._send(batch):
            return False
        self._settle(files, batch)
        return True

    def _settle(self, files: AuditKept, batch: Batch) -> None:
        try:
            files.sent(batch)
        except StorageError as error:
            # After a restart it is sent once more, which does no harm.
            log.warning("audit_place_not_saved", extra={"fault": error.message})

    async def _send(self, batch: Batch) -> bool:
        """Whether the batch is done with."""
        request = http_form(TakeAudit(records=batch.records))
        body = orjson.dumps(request.body)
        for group, address in self._masters():
            answer = await self._post(address, request.path, body)
            if answer == 200:
                self._preferred = group
                self.sent_count += len(batch.records)
                return True
            if answer == BadRequestError.status:
                log.error("audit_not_taken", extra={"records": len(batch.records)})
                self.refused_count += len(batch.records)
                return True
        return False

    def _masters(self) -> Iterable[tuple[str, str]]:
        """Broker group and address, the one that took records last first."""
        view = self._view()
        groups = {} if view is None else view.groups
        for name in sorted(groups, key=lambda name: (name != self._preferred, name)):
            master = groups[name].master_view()
            if master is not None:
                yield name, master.client_address

    async def _post(self, address: str, path: str, body: bytes) -> int:
        """The status of the answer; 0: there was none."""
        if self._http is None:
            local = (self._node.source_host, 0) if self._node.source_host else None
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(local_addr=local, force_close=True),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            )
        try:
            async with self._proofs.request(
                self._http,
                "POST",
                address,
                path,
                body=body,
                headers={"Content-Type": "application/json"},
                **self._dial.http(address, path),
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    said = (await answer.content.read(1_000)).decode("utf-8", "replace")
                    log.info("audit_waits", extra={"master": address, "why": said})
                return answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.info("audit_waits", extra={"master": address, "why": in_words(error)})
            return 0
