"""Records of a proven connection: whatever is done to them on the way is noticed."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import PeerError
from paceline.wire.seal import RECORD_HEAD_BYTES, TAG_BYTES, Seal, Seals, check_sealing

SECRET = b"the secret of the cluster, 32 by"
SIZE_MAX = 1024
WAYS = ("flip", "drop", "repeat", "swap", "cut", "reflect", "other connection")


def seals(
    *,
    is_dialer: bool,
    secret: bytes = SECRET,
    purpose: str = "replication",
    dialer: bytes = b"d" * 16,
    listener: bytes = b"l" * 16,
) -> Seals:
    return Seals(
        secret,
        purpose=purpose,
        is_dialer=is_dialer,
        dialer_nonce=dialer,
        listener_nonce=listener,
    )


def records_of(seal: Seal, contents: list[bytes]) -> list[bytes]:
    return [bytes(seal.record([content])) for content in contents]


def taken(seal: Seal, stream: bytes) -> list[bytes]:
    """The contents that a receiver takes of it. Raises PeerError."""
    received = bytearray(stream)
    found = []
    while (content := seal.take_record(received, size_bytes_max=SIZE_MAX)) is not None:
        found.append(content)
    return found


def test_what_is_sealed_is_read_back_in_both_directions() -> None:
    dialer, listener = seals(is_dialer=True), seals(is_dialer=False)
    for out, into in ((dialer.outgoing, listener.incoming), (listener.outgoing, dialer.incoming)):
        stream = bytes(out.record([b"one", memoryview(b"two")]) + out.record([b"three"]))

        assert taken(into, stream) == [b"onetwo", b"three"]


@given(contents=st.lists(st.binary(min_size=1, max_size=64), min_size=1), cut=st.integers(0))
def test_a_stream_may_come_in_any_pieces(contents: list[bytes], cut: int) -> None:
    stream = b"".join(records_of(seals(is_dialer=True).outgoing, contents))
    into, received, found = seals(is_dialer=False).incoming, bytearray(), []
    at = cut % len(stream)

    for piece in (stream[:at], stream[at:]):
        received += piece
        while (content := into.take_record(received, size_bytes_max=SIZE_MAX)) is not None:
            found.append(content)

    assert found == contents
    assert not received


@given(
    contents=st.lists(st.binary(min_size=1, max_size=64), min_size=2, max_size=6, unique=True),
    way=st.sampled_from(WAYS),
    where=st.integers(0),
    bit=st.integers(0, 7),
)
def test_nothing_but_what_came_before_it_is_taken_of_a_stream_that_was_changed(
    contents: list[bytes], way: str, where: int, bit: int
) -> None:
    dialer = seals(is_dialer=True)
    sent = records_of(dialer.outgoing, contents)
    at = where % len(sent)
    match way:
        case "flip":
            changed = bytearray(sent[at])
            changed[where % len(changed)] ^= 1 << bit
            sent[at] = bytes(changed)
        case "drop":
            at %= len(sent) - 1  # without the last one it is the same stream, shorter
            del sent[at]
        case "repeat":
            sent.insert(at, sent[at])
            at += 1
        case "swap":
            at %= len(sent) - 1
            sent[at], sent[at + 1] = sent[at + 1], sent[at]
        case "cut":
            sent[at] = sent[at][: where % len(sent[at])]
        case "reflect":
            sent[at] = records_of(seals(is_dialer=False).outgoing, contents)[at]
        case "other connection":
            other = seals(is_dialer=True, listener=b"x" * 16)
            sent[at] = records_of(other.outgoing, contents)[at]
    into = seals(is_dialer=False).incoming
    received, found, is_refused = bytearray(b"".join(sent)), [], False

    try:
        while (content := into.take_record(received, size_bytes_max=SIZE_MAX)) is not None:
            found.append(content)
    except PeerError:
        is_refused = True

    assert found == contents[:at]
    assert is_refused or received or way == "cut", "it was taken for whole"


@pytest.mark.parametrize(
    "other",
    [
        lambda: seals(is_dialer=True, secret=b"another secret").outgoing,
        lambda: seals(is_dialer=True, purpose="repair").outgoing,
        lambda: seals(is_dialer=True, dialer=b"x" * 16).outgoing,
        lambda: seals(is_dialer=True, listener=b"x" * 16).outgoing,
        lambda: seals(is_dialer=True, dialer=b"l" * 16, listener=b"d" * 16).outgoing,
        lambda: seals(is_dialer=False).outgoing,
    ],
    ids=["secret", "purpose", "dialer", "listener", "nonces swapped", "direction"],
)
def test_a_record_of_anything_else_fails(other: Callable[[], Seal]) -> None:
    (record,) = records_of(other(), [b"content"])

    with pytest.raises(PeerError, match="not what the peer said next"):
        taken(seals(is_dialer=False).incoming, record)


def test_equal_contents_have_different_tags() -> None:
    tags = [seals(is_dialer=True).outgoing.tag(b"") for _ in range(2)]
    seal = seals(is_dialer=True).outgoing
    numbered = [seal.tag(b"") for _ in range(5)]

    assert tags[0] == tags[1] == numbered[0]
    assert all(one != next_one for one, next_one in pairwise(numbered))
    assert {len(tag) for tag in numbered} == {TAG_BYTES}


@pytest.mark.parametrize("size", [0, SIZE_MAX + 1, 2**32 - 1])
def test_a_record_without_or_with_too_much_content_is_refused_by_its_head(size: int) -> None:
    head = size.to_bytes(4, "little") + bytes(TAG_BYTES)
    assert len(head) == RECORD_HEAD_BYTES

    with pytest.raises(PeerError, match="over"):
        taken(seals(is_dialer=False).incoming, head)


@pytest.mark.parametrize(
    ("is_sealed", "is_tls", "match"),
    [(False, False, "does not authenticate"), (True, True, "nothing between two nodes")],
)
def test_a_hello_that_does_not_fit_the_connection_is_refused(
    is_sealed: bool, is_tls: bool, match: str
) -> None:
    check_sealing(is_sealed=not is_sealed, is_tls=is_tls)

    with pytest.raises(PeerError, match=match):
        check_sealing(is_sealed=is_sealed, is_tls=is_tls)
