"""`paceline export`: a topic as files, incremental and exactly once; runs Spark (docs/SPARK.md)."""

import os
import threading
from pathlib import Path
from typing import Any

import click

from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json
from paceline.errors import CorruptLogError

FILE_MIB_DEFAULT = 256
RETRY_MS_MIN = 30_000


@click.command("export", cls=Command)
@click.option("--topic", "topics", metavar="NAME[,...]", required=True, help="Topics to export.")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the export; the same one goes on where it ended.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "json", "csv"]),
    default="parquet",
    show_default=True,
    help="What the files are.",
)
@click.option(
    "--partition-by",
    metavar="COLUMN[,...]",
    default="",
    help="Folders by dt, hour, topic, broker_group, queue_id or tag.",
)
@click.option(
    "--body",
    type=click.Choice(["binary", "base64", "text"]),
    default=None,
    help="How bodies are written.  [default: binary; base64 in json and csv]",
)
@click.option(
    "--start",
    metavar="POSITION",
    default="earliest",
    show_default=True,
    help="Where the first batch begins: earliest, latest, -1h, -1000, or offsets as JSON.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option(
    "--compact", "is_compact", is_flag=True, help="Put all batches into few files after it."
)
@click.option(
    "--file-mib",
    type=click.IntRange(1, 65_536),
    default=FILE_MIB_DEFAULT,
    show_default=True,
    help="Size of the files that --compact makes.",
)
@click.option(
    "--verify",
    "is_verify",
    is_flag=True,
    help="Compare all of the export with the brokers after it.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on when retention has deleted what was not exported yet.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File with the token for the brokers, readable by driver and executors.",
)
@click.option(
    "--tls-ca",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File with the authority that signed the brokers' certificates; --bootstrap names"
    " https://host:port.",
)
@cluster_options
def command(
    *,
    connect: Connect,
    as_json: bool,
    topics: str,
    to: Path,
    file_format: str,
    partition_by: str,
    body: str | None,
    start: str,
    master: str,
    is_compact: bool,
    file_mib: int,
    is_verify: bool,
    accept_loss: bool,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Export topics as files, incrementally and exactly once, with Spark.

    Each run writes what is new as one batch. A run that was killed is finished by the next one.
    Needs Java 17 or newer and pip install 'paceline[spark]'.
    """
    try:
        from paceline.spark.export.command import Work, order_of, run_export
    except ImportError as error:
        from paceline.errors import ConfigError

        raise ConfigError(
            f"{error.name} is not installed: pip install 'paceline[spark]'"
        ) from error
    order = order_of(
        bootstrap=connect.bootstrap,
        topics=topics,
        to=to,
        file_format=file_format,
        partition_by=partition_by,
        body=body,
        start=start,
        accept_loss=accept_loss,
        token_file=token_file,
        tls_ca=tls_ca,
        tls=connect.tls,
        namespace=connect.namespace,
        retry_timeout_ms=max(connect.timeout_ms, RETRY_MS_MIN),
    )
    if connect.credentials is not None:
        # Spark's processes inherit it. As an option of the source it would stand in plans.
        os.environ.update(connect.credentials.environment())
    work = Work(
        order=order,
        master=master,
        is_compact=is_compact,
        is_verify=is_verify,
        file_bytes=file_mib * 1024 * 1024,
    )
    with _Shown(is_silent=as_json) as shown:
        summary = run_export(work, tell=shown.tell, tasks=shown.tasks)
    _echo(summary, as_json=as_json)


class _Shown:
    """A progress bar on stderr, where somebody looks."""

    def __init__(self, *, is_silent: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=is_silent or not console.is_terminal,
            transient=True,
        )
        self._changing = threading.Lock()
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> "_Shown":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, what: str) -> None:
        with self._changing:  # a new task: rich resets none to an unknown total
            self._progress.remove_task(self._task)
            self._task = self._progress.add_task(what, total=None)

    def tasks(self, done: int, count: int) -> None:
        """Called from another thread than `tell`."""
        with self._changing:
            self._progress.update(self._task, completed=done, total=count)


def _echo(summary: dict[str, Any], *, as_json: bool) -> None:
    faults = summary.get("faults", [])
    if as_json:
        echo_json(summary)
    elif summary["batch"] is None:
        click.echo(f"nothing new; {summary['total_rows']:,} rows are in {summary['to']}")
    else:
        rate = summary["size_bytes"] / 1e6 / max(summary["seconds"], 0.001)
        again = ", begun by an earlier run" if summary["is_resumed"] else ""
        click.echo(
            f"batch {summary['batch']}{again}: {summary['rows']:,} rows, {summary['files']} files,"
            f" {summary['size_bytes'] / 1e6:,.1f} MB in {summary['seconds']:.1f} s ({rate:.0f}"
            f" MB/s); {summary['total_rows']:,} rows are in {summary['to']}"
        )
    if not as_json and summary["lost_rows"]:
        click.echo(f"{summary['lost_rows']:,} rows were deleted before they were exported")
    if not as_json and summary.get("compacted_files") is not None:
        click.echo(f"compacted into {summary['compacted_files']} files")
    if not as_json and "verified_rows" in summary and not faults:
        click.echo(
            f"verified: {summary['verified_rows']:,} rows, each offset once;"
            f" {summary['compared_rows']:,} compared with the brokers, all equal"
        )
    if faults:
        raise CorruptLogError(
            f"the export is not what was sent, {len(faults)} faults: {faults[0]}", faults=faults
        )
