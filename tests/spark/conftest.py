"""One Spark session and one cluster of real processes for all of these tests."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.spark.topics import Topics
from tests.support.process.harness import running_cluster

from paceline.spark.session import check_java, open_session

# The quick compiler alone: half the time to the first job. Never where speed is measured.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session, with retries of tasks."""
    check_java()
    session = open_session(
        "local[2,3]",
        name="tests",
        settings={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"},
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A cluster whose killed nodes come back after two seconds, and what to do with its topics."""
    folder = tmp_path_factory.mktemp("cluster") / "data"
    with running_cluster(folder, restart=True) as cluster:
        yield Topics(cluster)
