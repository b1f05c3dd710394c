"""Examples of the documents: found in the text, and run as a reader would run them."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.process.harness import RunningCluster, end_with_parent

ROOT = Path(__file__).parents[3]
EXAMPLE_TIMEOUT_S = 90
FENCE = re.compile(
    r"^```(?P<language>\w+)(?P<mark> runnable)?\n(?P<text>.*?)^```$"
    r"(?:\n+```text\n(?P<says>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
ADDRESS_IN_DOCUMENTS = "127.0.0.1:7700"
"""Where `make up` listens; the test's cluster listens elsewhere."""
_OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")


@dataclass(frozen=True)
class Example:
    """One fenced block; `line` is where its first line stands."""

    document: str
    line: int
    language: str
    text: str
    is_marked: bool
    """Its first line says "runnable"."""
    says: str | None
    """What a ```text block right behind it shows as the output."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    def command(self, address: str) -> list[str]:
        """What runs it, with the cluster's address in the place of the written one."""
        text = self.text.replace(ADDRESS_IN_DOCUMENTS, address)
        if self.language == "python":
            return [sys.executable, "-c", text]
        return ["sh", "-eu", "-c", text]


def fenced_blocks(document: str) -> list[Example]:
    """All fenced blocks of a document, but the outputs that belong to others."""
    text = (ROOT / document).read_text()
    return [
        Example(
            document,
            text.count("\n", 0, found.start()) + 2,
            found["language"],
            found["text"],
            found["mark"] is not None,
            found["says"],
        )
        for found in FENCE.finditer(text)
    ]


def reader_folder(parent: Path) -> Path:
    """A folder where `.venv` and `paceline` are what the documents call so."""
    folder = parent / "reader"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def run(example: Example, cluster: RunningCluster, folder: Path) -> str:
    """Run one example in a `reader_folder`; what it printed. It must end with 0."""
    done = finished(example.command(cluster.bootstrap[0]), folder, cluster.bootstrap)
    said = (done.stdout[-2000:] + done.stderr[-2000:]).decode(errors="replace")
    assert done.returncode == 0, f"{example} ends with:\n{said}"
    return done.stdout.decode()


def run_line(
    line: str, folder: Path, bootstrap: Sequence[str] = (), *, timeout_s: float = EXAMPLE_TIMEOUT_S
) -> str:
    """Run one command line in a `reader_folder`; what it printed. It must end with 0."""
    done = finished(["sh", "-eu", "-c", line], folder, bootstrap, timeout_s=timeout_s)
    said = (done.stdout[-3000:] + done.stderr[-3000:]).decode(errors="replace")
    assert done.returncode == 0, f"{line}: {done.returncode}\n{said}"
    return done.stdout.decode()


def finished(
    command: Sequence[str],
    folder: Path,
    bootstrap: Sequence[str],
    *,
    timeout_s: float = EXAMPLE_TIMEOUT_S,
) -> subprocess.CompletedProcess[bytes]:
    """A program that was run with this environment's programs on its path, and has ended."""
    return subprocess.run(
        command,
        cwd=folder,
        env=reader_environment(bootstrap),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        preexec_fn=end_with_parent,
        check=False,
    )


def reader_environment(bootstrap: Sequence[str] = ()) -> dict[str, str]:
    """This environment is active, and a `make` above this test is not seen."""
    kept = {name: os.environ[name] for name in os.environ if name not in _OF_MAKE}
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PACELINE_BOOTSTRAP": ",".join(bootstrap)}
    return {**kept, **own, "PACELINE_CONFIG_DIR": "config"}  # in the reader's folder
