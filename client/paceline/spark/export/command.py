"""What `paceline export` and the spark-submit application do, once their arguments are read."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import BadRequestError, OffsetOutOfRangeError
from paceline.net.connect import ClientTls
from paceline.spark.export.run import Exported, ExportOrder, check_ready, compact, export
from paceline.spark.export.verify import verify
from paceline.spark.session import open_session, plain_error, stop_quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.2
Tasks = Callable[[int, int], None]
"""Called with (tasks done, tasks in all) of what Spark does now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One call of the export command."""

    order: ExportOrder
    master: str | None
    """None: as spark-submit says."""
    is_compact: bool
    is_verify: bool
    file_bytes: int


def order_of(
    *,
    bootstrap: str,
    topics: str,
    to: Path,
    file_format: str,
    partition_by: str,
    body: str | None,
    start: str,
    accept_loss: bool,
    token_file: Path | None,
    tls_ca: Path | None,
    tls: ClientTls | None = None,
    namespace: str | None = None,
    retry_timeout_ms: int | None = None,
) -> ExportOrder:
    """The order that the arguments of a command name; `tls`: what counts without `tls_ca`.
    BadRequestError: no folder can be there."""
    _check_folder(to)
    options = {
        "endpoints": bootstrap,
        "topics": topics,
        "startingOffsets": start,
        "failOnDataLoss": "false" if accept_loss else "true",
    }
    if retry_timeout_ms is not None:
        options["retryTimeoutMs"] = str(retry_timeout_ms)
    if namespace is not None:
        options["namespace"] = namespace
    files = {"tokenFile": token_file, "tlsCa": tls_ca}
    if tls is not None and tls_ca is None:
        given = {"tlsCa": tls.ca_file, "tlsCert": tls.cert_file, "tlsKey": tls.key_file}
        files |= {name: Path(text) for name, text in given.items() if text}
    options |= {name: str(path.absolute()) for name, path in files.items() if path is not None}
    return ExportOrder(
        to=to.absolute(),
        options=options,
        format=file_format,
        partition_by=tuple(part.strip() for part in partition_by.split(",") if part.strip()),
        body=body,
    )


def _check_folder(to: Path) -> None:
    if "://" in str(to) or str(to).startswith(("s3:", "s3a:", "hdfs:", "gs:")):
        raise BadRequestError(
            f"--to must be a folder of a local or mounted file system, not {to}: batches are shown"
            " by renaming a folder, which object stores cannot do in one step",
            field="to",
        )
    if to.exists() and not to.is_dir():
        raise BadRequestError(f"--to {to} is a file", field="to")


def run_export(work: Work, *, tell: Callable[[str], None], tasks: Tasks) -> dict[str, Any]:
    """Export, then compact and verify if asked for; the summary as JSON values.

    Raises PacelineError: one sentence of what Spark may have said on a page.
    """
    tell("looking for the topics")
    check_ready(work.order)
    tell("starting Spark")
    spark = open_session(work.master, name="paceline export")
    try:
        with _watched(spark, tasks):
            return carry_out_in(spark, work, tell=tell)
    finally:
        stop_quietly(spark)


def carry_out_in(
    spark: "SparkSession", work: Work, *, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The work in a session that is there, which goes on; else as `run_export`."""
    try:
        return _carried_out(spark, work, tell)
    except Exception as error:
        found = plain_error(error)
        if isinstance(found, OffsetOutOfRangeError):  # said as options of a read, not of an export
            sentence = found.message.replace("set failOnDataLoss to false", "give --accept-loss")
            found = OffsetOutOfRangeError(sentence, **found.details)
        raise found from error


def _carried_out(spark: "SparkSession", work: Work, tell: Callable[[str], None]) -> dict[str, Any]:
    done: Exported = export(spark, work.order, tell=tell)
    summary: dict[str, Any] = {"to": str(work.order.to), **asdict(done)}
    if work.is_compact:
        whole = compact(spark, work.order.to, file_bytes=work.file_bytes, tell=tell)
        summary["compacted_files"] = None if whole is None else len(whole.files)
    if work.is_verify:
        found = verify(spark, work.order, tell=tell)
        summary["verified_rows"] = found.rows
        summary["compared_rows"] = found.compared_rows
        summary["faults"] = found.faults
    return summary


@contextmanager
def _watched(spark: "SparkSession", tasks: Tasks) -> Iterator[None]:
    """Tell the tasks of running stages from time to time, on a thread of its own."""
    tracker = spark.sparkContext.statusTracker()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(POLL_S):
            done = count = 0
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done, count = done + stage.numCompletedTasks, count + stage.numTasks
            if count:
                tasks(done, count)

    thread = threading.Thread(target=watch, name="paceline-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
