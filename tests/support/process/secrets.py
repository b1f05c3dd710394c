"""No secret of a cluster stands in its logs, its audit, what its controllers and brokers keep on
their disks, or in the command lines of its processes.

CVE-2025-50200 (RabbitMQ): a header with a password stood in the log.
"""

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    """Where a secret stands that must not: in node logs, on the disks of nodes, or in `others`,
    texts by what they are. `made`: secrets that no file has, and what each is."""
    texts = {path.name: path.read_bytes() for path in (data_dir / "logs").glob("*.log")}
    known = [*kept_secrets(data_dir), *made]
    found = found_in({**texts, **others}, known)
    for name, content in told_files(data_dir):
        found += found_in({name: content}, known)
    for name, content in message_logs(data_dir):  # one after another: they may be large
        found += found_in({name: content}, known, shapes=("a secret key",))
    return found


TOLD_FILES = ("audit/*.jsonl", "raft/*", "security.json")
"""Of a node: its audit, the journal and snapshots of a controller, a broker's users and rights.
They have digests, and what must be readable is encrypted."""


def told_files(data_dir: Path) -> Iterator[tuple[str, bytes]]:
    """With what they hold."""
    for pattern in TOLD_FILES:
        for path in sorted(data_dir.glob(f"*/{pattern}")):
            if path.is_file():
                yield str(path.relative_to(data_dir)), _content(path)


def message_logs(data_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Of brokers: the topic of the audit is in them, if rights were on. Messages of tests have what
    looks like other secrets."""
    if not any(data_dir.glob("*/audit/*.jsonl")):
        return
    for path in sorted(data_dir.glob("*/log/*")):
        if path.is_file():
            yield str(path.relative_to(data_dir)), _content(path)


def _content(path: Path) -> bytes:
    """Without the holes that files have which were made ahead."""
    pieces = []
    with path.open("rb", buffering=0) as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # nothing but a hole
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            pieces.append(os.pread(file.fileno(), end - at, at))
            at = end
    return b"".join(pieces).rstrip(b"\0")


def found_in(
    texts: Mapping[str, bytes],
    kept: Sequence[tuple[str, bytes]],
    *,
    shapes: Collection[str] = tuple(SHAPES),
) -> list[str]:
    found = []
    for where, text in texts.items():
        found += [f"{what} in {where}" for what, secret in kept if secret in text]
        for what in shapes:
            match = SHAPES[what].search(text)
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
