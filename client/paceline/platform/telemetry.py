"""Logs as JSON lines and Prometheus metrics, the same for every process.

A log record is an event name and fields: `log.warning("replica_removed", extra={"replica": 2})`.
`start_logging` writes each as one JSON line with `node` and `epoch` of the `Node` that the running
task belongs to (a context variable, so several nodes in one process do not mix).

Metrics are named `paceline_<subsystem>_<noun>_<unit>[_total]`; those that dashboards of RocketMQ
users expect carry RocketMQ's names and labels (`ROCKETMQ`). Every node has its own `Metrics`, never
the global registry. A hot path counts in plain integers of its owner: `sampled` reads them only
when somebody scrapes.
"""

import logging
import re
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TextIO

import orjson
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from paceline.errors import ConfigError
from paceline.platform.metric_names import NODE_LABELS, ROCKETMQ
from paceline.server.byte_budget import ByteBudget
from paceline.server.connections import Places

# -- logs -----------------------------------------------------------------------------------------

LEVELS = ("debug", "info", "warning", "error")


@dataclass(slots=True)
class Node:
    """Who logs. `epoch` is written by the owner of the role, whenever it changes."""

    name: str
    """E.g. "broker:g1/2" or "controller:c1"."""
    epoch: int = 0


_current: ContextVar[Node | None] = ContextVar("paceline_node", default=None)


def become_node(node: Node) -> None:
    """From here on, this task and those it starts log as `node`."""
    _current.set(node)


def current_node() -> Node | None:
    """Whom the running task speaks for; None if nobody has said so."""
    return _current.get()


def start_logging(node: Node, *, level: str = "info", stream: TextIO | None = None) -> None:
    """Replace the handlers of the root logger by JSON lines on `stream` (stderr by default)."""
    if level.lower() not in LEVELS:
        raise ConfigError(f"log_level must be one of {', '.join(LEVELS)}, not {level!r}")
    become_node(node)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLineFormatter(node))
    handler.addFilter(MemoryLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    strangers.filters[:] = [StrangerLines()]
    # One line for every request would drown the rest; /metrics counts them.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


strangers = logging.getLogger("paceline.strangers")
"""For lines that somebody causes who has proven nothing: at most `STRANGER_LINES_MAX` a second."""
STRANGER_LINES_MAX = 10


class StrangerLines(logging.Filter):
    """Lets so many lines of one second through; the next one says how many were suppressed."""

    suppressed_total = 0
    """In this process."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._lines = 0
        self._suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(record.created)
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= STRANGER_LINES_MAX:
            self._suppressed += 1
            StrangerLines.suppressed_total += 1
            return False
        self._lines += 1
        if self._suppressed:
            record.suppressed = self._suppressed
            self._suppressed = 0
        return True


MEMORY_LINES_S = 10


class MemoryLines(logging.Filter):
    """What fails for want of memory, wherever it is caught: one line in `MEMORY_LINES_S`, which
    counts those suppressed. No traceback: it names whoever came last, for each request again, and
    takes memory to make."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0
        self._suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not (record.exc_info and isinstance(record.exc_info[1], MemoryError)):
            return True
        if record.created < self._next_s:
            self._suppressed += 1
            return False
        self._next_s = record.created + MEMORY_LINES_S
        record.during, record.suppressed = record.getMessage().partition("\n")[0], self._suppressed
        record.msg, record.args, record.exc_info, record.exc_text = "out_of_memory", (), None, None
        self._suppressed = 0
        return True


class JsonLineFormatter(logging.Formatter):
    """One JSON object for a record: the fixed fields first, then the event's own."""

    # What a record has without anybody's `extra`.
    _STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def __init__(self, node: Node) -> None:
        """`node` is used for records of threads and tasks that belong to no node."""
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        node = _current.get() or self._node
        line: dict[str, Any] = {
            "unix_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "node": node.name,
            "epoch": node.epoch,
        }
        for key, value in vars(record).items():
            if key not in self._STANDARD:
                line[key if key not in line else f"{key}_"] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


# -- metrics --------------------------------------------------------------------------------------

_UP_TO_100_MS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
SECONDS_BUCKETS = (*_UP_TO_100_MS, 0.25, 0.5, 1.0, 2.5, 5.0)
"""From a tenth of the in-memory replicated latency (0.3 ms) to the longest client timeout."""

Samples = Mapping[tuple[str, ...], float]
"""Label values -> number."""

_NAME = re.compile(r"paceline_[a-z0-9]+_[a-z0-9_]*[a-z0-9]")


class Metrics:
    """The metrics of one node. Names are checked when a metric is made: a bad one is a bug."""

    def __init__(self, *, cluster: str, node_type: str, node_id: str) -> None:
        """The three are label values of every metric with a RocketMQ name."""
        # Else every counter has a second series, which no dashboard reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._node_labels = dict(zip(NODE_LABELS, (cluster, node_type, node_id), strict=True))
        ProcessCollector(registry=self._registry)  # memory, open files, start time
        self.sampled(
            "paceline_process_cpu_seconds_total",
            "CPU time of this process, for CPU per message.",
            _cpu_seconds,
            labels=("mode",),
        )
        self.sampled(
            "paceline_log_suppressed_lines_total",
            "Lines that strangers caused and the log left out; alert when it grows.",
            lambda: StrangerLines.suppressed_total,
        )

    def counter(self, name: str, help_line: str, *, labels: tuple[str, ...] = ()) -> Counter:
        assert name.endswith("_total"), name
        return Counter(_checked(name), help_line, labels, registry=self._registry)

    def gauge(self, name: str, help_line: str, *, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(_checked(name), help_line, labels, registry=self._registry)

    def histogram(
        self,
        name: str,
        help_line: str,
        *,
        labels: tuple[str, ...] = (),
        buckets: tuple[float, ...] = SECONDS_BUCKETS,
    ) -> Histogram:
        return Histogram(
            _checked(name), help_line, labels, registry=self._registry, buckets=buckets
        )

    def sampled(
        self,
        name: str,
        help_line: str,
        read: Callable[[], float | Samples],
        *,
        labels: tuple[str, ...] = (),
    ) -> None:
        """A metric that `read` gives at each scrape: one number, or one for each label values.

        A counter if the name ends in _total, else a gauge. `read` runs on the event loop and must
        be fast; a RocketMQ name gets its own labels (`labels` is not given then).
        """
        expected = ROCKETMQ.get(name)
        if expected is None:
            family = _Sampled(_checked(name), help_line, labels, read, {})
        else:
            assert expected.kind != "histogram", name
            assert not labels, name
            family = _Sampled(name, expected.help, expected.labels, read, self._node_labels)
        self._registry.register(family)

    def rocketmq(self, name: str) -> "Labelled":
        """The metric of this RocketMQ name; the node's own labels are already bound."""
        expected = ROCKETMQ[name]
        labels = (*NODE_LABELS, *expected.labels)
        maker = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[expected.kind]
        arguments: dict[str, Any] = {}
        if expected.kind == "histogram":
            arguments["buckets"] = tuple(4.0**power for power in range(3, 13))  # 64 B .. 16 MiB
        metric = maker(name, expected.help, labels, registry=self._registry, **arguments)
        return Labelled(metric, self._node_labels)

    def exposition(self) -> tuple[bytes, str]:
        """Body and content type of an answer to /metrics."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


def register_budget(metrics: Metrics, budget: ByteBudget) -> None:
    """What this node holds for requests and answers (ADR 18)."""
    metrics.sampled(
        "paceline_requests_held_bytes",
        "Bytes held for requests and answers, over all connections; alert near the limit.",
        lambda: budget.used_bytes,
    )
    metrics.sampled(
        "paceline_requests_held_limit_bytes",
        "How many bytes may be held (of a broker: setting request_bytes_max).",
        lambda: budget.limit_bytes,
    )
    metrics.sampled(
        "paceline_requests_without_room_total",
        "Requests that found no room in it, or in their client's share; alert when it grows: "
        "clients send too much at once, or somebody hostile does.",
        lambda: budget.refused,
    )


def register_places(metrics: Metrics, places: Places) -> None:
    """Connections of a node's HTTP listener (ADR 18)."""
    metrics.sampled(
        "paceline_connections_open_count",
        "Connections of clients, streams included; alert near the limit.",
        lambda: places.count,
    )
    metrics.sampled(
        "paceline_connections_limit_count",
        "Setting connections_max; one address gets half of it at most.",
        lambda: places.common.limit,
    )
    metrics.sampled(
        "paceline_connections_displaced_total",
        "Silent or idle connections closed to make room for one of the same address; alert when it "
        "grows: somebody opens connections without end.",
        lambda: places.common.displaced + places.reserve.displaced,
    )
    metrics.sampled(
        "paceline_connections_refused_total",
        "Connections that found all of their address busy; those may ask for health only.",
        lambda: places.common.refused,
    )


class Labelled:
    """A metric with the node's labels bound; `labels` takes the rest. Keep what it returns."""

    def __init__(self, metric: MetricWrapperBase, bound: Mapping[str, str]) -> None:
        self._metric, self._bound = metric, bound

    def labels(self, **values: str) -> Any:
        """Any: prometheus-client's child of the metric's own kind (Counter, Gauge, Histogram)."""
        return self._metric.labels(**self._bound, **values)


class _Sampled(Collector):
    def __init__(
        self,
        name: str,
        help_line: str,
        labels: tuple[str, ...],
        read: Callable[[], float | Samples],
        bound: Mapping[str, str],
    ) -> None:
        self._name, self._help, self._read = name, help_line, read
        self._labels, self._bound = (*bound, *labels), tuple(bound.values())

    def collect(self) -> Iterable[Metric]:
        is_counter = self._name.endswith("_total")
        family: CounterMetricFamily | GaugeMetricFamily
        if is_counter:
            family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        else:
            family = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        value = self._read()
        samples = value if isinstance(value, Mapping) else {(): value}
        for labels, number in samples.items():
            family.add_metric((*self._bound, *labels), number)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Names only, so that registering does not read values that may not exist yet."""
        kind = CounterMetricFamily if self._name.endswith("_total") else GaugeMetricFamily
        return [kind(self._name, self._help, labels=self._labels)]


def _checked(name: str) -> str:
    assert _NAME.fullmatch(name), name
    return name


def _cpu_seconds() -> Samples:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {("user",): usage.ru_utime, ("system",): usage.ru_stime}
