"""Checking an export against the brokers: every offset once, every content as it was sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.errors import BadRequestError
from paceline.queues import QueueName
from paceline.spark.brokers import Brokers
from paceline.spark.export.counts import QueueCount, wanted_counts
from paceline.spark.export.folder import ExportFolder, files_below
from paceline.spark.export.protocol import Manifest, merged
from paceline.spark.export.run import ExportOrder, Tell, check_layout, check_order, layout_of
from paceline.spark.offsets import Offsets, described
from paceline.spark.options import ACCESS_OPTIONS, ReadOptions
from paceline.spark.plan import Planner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTHING = QueueCount(0, 0, -1, 0, distinct=0)


@dataclass(slots=True, kw_only=True)
class Verified:
    """What a verification found. `faults` empty: all is as it should be."""

    rows: int = 0
    compared_rows: int = 0
    """Of these, what the brokers still have and was compared by content."""
    faults: list[str] = field(default_factory=list)


def verify(spark: "SparkSession", order: ExportOrder, *, tell: Tell) -> Verified:
    """Read all that was exported, and the same offsets from the brokers where they have them."""
    from paceline.spark.export import frames

    options = check_order(order)
    folder = ExportFolder(order.to)
    found = Verified()
    with folder.locked():
        manifests = folder.manifests()
        if not manifests:
            raise BadRequestError(f"{order.to} holds no batch yet: export first", field="to")
        check_layout(manifests[-1].layout, layout_of(order, options), order.to)
        for one in manifests:
            found.faults += _file_faults(folder, one)
        _stray_folders(folder, manifests, found)
        if found.faults:
            return found
        whole = merged(manifests, ())
        found.rows = whole.rows
        layout = whole.layout
        paths = [str(folder.batch(one.number)) for one in manifests]
        tell(f"reading {whole.rows:,} exported rows")
        exported = frames.written_frame(spark, layout, paths).cache()
        counts = frames.counted(exported, is_thorough=True)
        found.faults += _count_faults(whole, counts)
        start = _still_there(options, whole)
        found.compared_rows = sum(whole.end[queue] - start[queue] for queue in start)
        tell(f"reading {found.compared_rows:,} rows from the brokers")
        _compare(spark, order, exported, start, whole.end, found)
        exported.unpersist()
    return found


def _count_faults(whole: Manifest, found: Mapping[QueueName, QueueCount]) -> list[str]:
    """Queues in which an offset is missing, or there twice."""
    faults = []
    wanted = wanted_counts(whole.pieces())
    for queue in sorted(set(wanted) | set(found)):
        count, there = wanted.get(queue, _NOTHING), found.get(queue, _NOTHING)
        if there[:4] != count[:4] or there.distinct != count.rows:
            faults.append(
                f"{described(queue)}: offsets {count.first} to {count.last + 1} want {count.rows}"
                f" rows, there are {there.rows} with {there.distinct} distinct offsets"
            )
    return faults


def _file_faults(folder: ExportFolder, manifest: Manifest) -> list[str]:
    batch = folder.batch(manifest.number)
    there = {file.path: file.size_bytes for file in files_below(batch)} if batch.exists() else {}
    known = {file.path: file.size_bytes for file in manifest.files}
    faults = [f"{batch / path} is missing" for path in sorted(set(known) - set(there))]
    faults += [f"{batch / path} is not of this export" for path in sorted(set(there) - set(known))]
    faults += [
        f"{batch / path} has {there[path]} bytes, it was written with {known[path]}"
        for path in sorted(set(known) & set(there))
        if known[path] != there[path]
    ]
    return faults


def _stray_folders(folder: ExportFolder, manifests: list[Manifest], found: Verified) -> None:
    known = {folder.batch(one.number).name for one in manifests}
    intent = folder.intent()
    if intent is not None:
        known.add(folder.batch(intent.number).name)
    for path in sorted(folder.data.iterdir()):
        if path.name not in known:
            found.faults.append(f"{path} is not of this export")


def _still_there(options: ReadOptions, whole: Manifest) -> Offsets:
    """From where on the brokers can be compared: retention may have deleted the rest."""
    with Brokers(options.access) as brokers:
        planner = Planner(options, brokers)
        queues = planner.queues()
        ends = planner.ends(queues)
    return {
        queue: min(whole.end[queue], max(whole.start[queue], ends[queue][0]))
        for queue in whole.end
        if queue in ends
    }


def _compare(
    spark: "SparkSession",
    order: ExportOrder,
    exported: "DataFrame",
    start: Offsets,
    end: Offsets,
    found: Verified,
) -> None:
    from pyspark.sql import functions as f

    from paceline.spark.export import frames

    stops = {queue: end[queue] for queue in start}
    if all(start[queue] == stops[queue] for queue in start):
        return
    options = {name: text for name, text in order.options.items() if name in ACCESS_OPTIONS}
    theirs = frames.counted(frames.source_frame(spark, options, start, stops), is_thorough=True)
    rows = [
        (str(q.topic), str(q.group), int(q.queue_id), int(offset)) for q, offset in start.items()
    ]
    lows = spark.createDataFrame(
        rows, "topic string, broker_group string, queue_id int, low bigint"
    )
    kept = exported.join(f.broadcast(lows), ["topic", "broker_group", "queue_id"]).where(
        "offset >= low"
    )
    ours = frames.counted(kept, is_thorough=True)
    for queue in start:
        if ours.get(queue) != theirs.get(queue):
            found.faults.append(
                f"{described(queue)}: what was"
                f" exported from offset {start[queue]} on is not what the brokers have"
            )
