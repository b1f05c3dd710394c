"""The examples of the documents, run as a reader would: one after the other, on a new cluster.

A fenced block is an example if its first line says so: "```sh runnable" or "```python runnable".
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.process.harness import RunningCluster, end_with_parent, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/CLI.md")
EXAMPLE_TIMEOUT_S = 20
FENCE = re.compile(r"^```(\w+) runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS_IN_DOCUMENTS = "127.0.0.1:7700"
"""Where `make up` listens; the test's cluster listens elsewhere."""


@dataclass(frozen=True)
class Example:
    """One fenced block; `line` is where its first line stands."""

    document: str
    line: int
    language: str
    text: str

    def command(self, address: str) -> list[str]:
        """What runs it, with the cluster's address in the place of the written one."""
        text = self.text.replace(ADDRESS_IN_DOCUMENTS, address)
        if self.language == "python":
            return [sys.executable, "-c", text]
        return ["sh", "-eu", "-c", text]


def examples(document: str) -> list[Example]:
    text = (ROOT / document).read_text()
    return [
        Example(document, text.count("\n", 0, found.start()) + 2, found[1], found[2])
        for found in FENCE.finditer(text)
    ]


def run(example: Example, cluster: RunningCluster, folder: Path) -> None:
    """Run one example in `folder`, where `.venv` and `paceline` are what the documents call so."""
    programs = Path(sys.prefix) / "bin"
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PACELINE_BOOTSTRAP": ",".join(cluster.bootstrap),
    }
    done = subprocess.run(
        example.command(cluster.bootstrap[0]),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=EXAMPLE_TIMEOUT_S,
        preexec_fn=end_with_parent,
        check=False,
    )
    said = (done.stdout[-2000:] + done.stderr[-2000:]).decode(errors="replace")
    assert done.returncode == 0, f"{example.document}:{example.line} ends with:\n{said}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_of_the_document_work_in_their_order(document: str, tmp_path: Path) -> None:
    found = examples(document)
    assert {example.language for example in found} <= {"sh", "python"}, found
    assert found, f"{document} has no examples any more"
    if shutil.which("curl") is None:
        found = [example for example in found if "curl" not in example.text]
    folder = tmp_path / "reader"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)

    with running_cluster(tmp_path / "data") as cluster:
        for example in found:
            run(example, cluster, folder)
