"""The bench's rows as a table on the terminal and as docs/BENCHMARKS.md."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from paceline.errors import ConfigError

COLUMNS = (
    "system",
    "case",
    "path",
    "replicas",
    "durability",
    "in flight",
    "msg/s",
    "lowest to highest",
    "MB/s",
    "p50 ms",
    "p99 ms",
    "CPU us/msg: client",
    "master",
    "replicas each",
    "controllers",
    "all servers",
)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """All rows, one line each."""
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column not in COLUMNS[:5] else "left")
    for row in rows:
        table.add_row(*_cells(row))
    Console(width=170).print(table)


def check_report(path: Path) -> None:
    """Before minutes of measuring. ConfigError if the report cannot be written."""
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(
            f"the report {path} cannot be written: {error.strerror}; choose another --write"
        ) from error


def write_report(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Markdown with the machine, the command and the table; the rest of the file is kept.

    Only the part between the two marker lines is replaced.
    """
    begin, end = "<!-- bench:begin -->", "<!-- bench:end -->"
    table = [
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(_cells(row)) + " |" for row in rows),
    ]
    memory_gib = psutil.virtual_memory().total / 2**30
    machine = (
        f"paceline {version('paceline')}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {psutil.cpu_count()} cores, {memory_gib:.0f} GiB."
    )
    part = "\n".join([begin, "", machine, "", *table, "", end])
    before, after = "# Benchmarks\n\n`make bench` writes the table.\n\n", "\n"
    if path.exists():
        text = path.read_text("utf-8")
        if begin in text and end in text:
            before, rest = text.split(begin, 1)
            after = rest.split(end, 1)[1]
        else:
            before = text.rstrip("\n") + "\n\n"
    path.write_text(before + part + after, "utf-8")


def _cells(row: dict[str, Any]) -> list[str]:
    cpu = row.get("cpu_us") or {}
    replicas = [value for name, value in cpu.items() if name.startswith("replica")]
    masters = [value for name, value in cpu.items() if name.startswith("master")]
    controllers = [value for name, value in cpu.items() if name[:1] == "c" and name[1:].isdigit()]
    servers = cpu.get("servers") or sum(cpu.values()) - cpu.get("client", 0)
    low, high = row.get("spread", (None, None))
    return [
        str(row.get("peer", "")),
        str(row.get("case", "produce")),
        str(row.get("path", "")),
        str(row.get("replicas", "")),
        str(row.get("durability", "memory")),
        f"{row['inflight']:,}",
        f"{row['msg_per_s']:,}",
        "" if low is None else f"{low:,} to {high:,}",
        f"{row['mb_per_s']:,.1f}",
        _number(row.get("p50_ms")),
        _number(row.get("p99_ms")),
        _number(cpu.get("client")),
        _number(sum(masters) if masters else None),
        _number(sum(replicas) / len(replicas) if replicas else None),
        _number(sum(controllers) if controllers else None),
        _number(servers or None),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
