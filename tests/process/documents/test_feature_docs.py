"""The examples of docs/features, run as a reader would, on one cluster that all pages share.

Each page has a ```python block that is a whole program, and may have blocks of commands that are
marked "```sh runnable"; a page's blocks run in their order. A ```text block right behind a block is
exactly what the block prints. Topics and groups of a page are its own: its name is part of theirs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.process.examples import ROOT, Example, fenced_blocks, reader_folder, run
from tests.support.process.harness import RunningCluster, running_cluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("feature_docs"),
]

TWO_GROUPS = {"docs/features/static-topics.md"}
"""Pages that say before their program that it needs two broker groups."""
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/features").glob("*.md"))


@dataclass(frozen=True)
class Reader:
    """Who reads the pages: a cluster, and a folder to run things in."""

    cluster: RunningCluster
    folder: Path


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("features")
    with running_cluster(folder / "data") as cluster:
        yield Reader(cluster, reader_folder(folder))


@pytest.fixture(scope="module")
def reader_of_two_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("features-two-groups")
    with running_cluster(folder / "data", "--groups", "2", "--brokers", "1") as cluster:
        yield Reader(cluster, reader_folder(folder))


def runnable(page: str) -> list[Example]:
    """Every program in Python, and the commands that say so."""
    blocks = fenced_blocks(page)
    return [block for block in blocks if block.language == "python" or block.is_marked]


def test_there_are_pages() -> None:
    assert "docs/features/producing.md" in PAGES


@pytest.mark.parametrize("page", sorted(TWO_GROUPS))
def test_a_program_for_two_groups_says_so_where_there_is_one(page: str, reader: Reader) -> None:
    before = (ROOT / page).read_text().partition("```python")[0]
    [program] = [example for example in runnable(page) if example.language == "python"]

    with pytest.raises(AssertionError) as failed:
        run(program, reader.cluster, reader.folder)

    assert 'make up ARGS="--groups 2"' in before
    assert "start the cluster with --groups 2" in str(failed.value)
    assert "Traceback" not in str(failed.value)


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_the_page_do_what_the_page_says(
    page: str, request: pytest.FixtureRequest
) -> None:
    reader: Reader = request.getfixturevalue(
        "reader_of_two_groups" if page in TWO_GROUPS else "reader"
    )
    found = runnable(page)
    assert any(example.language == "python" for example in found), f"{page} has no program"
    for example in found:
        printed = run(example, reader.cluster, reader.folder)
        if example.language == "python":
            assert printed, f"{example} prints nothing"
        if example.says is not None:
            assert printed == example.says, f"{example} prints something else"
