"""What the files of a stopped local cluster tell: what controllers decided, what brokers stored.

Nothing here asks a server. Times of decisions are those of the log lines, whole milliseconds.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from paceline.cli.local.local_cluster import LocalCluster
from paceline.platform.disk_real import RealDisk
from paceline_chaos.cluster_sim.dump import dump_log
from paceline_chaos.history.model import Decision, Probe, ReplicaDump
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.verdict import Violation

LOG_FIELDS = frozenset({"unix_ms", "level", "event", "logger", "node", "epoch", "index", "kind"})


def enter_decisions(recorder: Recorder, cluster: LocalCluster, *, unix_zero_us: int) -> None:
    """What each controller applied; `unix_zero_us` is the wall clock at the recorder's 0."""
    for node in cluster.nodes:
        if node.role != "controller":
            continue
        for line in _json_lines(node.log_path):
            if line.get("logger") == "paceline.controller" and "index" in line:
                members = {
                    key.rstrip("_"): value for key, value in line.items() if key not in LOG_FIELDS
                }
                recorder.add(
                    Decision,
                    at_us=max(0, line["unix_ms"] * 1000 - unix_zero_us),
                    node=node.name,
                    index=line["index"],
                    kind=line["event"],
                    members=members,
                )


def enter_logs(recorder: Recorder, cluster: LocalCluster, topics: Mapping[int, str]) -> None:
    """The log of every broker, from its files."""
    replicas = {
        entry.node: entry.replica for entry in recorder.history.entries if isinstance(entry, Probe)
    }
    disk = RealDisk()
    for node in cluster.brokers:
        group = node.name.partition("-")[0]
        folder = str(cluster.plan.data_dir / node.name)
        found = dump_log(disk, folder, group=group, topics=topics)
        recorder.add(
            ReplicaDump,
            node=node.name,
            group=group,
            replica=replicas.get(node.name),
            start=found.start,
            confirm=found.confirm,
            end=found.end,
            batches=found.batches,
            damage=found.damage,
        )
    disk.close()


def bugs_told(cluster: LocalCluster) -> Iterator[Violation]:
    """Tracebacks in the logs of nodes: no kill may cause one."""
    for node in cluster.nodes:
        text = node.log_path.read_text(errors="replace")
        at = text.find("Traceback (most recent call last)")
        if at >= 0:
            yield Violation(property="CODE", sentence=f"{node.name}: {text[at : at + 2000]}")


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # a last word on stderr
        if isinstance(document, dict):
            yield document
