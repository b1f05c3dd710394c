"""The mapping that shares what did not change: against a plain dict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import sorted_map
from paceline.sorted_map import SortedMap

keys = st.text("abc", max_size=4)
entries = st.dictionaries(keys, st.integers(0, 3), max_size=40)
changes = st.lists(st.dictionaries(keys, st.none() | st.integers(0, 3), max_size=6), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_map, "CHUNK_ENTRIES", 2)
        yield


@given(entries, changes)
def test_it_has_what_a_dict_has_in_order(
    first: dict[str, int], steps: list[dict[str, int | None]]
) -> None:
    expected, found = dict(first), SortedMap(first)
    for step in steps:
        before = found
        found, known = found.changed(step), dict(expected)
        for key, value in step.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value

        assert list(found.items()) == sorted(expected.items())
        assert list(found) == sorted(expected)
        assert list(found.values()) == [expected[key] for key in sorted(expected)]
        assert dict(found) == expected
        assert len(found) == len(expected)
        assert dict(before.items()) == known  # who reads the one before sees no change
        for key in {*step, *first}:
            assert (found.get(key), key in found) == (expected.get(key), key in expected)
            if key not in expected:
                with pytest.raises(KeyError):
                    found[key]


@given(entries, changes, st.booleans())
def test_what_changed_is_found_and_leads_there(
    first: dict[str, int], steps: list[dict[str, int | None]], is_plain: bool
) -> None:
    begun = last = SortedMap(first)
    for step in steps:
        last = last.changed(step)

    found = last.changes_since(dict(first) if is_plain else begun)

    expected: dict[str, int | None] = {
        key: value for key, value in last.items() if first.get(key) != value
    }
    assert found == expected | dict.fromkeys(first.keys() - last.keys())
    assert begun.changed(found) == last


def test_a_change_copies_one_part_only() -> None:
    many = SortedMap({f"{number:04}": number for number in range(1000)})

    other = many.changed({"0500": 7})

    shared = {id(chunk) for chunk in many._chunks} & {id(chunk) for chunk in other._chunks}
    assert len(shared) == len(many._chunks) - 1
