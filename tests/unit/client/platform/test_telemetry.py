"""Logs are one JSON object a line; metrics have checked names and cost nothing until scraped."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.errors import ConfigError
from paceline.platform.metric_names import ROCKETMQ
from paceline.platform.telemetry import (
    STRANGER_LINES_MAX,
    MemoryLines,
    Metrics,
    Node,
    StrangerLines,
    become_node,
    start_logging,
    strangers,
)

log = logging.getLogger("paceline.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, filters = root.handlers[:], root.level, strangers.filters[:]
    yield io.StringIO()
    root.handlers[:] = handlers
    strangers.filters[:] = filters
    root.setLevel(level)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def the_metrics() -> Metrics:
    return Metrics(cluster="c", node_type="broker", node_id="g1/2")


def scraped(metrics: Metrics) -> dict[str, float]:
    body, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def test_event_is_one_json_line_with_node_epoch_and_fields(stream: io.StringIO) -> None:
    node = Node("broker:g1/2", epoch=7)
    start_logging(node, stream=stream)

    log.warning("replica_removed", extra={"replica": 2, "lag_bytes": 4096})

    (line,) = lines_of(stream)
    assert isinstance(line.pop("unix_ms"), int)
    assert line == {
        "level": "warning",
        "event": "replica_removed",
        "logger": "paceline.test",
        "node": "broker:g1/2",
        "epoch": 7,
        "replica": 2,
        "lag_bytes": 4096,
    }


async def test_field_cannot_replace_a_fixed_one(stream: io.StringIO) -> None:
    start_logging(Node("n", epoch=3), stream=stream)

    log.info("fenced", extra={"epoch": 9, "who": {1, 2}})

    (line,) = lines_of(stream)
    assert (line["epoch"], line["epoch_"]) == (3, 9)


async def test_exception_is_part_of_the_line(stream: io.StringIO) -> None:
    start_logging(Node("n"), stream=stream)

    try:
        raise ValueError("torn\ntail")
    except ValueError:
        log.exception("recovery_failed")

    (line,) = lines_of(stream)
    assert "ValueError: torn\ntail" in line["exception"]


async def test_tasks_of_two_nodes_in_one_process_do_not_mix(stream: io.StringIO) -> None:
    start_logging(Node("main"), stream=stream)

    async def run(name: str) -> None:
        become_node(Node(name))
        log.info("started")

    async with asyncio.TaskGroup() as group:
        group.create_task(run("a"))
        group.create_task(run("b"))
    log.info("done")

    assert [line["node"] for line in lines_of(stream)] == ["a", "b", "main"]


async def test_level_is_respected_and_checked(stream: io.StringIO) -> None:
    start_logging(Node("n"), level="warning", stream=stream)

    log.info("quiet")

    assert stream.getvalue() == ""
    with pytest.raises(ConfigError, match="log_level must be one of debug, info"):
        start_logging(Node("n"), level="loud", stream=stream)


def test_process_cpu_time_is_exported() -> None:
    values = scraped(the_metrics())

    assert values["paceline_process_cpu_seconds_total[('mode', 'user')]"] > 0


def test_counters_have_one_series_only() -> None:
    metrics = the_metrics()
    metrics.counter("paceline_log_appends_total", "Appends.").inc()

    values = scraped(metrics)

    assert values["paceline_log_appends_total[]"] == 1
    assert not any("_created" in name for name in values)


def test_sampled_metric_is_read_at_the_scrape() -> None:
    metrics, owned = the_metrics(), {"end": 1}
    metrics.sampled("paceline_log_end_offset_bytes", "End of the log.", lambda: owned["end"])
    owned["end"] = 42

    assert scraped(metrics)["paceline_log_end_offset_bytes[]"] == 42


def test_sampled_metric_may_have_labels() -> None:
    metrics = the_metrics()
    metrics.sampled(
        "paceline_replication_lag_bytes", "Lag.", lambda: {("2",): 7.0}, labels=("replica",)
    )

    assert scraped(metrics)["paceline_replication_lag_bytes[('replica', '2')]"] == 7


def test_rocketmq_metrics_carry_the_labels_of_the_node() -> None:
    metrics = the_metrics()
    metrics.rocketmq("rocketmq_messages_in_total").labels(
        topic="t", message_type="normal", is_system="false"
    ).inc(3)
    metrics.sampled("rocketmq_producer_connections", "", lambda: 2)

    values = scraped(metrics)

    node = "('cluster', 'c'), {}('node_id', 'g1/2'), ('node_type', 'broker')"
    labels = f"[{node.format(chr(0))}]".replace(
        chr(0), "('is_system', 'false'), ('message_type', 'normal'), "
    )
    labels = labels.replace("'broker')]", "'broker'), ('topic', 't')]")
    assert values[f"rocketmq_messages_in_total{labels}"] == 3
    assert values[f"rocketmq_producer_connections[{node.format('')}]"] == 2


@pytest.mark.parametrize("name", sorted(ROCKETMQ))
def test_every_rocketmq_name_makes_a_metric(name: str) -> None:
    metrics = the_metrics()
    labels = {label: "x" for label in ROCKETMQ[name].labels}

    metrics.rocketmq(name).labels(**labels)

    assert name in metrics.exposition()[0].decode()


@pytest.mark.parametrize("name", ["log_appends_total", "paceline_", "paceline_x", "Paceline_a_b"])
def test_name_outside_the_scheme_is_a_bug(name: str) -> None:
    with pytest.raises(AssertionError):
        the_metrics().gauge(name, "No.")


def a_line(unix_s: float) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": strangers.name, "msg": "stream_broken"})
    record.created = unix_s
    return record


def test_strangers_cause_few_lines_and_the_next_one_counts_the_others() -> None:
    lines = StrangerLines()

    first = [lines.filter(a_line(100 + number / 1000)) for number in range(1000)]
    later = a_line(101.5)
    last = a_line(101.6)

    assert sum(first) == STRANGER_LINES_MAX
    assert lines.filter(later)
    assert lines.filter(last)
    assert later.__dict__["suppressed"] == 1000 - STRANGER_LINES_MAX
    assert "suppressed" not in last.__dict__


def test_want_of_memory_is_one_short_line_in_ten_seconds(stream: io.StringIO) -> None:
    start_logging(Node("broker:g1/2"), stream=stream)

    for _ in range(100):
        try:
            raise MemoryError
        except MemoryError:
            log.exception("request failed\nwith more lines")
    try:
        raise ValueError("another fault")
    except ValueError:
        log.exception("request_failed")

    short, other = lines_of(stream)
    assert (short["event"], short["during"]) == ("out_of_memory", "request failed")
    assert "exception" not in short
    assert "ValueError" in other["exception"]


def test_the_next_line_about_memory_counts_those_left_out() -> None:
    lines, kept = MemoryLines(), []
    for second in (100, 101, 109.9, 110, 121):
        record = logging.makeLogRecord({"msg": "x", "exc_info": (MemoryError, MemoryError(), None)})
        record.created = second
        if lines.filter(record):
            kept.append((second, record.__dict__["suppressed"]))

    assert kept == [(100, 0), (110, 2), (121, 0)]


def test_only_what_strangers_cause_is_left_out(stream: io.StringIO) -> None:
    start_logging(Node("broker:g1/2"), stream=stream)

    for _ in range(100):
        strangers.warning("stream_broken")
        log.warning("replica_removed")
    strangers.filters.clear()

    events = [line["event"] for line in lines_of(stream)]
    assert events.count("replica_removed") == 100
    assert STRANGER_LINES_MAX <= events.count("stream_broken") <= 2 * STRANGER_LINES_MAX
