"""No secret of a cluster stands in its logs, or in the command lines of its processes.

CVE-2025-50200 (RabbitMQ): a header with a password stood in the log.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

SHAPES = {
    "a secret key": re.compile(rb"\bsk_[0-9a-f]{32,}"),
    "an Authorization header": re.compile(rb"(?i)\b(?:bearer|basic)\s+[\w-]{4,}[.:=]"),
    "a private key": re.compile(rb"PRIVATE KEY"),
    "a node's proof": re.compile(rb"\b[0-9a-f]{32} [0-9a-f]{64}\b"),
}
"""What looks like one, whoever made it."""


def kept_secrets(data_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Those that the cluster keeps in files."""
    for path in sorted(data_dir.rglob("*")):
        if path.name == "cluster-secret":
            yield "the cluster's secret", path.read_bytes().strip()
        elif path.suffix == ".key" or path.name.endswith("-key.pem"):
            lines = path.read_bytes().splitlines()
            yield from (("a private key", line) for line in lines if len(line) >= 40)


def told_secrets(
    data_dir: Path, others: Mapping[str, bytes], *, made: Sequence[tuple[str, bytes]] = ()
) -> list[str]:
    """Where a secret stands that must not: in node logs, or in `others`, texts by what they are.
    `made`: secrets that no file has, and what each is."""
    texts = {path.name: path.read_bytes() for path in (data_dir / "logs").glob("*.log")}
    return found_in({**texts, **others}, [*kept_secrets(data_dir), *made])


def found_in(texts: Mapping[str, bytes], kept: Sequence[tuple[str, bytes]]) -> list[str]:
    found = []
    for where, text in texts.items():
        found += [f"{what} in {where}" for what, secret in kept if secret in text]
        for what, shape in SHAPES.items():
            match = shape.search(text)
            if match is not None:
                around = text[max(0, match.start() - 200) : match.start()]
                found.append(f"{what} in {where}, after {around!r}")
    return found


def command_lines(pids: Iterable[int]) -> dict[str, bytes]:
    """Of those that still run."""
    lines = {}
    for pid in pids:
        path = Path(f"/proc/{pid}/cmdline")
        if path.exists():
            lines[f"the command line of {pid}"] = path.read_bytes()
    return lines
