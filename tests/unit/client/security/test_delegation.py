"""A gateway acts for a user: who holds the cluster secret may, at one node, and for a minute."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from paceline.errors import UnauthenticatedError
from paceline.security.delegation import (
    CLOCK_SKEW_MS,
    LIFETIME_MS,
    SCHEME,
    Delegation,
    is_delegated,
    read_delegation,
    write_delegation,
)

SECRET, OLDER, NEWER = b"a secret of the cluster", b"the one before it", b"the one after it"
NOW = 1_700_000_000_000
ANA = Delegation("ana", "10.1.2.3", "key-ana", "grpc", "broker:7701", NOW + LIFETIME_MS)


def written(delegation: Delegation = ANA, *, secret: bytes = SECRET) -> str:
    return write_delegation(delegation, cluster_id="c", secret=secret)


def read(shown: str, *secrets: bytes, **other: Any) -> Delegation:
    given = {
        "cluster_id": "c",
        "secrets": secrets or (SECRET,),
        "now_unix_ms": NOW,
        "addresses": {"broker:7701"},
        **other,
    }
    return read_delegation(shown, **given)


def test_a_node_reads_what_a_gateway_wrote() -> None:
    assert is_delegated(written())
    assert read(written()) == ANA


def test_either_secret_counts_while_one_is_replaced() -> None:
    assert read(written(secret=OLDER), SECRET, OLDER) == ANA
    assert read(written(), NEWER, SECRET) == ANA

    with pytest.raises(UnauthenticatedError, match="no gateway of this cluster"):
        read(written(secret=OLDER), SECRET)
    with pytest.raises(UnauthenticatedError, match="no gateway of this cluster"):
        read(written(), cluster_id="another")


@given(st.integers(0, 10_000), st.characters(codec="ascii"))
def test_nothing_in_it_can_be_changed(at: int, other: str) -> None:
    shown = written()
    place = len(SCHEME) + at % (len(shown) - len(SCHEME))
    changed = shown[:place] + other + shown[place + 1 :]

    if changed != shown:
        with pytest.raises(UnauthenticatedError):
            read(changed)


@given(st.text())
def test_no_text_does_more_than_to_be_refused(text: str) -> None:
    for shown in (SCHEME + text, SCHEME + "x" * 1_000_000):
        with pytest.raises(UnauthenticatedError):
            read(shown)


def test_what_is_for_one_node_counts_at_no_other() -> None:
    with pytest.raises(UnauthenticatedError, match="the node at broker:7701"):
        read(written(), addresses={"broker:7702"})

    assert read(written(), addresses=None) == ANA, "the node that relays it has looked"


@pytest.mark.parametrize(
    ("now_unix_ms", "counts"),
    [
        (NOW - CLOCK_SKEW_MS, True),
        (NOW - CLOCK_SKEW_MS - 1, False),
        (NOW + LIFETIME_MS + CLOCK_SKEW_MS, True),
        (NOW + LIFETIME_MS + CLOCK_SKEW_MS + 1, False),
    ],
)
def test_it_counts_for_less_than_a_minute_by_clocks_that_are_apart(
    now_unix_ms: int, *, counts: bool
) -> None:
    if counts:
        assert read(written(), now_unix_ms=now_unix_ms) == ANA
        return
    with pytest.raises(UnauthenticatedError, match="set them right"):
        read(written(), now_unix_ms=now_unix_ms)


def test_one_without_end_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="set them right"):
        read(written(structs.replace(ANA, expires_unix_ms=NOW + 10**9)))


@pytest.mark.parametrize("change", [{"user": "a b"}, {"door": "http"}, {"source": ""}])
def test_what_no_gateway_says_is_of_another_version(change: dict[str, Any]) -> None:
    with pytest.raises(UnauthenticatedError, match="another version"):
        read(written(structs.replace(ANA, **change)))
