"""A Spark session for `paceline export` and the examples, and what can be wrong before it.

A user's own program makes its own session and calls `register`; nothing here is needed for that.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import BY_CODE, ConfigError, PacelineError, PeerError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
JAVA_TIMEOUT_S = 30
_NAMES = {cls.__name__: cls for cls in BY_CODE.values()}
_OURS = re.compile(r"paceline\.errors\.([A-Za-z]+): (.+?)(?=\n\s|\n\n|$)", re.DOTALL)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def check_java() -> None:
    """ConfigError with one sentence unless a Java of version 17 or newer can be started."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = (
            f"JAVA_HOME is {home}, and has no bin/java" if home else "there is no java on the PATH"
        )
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or newer and {where}; on Debian or Ubuntu:"
            " apt-get install openjdk-17-jre-headless"
        )
    try:
        finished = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} cannot be started: {error}") from error
    match = re.search(r'version "(?:1\.)?([0-9]+)', finished.stderr + finished.stdout)
    if match is None or int(match.group(1)) < JAVA_MIN:
        found = "an unknown version" if match is None else f"version {match.group(1)}"
        raise ConfigError(f"Spark needs Java {JAVA_MIN} or newer; {java} is {found}")


def open_session(
    master: str | None, *, name: str, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session with format "paceline" registered. `master` None: as `spark-submit` says.

    Raises ConfigError with a sentence when Java, PySpark or pyarrow are missing.
    """
    check_java()
    # Another Python in the workers fails with a message that says nothing of the reason.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession

        from paceline.spark.source import register
    except ImportError as error:
        raise ConfigError(
            f"{error.name or error} is not installed: pip install 'paceline[spark]'"
        ) from error
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
        # Errors only: what the user needs to see of them is told by one sentence.
        log4j = Path(__file__).with_name("log4j2.properties")
        options = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
        builder = builder.config("spark.driver.extraJavaOptions", options)
        if master.startswith("local"):
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
            builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
    # Folders are named by text: a topic 007 is not the number 7.
    builder = builder.config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise ConfigError(f"Spark does not start: {first_line(error)}") from error
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def plain_error(error: BaseException) -> PacelineError:
    """What Spark wrapped in a page of stack traces, as the error it was."""
    if isinstance(error, PacelineError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        error_class: type[PacelineError] = _NAMES.get(name, PeerError)
        return error_class(" ".join(message.split()))
    if _FULL.search(text):
        return StorageError(
            "the disk that Spark writes to is full: make room and run the same command again; what"
            " was not finished is not visible, and is written again"
        )
    return PeerError(f"Spark failed: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error that has many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__


def stop_quietly(spark: Any) -> None:
    """End a session; a driver that is already gone has ended."""
    try:
        spark.stop()
    except Exception as error:
        sys.stderr.write(f"Spark did not stop in order: {first_line(error)}\n")
