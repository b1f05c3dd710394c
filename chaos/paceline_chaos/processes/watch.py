"""What the harness sees of the nodes while they run: their own word, decisions, and its own stalls.

Every broker and controller is asked for `/v1/status` every 200 ms, each by a task of its own, so
that one that sleeps holds nobody up. What the controllers' machine decided is read from their logs,
where every applied event is a line. The harness watches itself, too: a gap of its loop above 50 ms
makes what was measured meanwhile worthless.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import orjson

from paceline.platform.runtime import SystemClock, cancel_and_wait, pause, spawn
from paceline_chaos.history.entering import enter_probe
from paceline_chaos.history.model import Decision, Stall
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.processes.cluster import HARNESS_HOST, Cluster, Node
from paceline_chaos.processes.leaders import Leadership
from paceline_chaos.processes.security import probe_context, probe_headers

PROBE_INTERVAL_MS = 200
_PROBE_TIMEOUT_S = 1.0
_TICK_MS = 10
STALL_MS = 50
_LOG_FIELDS = frozenset({"unix_ms", "level", "event", "logger", "node", "epoch", "index", "kind"})

Status = dict[str, Any]


class Watch:
    """`async with`: probes run inside the block. Knows the latest status of every node."""

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._scheme = "http" if cluster.tls is None else "https"
        self._ssl = probe_context(cluster.tls)
        self._clock = SystemClock()
        # One reading of both clocks: log lines carry wall time.
        self._unix_zero_us = self._clock.unix_ms() * 1000 - recorder.now_us()
        self._tails = {node.name: Tail(node.log_path) for node in cluster.controllers}
        self.leaderships: list[Leadership] = []
        """Whoever has begun to lead the controllers, in order."""
        self._tasks: list[asyncio.Task[None]] = []
        self._http: aiohttp.ClientSession | None = None
        self.statuses: dict[str, Status] = {}
        """Node -> what it said last; absent while it does not answer."""
        self.answers: Counter[str] = Counter()
        """Node -> how often it has answered."""

    async def __aenter__(self) -> "Watch":
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(local_addr=(HARNESS_HOST, 0)),
            timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S),
            headers=probe_headers(self._cluster.tls),
        )
        self._tasks = [
            spawn(self._follow(node), name=f"probe-{node.name}")
            for node in self._cluster.nodes.values()
        ]
        self._tasks.append(spawn(self._tail_logs(), name="tail-logs"))
        self._tasks.append(spawn(self._watch_itself(), name="watch-itself"))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await cancel_and_wait(*self._tasks)
        assert self._http is not None
        await self._http.close()
        self.read_logs()

    # -- who is what ------------------------------------------------------------------------------

    def master(self, group: str) -> Node | None:
        """The open master of a group in the highest epoch, as the brokers say."""
        found = [
            (status["epoch"], name)
            for name, status in self.statuses.items()
            if status.get("group") == group and status["role"] == "master" and status["is_open"]
        ]
        return self._cluster.nodes[max(found)[1]] if found else None

    def epoch(self, group: str) -> int:
        """The epoch of the open master of a group; 0: there is none."""
        master = self.master(group)
        return 0 if master is None else int(self.statuses[master.name]["epoch"])

    def leader(self) -> Node | None:
        """The leading controller of the highest term."""
        found = [
            (status["term"], name)
            for name, status in self.statuses.items()
            if "controller_id" in status and status["role"] == "leader"
        ]
        return self._cluster.nodes[max(found)[1]] if found else None

    def is_whole(self) -> bool:
        """All answer, and every group has an open master with all its replicas in the set."""
        for group in self._cluster.groups:
            master = self.master(group)
            if master is None:
                return False
            replication = self.statuses.get(master.name, {}).get("replication") or {}
            if len(replication.get("sync_state_set", ())) < self._cluster.spec.brokers:
                return False
        return self.do_all_answer()

    def do_all_answer(self) -> bool:
        return all(name in self.statuses for name in self._cluster.nodes)

    # -- tasks ------------------------------------------------------------------------------------

    async def _follow(self, node: Node) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            asked_us = self._recorder.now_us()
            status = await self._ask(node)
            if status is None:
                self.statuses.pop(node.name, None)
            else:
                self.statuses[node.name] = status
                self.answers[node.name] += 1
                if node.role == "broker":
                    enter_probe(self._recorder, node.name, status, asked_us=asked_us)
            due = max(due + PROBE_INTERVAL_MS / 1000, loop.time())
            await pause((due - loop.time()) * 1000)

    async def _ask(self, node: Node) -> Status | None:
        assert self._http is not None
        try:
            query = "" if node.role == "broker" else "?digest=true"
            url = f"{self._scheme}://{node.address}/v1/status{query}"
            async with self._http.get(url, ssl=self._ssl) as answer:
                if answer.status != 200:
                    return None
                status: Status = orjson.loads(await answer.read())
                return status
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError):
            return None

    async def _tail_logs(self) -> None:
        while True:
            self.read_logs()
            await pause(PROBE_INTERVAL_MS)

    def read_logs(self) -> None:
        """Enter what the controllers have applied since the last call."""
        for name, tail in self._tails.items():
            for line in tail.lines():
                if line.get("logger") != "paceline.controller":
                    continue
                at_us = max(0, line["unix_ms"] * 1000 - self._unix_zero_us)
                if line.get("event") == "leading":
                    self.leaderships.append(Leadership(at_us, name, line["term"]))
                if "index" not in line:
                    continue
                self._recorder.add(
                    Decision,
                    at_us=at_us,
                    node=name,
                    index=line["index"],
                    kind=line["event"],
                    members=_members(line),
                )

    async def _watch_itself(self) -> None:
        seen_us = self._recorder.now_us()
        while True:
            await pause(_TICK_MS)
            now_us = self._recorder.now_us()
            if now_us - seen_us > (STALL_MS + _TICK_MS) * 1000:
                self._recorder.add(Stall, at_us=seen_us, for_us=now_us - seen_us)
            seen_us = now_us


def _members(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key.rstrip("_"): value for key, value in line.items() if key not in _LOG_FIELDS}


class Tail:
    """New whole lines of a growing log file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                document = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # a traceback or a last word on stderr
            if isinstance(document, dict):
                found.append(document)
        return found
