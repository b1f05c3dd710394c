"""The examples of the documents, run as a reader would: one after the other, on a new cluster.

A fenced block is an example if its first line says so: "```sh runnable" or "```python runnable".
"""

import shutil
from pathlib import Path

import pytest
from tests.support.process.examples import fenced_blocks, reader_folder, run
from tests.support.process.harness import running_cluster
from tests.support.process.readme import DOCUMENTS

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_of_the_document_work_in_their_order(document: str, tmp_path: Path) -> None:
    found = [example for example in fenced_blocks(document) if example.is_marked]
    assert {example.language for example in found} <= {"sh", "python"}, found
    assert found, f"{document} has no examples any more"
    if shutil.which("curl") is None:
        found = [example for example in found if "curl" not in example.text]
    folder = reader_folder(tmp_path)

    with running_cluster(tmp_path / "data") as cluster:
        for example in found:
            run(example, cluster, folder)
