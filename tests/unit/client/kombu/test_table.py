"""Which of several messages of one key counts."""

import pytest

from paceline.kombu.table import FORGOTTEN, Entry, _later


def an_entry(tag: str, offset: int) -> Entry:
    return Entry(value=b"", tag=tag, stored_unix_ms=0, offset=offset)


@pytest.mark.parametrize(
    ("tags", "offset"),
    [
        (["STARTED", "SUCCESS"], 1),
        (["SUCCESS", "STARTED"], 0),
        (["SUCCESS", "FAILURE"], 0),
        (["FAILURE", "SUCCESS"], 1),
        (["SUCCESS", FORGOTTEN], 1),
        (["SUCCESS", FORGOTTEN, "STARTED"], 2),
        (["", ""], 1),
    ],
)
def test_the_last_one_counts_but_a_success_stays(tags: list[str], offset: int) -> None:
    found: Entry | None = None
    for number, tag in enumerate(tags):
        found = _later(found, an_entry(tag, number))

    assert found is not None
    assert found.offset == offset
