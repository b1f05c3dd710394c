"""Ids of messages, and handles that cannot be made up by accident."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import BadRequestError
from paceline.records.encode import encode_batch
from paceline.records.header import SOURCE_POSITION_MAX, parse_header
from paceline.wire.message_ids import (
    OffsetMessageId,
    make_handle,
    parse_handle,
    parse_offset_id,
    unique_key,
)
from paceline.wire.properties import LIBRARY, RESERVED, check_application_properties

IDS = st.builds(
    OffsetMessageId,
    st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    st.integers(0, SOURCE_POSITION_MAX),
    st.integers(0, 65_534),
)


@given(message_id=IDS)
def test_ids_and_handles_come_back(message_id: OffsetMessageId) -> None:
    assert parse_offset_id(str(message_id)) == message_id
    assert parse_handle("tx", make_handle("tx", message_id)) == message_id


@pytest.mark.parametrize(
    "text",
    ["", "g1", "g1:1:", "g1:xyz:0", "g1:1:65535", "g1:1:0:0", "g 1:1:0", "g1:fffffffffffff:0"],
)
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(BadRequestError, match="message id"):
        parse_offset_id(text)


@given(message_id=IDS, at=st.integers(0, 200), other=st.characters(codec="ascii"))
def test_a_handle_with_another_character_is_refused(
    message_id: OffsetMessageId, at: int, other: str
) -> None:
    handle = make_handle("recall", message_id)
    at %= len(handle)
    if handle[at] == other:
        return
    with pytest.raises(BadRequestError):
        parse_handle("recall", handle[:at] + other + handle[at + 1 :])


def test_a_handle_of_another_kind_is_refused() -> None:
    with pytest.raises(BadRequestError, match="no handle of kind recall"):
        parse_handle("recall", make_handle("tx", OffsetMessageId("g1", 5, 0)))


def test_a_unique_key_names_the_sending_or_else_the_place() -> None:
    known = encode_batch(
        [b"b"] * 3, born_unix_ms=5, topic_id=7, queue_id=2, producer_id=0xAB, base_sequence=10
    )
    unknown = encode_batch([b"b"], born_unix_ms=5, topic_id=7, queue_id=2)

    assert unique_key(parse_header(known), 2, "g1") == "00000000000000ab:0:7:2:12"
    assert unique_key(parse_header(unknown), 0, "g1") == "g1:0:0"


def test_names_of_the_system_are_refused_from_applications() -> None:
    check_application_properties({"colour": "red"})
    assert LIBRARY < RESERVED
    with pytest.raises(BadRequestError, match="property DELAY belongs to the system"):
        check_application_properties({"colour": "red", "DELAY": "3"})
