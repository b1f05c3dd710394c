"""Data that retention has deleted: told by every kind of read, and gone on without where chosen."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.exports import bodies_in, export
from tests.spark.topics import Topics
from tests.support.process.harness import running_cluster

from paceline.errors import OffsetOutOfRangeError, PacelineError
from paceline.platform.runtime import SystemClock
from paceline.spark.brokers import Brokers
from paceline.spark.options import read_options
from paceline.spark.plan import Planner
from paceline.spark.session import plain_error

SEGMENT_BYTES = 1024 * 1024
"""The least that is allowed."""


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A cluster that keeps two files of log."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("LOG_SIZE_BYTES_MAX", 2 * SEGMENT_BYTES),
            ("CLEAN_RESOURCE_INTERVAL_MS", 200),
            ("CHECKPOINT_INTERVAL_MS", 200),
        ):
            patch.setenv(f"PACELINE_BROKER_{name}", str(value))
        folder = tmp_path_factory.mktemp("forgetful") / "data"
        with running_cluster(folder, "--segment-size", str(SEGMENT_BYTES)) as cluster:
            yield Topics(cluster)


def start_of(topics: Topics, topic: str) -> int:
    """The first offset of the topic's one queue."""
    options = read_options({"endpoints": topics.endpoints, "topic": topic})
    with Brokers(options.access) as brokers:
        planner = Planner(options, brokers)
        [(start, _)] = planner.ends(planner.queues()).values()
    return start


def fill_until_gone(topics: Topics, topic: str, *, first: int, beyond: int) -> list[str]:
    """Let go of all pins and send until retention has deleted offset `beyond`; the bodies."""
    for owner in {row["owner"] for row in topics.pins()}:
        topics.unpin(owner)
    bodies: list[str] = []
    clock = SystemClock()
    deadline = clock.monotonic_ms() + 60_000
    while start_of(topics, topic) <= beyond:
        assert clock.monotonic_ms() < deadline, "nothing was deleted within a minute"
        bodies += topics.fill(topic, 300, first=first + len(bodies), size=2000)
    # Retention runs each 200 ms: what a test reads next must not vanish under it.
    start, since_ms = start_of(topics, topic), clock.monotonic_ms()
    while clock.monotonic_ms() - since_ms < 1_000:
        assert clock.monotonic_ms() < deadline, "retention did not come to rest within a minute"
        if (now := start_of(topics, topic)) != start:
            start, since_ms = now, clock.monotonic_ms()
    return bodies


def test_loss_is_told_and_accepted_by_choice_only(
    spark: Any, forgetful: Topics, tmp_path: Path
) -> None:
    """One topic, one queue: offsets are the numbers of the bodies."""
    topic = forgetful.make("forgotten", queues=1)
    to, state = tmp_path / "out", tmp_path / "state"
    bodies = forgetful.fill(topic, 200)
    export(spark, forgetful, topic, to)
    assert copied(spark, forgetful, topic, state) == 200
    bodies += fill_until_gone(forgetful, topic, first=200, beyond=400)

    refusals = [
        refusal(lambda: export(spark, forgetful, topic, to)),
        refusal(lambda: read_from(spark, forgetful, topic, 3).count()),
        refusal(lambda: copied(spark, forgetful, topic, state)),
    ]
    assert all(isinstance(error, OffsetOutOfRangeError) for error in refusals)
    assert all("retention has deleted what was before" in error.message for error in refusals)
    assert "give --accept-loss to go on" in refusals[0].message
    assert "set failOnDataLoss to false" in refusals[1].message
    assert bodies_in(to).total() == 200

    lax = {"failOnDataLoss": "false"}
    assert 0 < read_from(spark, forgetful, topic, 3, **lax).count() < len(bodies)
    assert copied(spark, forgetful, topic, state, **lax) > 0
    second = export(spark, forgetful, topic, to, options=lax)
    start = len(bodies) - second["rows"]
    assert (second["batch"], second["lost_rows"]) == (2, start - 200)
    bodies += forgetful.fill(topic, 50, first=len(bodies))
    third = export(spark, forgetful, topic, to, is_compact=True, is_verify=True)
    assert (third["rows"], third["lost_rows"], third["faults"]) == (50, 0, [])
    assert bodies_in(to) == Counter(bodies[:200] + bodies[start:])


def test_batch_that_was_begun_and_can_no_longer_be_had_is_planned_anew(
    spark: Any, forgetful: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that died long ago: its pin has ended, its range is gone in part."""
    from paceline.spark.export import frames

    topic, to = forgetful.make("begun", queues=1), tmp_path / "out"
    bodies = forgetful.fill(topic, 300)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(frames, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            export(spark, forgetful, topic, to)
    bodies += fill_until_gone(forgetful, topic, first=300, beyond=100)

    assert isinstance(refusal(lambda: export(spark, forgetful, topic, to)), OffsetOutOfRangeError)
    done = export(spark, forgetful, topic, to, is_verify=True, options={"failOnDataLoss": "false"})

    assert (done["batch"], done["faults"]) == (1, [])
    assert bodies_in(to) == Counter(bodies[len(bodies) - done["rows"] :])


def refusal(act: Any) -> PacelineError:
    with pytest.raises(Exception) as found:  # noqa: PT011 - Spark wraps it; judged by the caller
        act()
    return plain_error(found.value)


def read_from(spark: Any, topics: Topics, topic: str, offset: int, **options: str) -> Any:
    start = f'{{"{topic}": {{"g1": {{"0": {offset}}}}}}}'
    return topics.frame(spark, topic, startingOffsets=start, pin="false", **options)


def copied(spark: Any, topics: Topics, topic: str, folder: Path, **options: str) -> int:
    """Rows that a streaming query reads when it goes on from its checkpoint."""
    stream = (
        spark.readStream.format("paceline")
        .options(endpoints=topics.endpoints, topic=topic, pin="false", **options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination(120)
    return sum(progress["numInputRows"] for progress in stream.recentProgress)
