"""Exporting: one batch after another, each exactly once whatever is killed in between.

The driver fixes a range (intent, durable), Spark writes it where nobody looks, the driver counts it
again, puts it in place with one rename, and notes it (manifest, durable). A rerun takes up the
intent: it writes exactly that range, or finds the batch in place and only notes it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import BadRequestError, OffsetOutOfRangeError
from paceline.platform.ports import Clock
from paceline.platform.runtime import SystemClock
from paceline.spark.brokers import Brokers
from paceline.spark.export.counts import check_counts
from paceline.spark.export.folder import ExportFolder, files_below, sync_tree
from paceline.spark.export.protocol import (
    BODIES,
    FORMATS,
    PARTITION_COLUMNS,
    ExportedFile,
    Intent,
    Layout,
    Lost,
    Manifest,
    manifest_of,
    merged,
    next_offsets,
)
from paceline.spark.offsets import Offsets, described
from paceline.spark.options import ReadOptions, environment, read_options
from paceline.spark.pinning import owner_of, pin, unpin
from paceline.spark.plan import Planner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPORT_LEASE_S = 6 * 3600
Tell = Callable[[str], None]
"""Called with what is being done, for a progress line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOrder:
    """What to export, and how."""

    to: Path
    options: Mapping[str, str]
    """Of the source: endpoints, topic(s), credentials, startingOffsets for the first batch."""
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    body: str | None = None
    """None: binary where the format has it, else base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What one run did."""

    batch: int | None
    """None: there was nothing new."""
    rows: int
    size_bytes: int
    files: int
    seconds: float
    is_resumed: bool
    total_rows: int
    """Of all batches."""
    lost_rows: int
    """Deleted by retention before this run came to them; `--accept-loss` went on without."""


def check_order(order: ExportOrder) -> ReadOptions:
    """The order's options. BadRequestError names what is wrong."""
    if order.format not in FORMATS:
        raise BadRequestError(
            f"format must be one of {', '.join(FORMATS)}, not {order.format!r}", field="format"
        )
    for column in order.partition_by:
        if column not in PARTITION_COLUMNS:
            raise BadRequestError(
                f"partition-by: {column!r} is none of {', '.join(PARTITION_COLUMNS)}",
                field="partition_by",
            )
    if len(set(order.partition_by)) != len(order.partition_by):
        raise BadRequestError("partition-by names a column twice", field="partition_by")
    if order.body is not None and order.body not in BODIES:
        raise BadRequestError(f"body must be one of {', '.join(BODIES)}", field="body")
    if order.body == "binary" and order.format != "parquet":
        raise BadRequestError(
            f"{order.format} has no binary values: choose body base64 or text", field="body"
        )
    return read_options(order.options, environment())


def check_ready(order: ExportOrder) -> None:
    """All that can be wrong before Spark takes its seconds to start: options, credentials, topics,
    the folder and what is remembered in it. Raises what the export would."""
    options = check_order(order)
    asked = layout_of(order, options)
    folder = ExportFolder(order.to)
    with folder.locked():
        intent = folder.intent()
        known = [one.layout for one in folder.manifests()[-1:]]
    for layout in known if intent is None else [*known, intent.layout]:
        check_layout(layout, asked, order.to)


def export(
    spark: "SparkSession", order: ExportOrder, *, tell: Tell, clock: Clock | None = None
) -> Exported:
    """Finish the batch that an earlier run has begun, then export what is new as another one."""
    options = check_order(order)
    clock = clock if clock is not None else SystemClock()
    began_ms = clock.monotonic_ms()
    folder = ExportFolder(order.to)
    done: list[Manifest] = []
    with folder.locked():
        finish_compaction(folder)
        begun = _begun(folder)
        if begun is not None:
            check_layout(begun.layout, layout_of(order, options), order.to)
            if _is_given_up(folder, options, begun):
                folder.end_intent()
                begun = None
        if begun is not None:
            with _pinned(options, order, begun):
                done.append(carry_out(spark, folder, order, begun, tell=tell))
        tell("looking what is new")
        intent = plan(order, options, folder.manifests())
        if intent.rows:
            folder.begin(intent)
            with _pinned(options, order, intent):
                done.append(carry_out(spark, folder, order, intent, tell=tell))
        folder.drop_staging()
        return Exported(
            batch=done[-1].number if done else None,
            rows=sum(one.rows for one in done),
            size_bytes=sum(one.size_bytes for one in done),
            files=sum(len(one.files) for one in done),
            seconds=(clock.monotonic_ms() - began_ms) / 1000,
            is_resumed=begun is not None,
            total_rows=sum(one.rows for one in folder.manifests()),
            lost_rows=sum(lost.end - lost.start for one in done for lost in one.lost),
        )


def _begun(folder: ExportFolder) -> Intent | None:
    """The batch that an earlier run has begun and not noted."""
    intent, manifests = folder.intent(), folder.manifests()
    if intent is not None and manifests and intent.number <= manifests[-1].number:
        folder.end_intent()  # it was noted, and the end of that run was not seen
        return None
    return intent


def _is_given_up(folder: ExportFolder, options: ReadOptions, begun: Intent) -> bool:
    """Whether a batch that nobody has seen yet is planned anew: part of it is gone for good, and
    going on without it was chosen. Without that choice its read says what is missing."""
    if options.fail_on_data_loss or folder.batch(begun.number).exists():
        return False
    with Brokers(options.access) as brokers:
        planner = Planner(options, brokers)
        ends = planner.ends(planner.queues())
    return any(begun.start[queue] < ends[queue][0] for queue in begun.start if queue in ends)


@contextmanager
def _pinned(options: ReadOptions, order: ExportOrder, intent: Intent) -> Iterator[None]:
    """Retention keeps the batch's range while it is written; a lease, should this process die."""
    owner = owner_of("export", str(order.to))
    with Brokers(options.access) as brokers:
        pin(brokers, owner, intent.start, lease_seconds=EXPORT_LEASE_S)
    yield
    with Brokers(options.access) as brokers:
        unpin(brokers, owner, intent.start)


def layout_of(order: ExportOrder, options: ReadOptions) -> Layout:
    """The layout that an order asks for, with the ids that its topics have now."""
    with Brokers(options.access) as brokers:
        planner = Planner(options, brokers)
        topics = {str(queue.topic): topic_id for queue, topic_id in planner.queues().items()}
        cluster_id = brokers.view().cluster_id
    default = "binary" if order.format == "parquet" else "base64"
    return Layout(
        cluster_id=cluster_id,
        topics=topics,
        format=order.format,
        partition_by=order.partition_by,
        body=order.body or default,
    )


def check_layout(known: Layout, asked: Layout, path: Path) -> None:
    """An export goes on as it began. BadRequestError says what differs."""
    if known.cluster_id != asked.cluster_id:
        raise BadRequestError(
            f"{path} is an export of cluster {known.cluster_id}, this is {asked.cluster_id}",
            field="to",
        )
    for topic, topic_id in known.topics.items():
        if topic in asked.topics and asked.topics[topic] != topic_id:
            raise BadRequestError(
                f"topic {topic} was deleted and made again since {path} was begun: export the new"
                " one to another folder",
                field="to",
            )
    if set(known.topics) - set(asked.topics):
        raise BadRequestError(
            f"{path} is an export of {', '.join(sorted(known.topics))}: name the same topics",
            field="topic",
        )
    for name in ("format", "partition_by", "body"):
        if getattr(known, name) != getattr(asked, name):
            raise BadRequestError(
                f"{path} was begun with {name} {getattr(known, name)!r}: go on with that, or export"
                " to another folder",
                field=name,
            )


def plan(order: ExportOrder, options: ReadOptions, manifests: list[Manifest]) -> Intent:
    """The next batch: from where the last ended to what is confirmed now."""
    layout = layout_of(order, options)
    if manifests:
        check_layout(manifests[-1].layout, layout, order.to)
    with Brokers(options.access) as brokers:
        planner = Planner(options, brokers)
        queues = planner.queues()
        ends = planner.ends(queues)
        known = next_offsets(manifests)
        first = planner.resolve(options.starting, queues, ends, name="startingOffsets")
        start: Offsets = {}
        lost = []
        for queue in queues:
            begin, end = ends[queue]
            at = known[queue] if queue in known else (begin if manifests else first[queue])
            if at > end:
                raise OffsetOutOfRangeError(
                    f"{described(queue)} ends at {end}, exported was up to {at}: these are other"
                    " records under the same offsets (an unclean election, a copy that was"
                    " restored); export them to another folder",
                    start=begin,
                    end=end,
                )
            start[queue] = planner.checked(queue, at, begin, end, name="the last batch")
            if queue in known and at < start[queue]:
                lost.append(Lost(queue, at, start[queue]))
    number = manifests[-1].number + 1 if manifests else 1
    stops = {queue: ends[queue][1] for queue in queues}
    return Intent(number=number, layout=layout, start=start, end=stops, lost=tuple(lost))


def carry_out(
    spark: "SparkSession", folder: ExportFolder, order: ExportOrder, intent: Intent, *, tell: Tell
) -> Manifest:
    """Write, count, show and note one batch; any part of it may have been done before."""
    from paceline.spark.export import frames

    batch = folder.batch(intent.number)
    if not batch.exists():
        folder.clear_staging()
        options = {name: text for name, text in order.options.items() if name not in _RANGE_OPTIONS}
        tell(f"batch {intent.number}: writing {intent.rows:,} rows")
        options["pin"] = "false"  # done here, for as long as it takes
        frame = frames.source_frame(spark, options, intent.start, intent.end)
        staged = folder.staged(intent.number)
        frames.write(frames.laid_out(frame, intent.layout), intent.layout, str(staged))
        tell(f"batch {intent.number}: counting what was written")
        written = frames.written_frame(spark, intent.layout, [str(staged)])
        pieces = manifest_of(intent, ()).pieces()
        check_counts(pieces, frames.counted(written, is_thorough=False))
        tell(f"batch {intent.number}: making it durable")
        folder.publish(intent.number)
    manifest = manifest_of(intent, files_below(batch))
    folder.add_manifest(manifest)
    folder.end_intent()
    folder.drop_staging()
    return manifest


_RANGE_OPTIONS = (
    "topic", "topics", "topicsPattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp",
)  # fmt: skip


# -- compaction -----------------------------------------------------------------------------------


def compact(
    spark: "SparkSession", order_to: Path, *, file_bytes: int, tell: Tell
) -> Manifest | None:
    """Put all batches into one with files of about `file_bytes`; None when there is nothing to do.

    Readers see the old batches or the new one, never both: the folders change places in one step.
    """
    from paceline.spark.export import frames

    folder = ExportFolder(order_to)
    with folder.locked():
        finish_compaction(folder)
        if folder.intent() is not None:
            raise BadRequestError(
                "a batch was begun and not finished: run the export again, then compact", field="to"
            )
        manifests = folder.manifests()
        files = sum(len(one.files) for one in manifests)
        size_bytes = sum(one.size_bytes for one in manifests)
        wanted = max(1, -(-size_bytes // file_bytes))
        if not manifests or (len(manifests) == 1 and files <= wanted):
            return None
        folder.clear_staging()
        first, last = manifests[0].number, manifests[-1].number
        layout = manifests[-1].layout
        tell(f"compacting {files} files of {len(manifests)} batches into about {wanted}")
        target = folder.staging / "data"
        target.mkdir()
        batch = target / folder.batch(last).name
        paths = [str(folder.batch(one.number)) for one in manifests]
        frame = frames.written_frame(spark, layout, paths).repartitionByRange(
            wanted, "topic", "broker_group", "queue_id", "offset"
        )
        frames.write(frames.laid_out(frame, layout), layout, str(batch))
        whole = merged(manifests, ())
        tell("counting what was written")
        written = frames.written_frame(spark, layout, [str(batch)])
        check_counts(whole.pieces(), frames.counted(written, is_thorough=False))
        folder.begin_compaction(first, last)
        sync_tree(target)
        folder.exchange_data(target)
        return finish_compaction(folder)


def finish_compaction(folder: ExportFolder) -> Manifest | None:
    """Note a compaction that was put in place, or forget one that was not."""
    pending = folder.compaction()
    if pending is None:
        return None
    first, last = int(pending["first"]), int(pending["last"])
    was_exchanged = first == last or not folder.batch(first).exists()
    manifest = None
    if was_exchanged:
        covered = [one for one in folder.manifests() if one.number <= last]
        files: tuple[ExportedFile, ...] = files_below(folder.batch(last))
        manifest = merged(covered, files)
        folder.add_manifest(manifest)
        folder.drop_manifests(first=manifest.first_number, below=last)
    folder.end_compaction()
    folder.drop_staging()
    return manifest
