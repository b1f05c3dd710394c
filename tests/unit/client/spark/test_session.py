"""What may be wrong before Spark runs, and what Spark says in a page, in one sentence."""

from pathlib import Path

import pytest

from paceline.errors import (
    BadRequestError,
    ConfigError,
    OffsetOutOfRangeError,
    PeerError,
    StorageError,
)
from paceline.spark.session import check_java, plain_error

PAGE = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "x.py", line 1, in f
paceline.errors.OffsetOutOfRangeError: queue 0 of topic t in group g1 begins at 5, the read was at
3: retention deleted what lies between
  more of it
 SQLSTATE: 38000"""


def a_java(folder: Path, version: str) -> None:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_new_enough_java_is_taken(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    check_java()


@pytest.mark.parametrize(
    ("version", "sentence"), [("1.8.0_392", "version 8"), ("11.0.2", "version 11")]
)
def test_old_java_is_named(
    version: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ConfigError, match=sentence):
        check_java()


def test_missing_java_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="openjdk-17-jre-headless"):
        check_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="JAVA_HOME is"):
        check_java()


def test_error_inside_a_page_of_spark_is_found() -> None:
    error = plain_error(RuntimeError(PAGE))

    assert isinstance(error, OffsetOutOfRangeError)
    assert error.message.endswith("retention deleted what lies between")


def test_full_disk_under_spark_says_what_to_do() -> None:
    error = plain_error(RuntimeError("java.io.IOException: No space left on device\n at x"))

    assert isinstance(error, StorageError)
    assert "make room and run the same command again" in error.message


def test_anything_else_is_its_first_line() -> None:
    assert plain_error(RuntimeError("\nboom\n at x\n")).message == "Spark failed: boom"
    assert isinstance(plain_error(RuntimeError("boom")), PeerError)
    own = BadRequestError("mine", field="x")
    assert plain_error(own) is own
