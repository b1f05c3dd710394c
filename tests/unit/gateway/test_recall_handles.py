"""Handles of delayed messages at the doors."""

import base64

import pytest

from paceline.errors import BadRequestError
from paceline.wire.message_ids import RECALL, OffsetMessageId, make_handle
from paceline_gateway.recall_handles import make_recall_handle, read_recall_handle

OURS = make_handle(RECALL, OffsetMessageId("g1", 0x1A40, 0))


@pytest.mark.parametrize("message_id", ["7F0001", "", "with blanks, größe"])
def test_a_handle_gives_back_what_is_in_it(message_id: str) -> None:
    handle = make_recall_handle("shop%orders", OURS, message_id)

    assert read_recall_handle(handle) == (OURS, message_id)


def test_java_finds_the_broker_in_a_handle() -> None:
    plain = base64.urlsafe_b64decode(make_recall_handle("orders", OURS, "7F0001")).decode()

    version, topic, broker_name, _, message_id = plain.split(" ")
    assert (version, topic, broker_name, message_id) == ("v1", "orders", "g1", "7F0001")


def test_a_handle_of_the_cluster_is_taken_as_it_is() -> None:
    assert read_recall_handle(OURS) == (OURS, "")


@pytest.mark.parametrize(
    "text", ["", "x", "größe", "AAAA", base64.urlsafe_b64encode(b"v2 t g h i").decode()]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="no recall handle"):
        read_recall_handle(text)
