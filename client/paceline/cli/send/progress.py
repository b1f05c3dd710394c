"""The progress of `paceline send`: a bar on a terminal, nothing elsewhere."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol


class Progress(Protocol):
    """Is told how far an upload is."""

    def show(self, read_bytes: int, acknowledged: int) -> None:
        """`read_bytes` more were read; `acknowledged` messages in all are safe."""


class _Silent:
    def show(self, read_bytes: int, acknowledged: int) -> None:
        """Nobody looks."""


@contextmanager
def open_progress(file: BinaryIO, *, is_wanted: bool) -> Iterator[Progress]:
    """A bar on stderr if that is a terminal and stdin is none that somebody types into."""
    if not (is_wanted and sys.stderr.isatty()) or file.isatty():
        yield _Silent()
        return
    # Imported here: only people who look at a bar pay for its library.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress

    columns = (
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[acknowledged]:,} acknowledged"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("send", total=size_of(file), acknowledged=0)

        class Bar:
            def show(self, read_bytes: int, acknowledged: int) -> None:
                bar.update(task, advance=read_bytes, acknowledged=acknowledged)

        yield Bar()


def size_of(file: BinaryIO) -> int | None:
    """Bytes of a regular file; None for a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
