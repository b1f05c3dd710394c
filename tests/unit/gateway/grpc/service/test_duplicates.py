"""Sends that clients repeat."""

import pytest

from paceline.errors import OverloadedError
from paceline_gateway.connected_clients import ClientKey
from paceline_gateway.grpc.service import duplicates
from paceline_gateway.grpc.service.duplicates import Duplicates, Outcome
from paceline_gateway.grpc.stubs.messaging_pb2 import SendResultEntry
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Status

ME, OTHER = ClientKey("anna", "c1"), ClientKey("ben", "c1")


class Sends:
    """Sends that are counted, and settled by hand."""

    def __init__(self) -> None:
        self.duplicates = Duplicates()
        self.outcomes: list[Outcome] = []

    def send(
        self, message_id: str = "m", *, key: ClientKey = ME, topic: str = "t", body: bytes = b"x"
    ) -> Outcome:
        return self.duplicates.once(key, topic, message_id, body, self._new)

    def _new(self) -> Outcome:
        self.outcomes.append(Outcome())
        return self.outcomes[-1]

    def settle(self, code: Code, number: int = -1) -> None:
        self.outcomes[number].settle(SendResultEntry(status=Status(code=code)))


def test_a_repetition_gets_the_outcome_of_the_first() -> None:
    sends = Sends()

    under_way = sends.send(), sends.send()
    sends.settle(Code.OK)
    after = sends.send()

    assert under_way[0] is under_way[1] is after
    assert len(sends.outcomes) == 1


def test_what_failed_is_sent_again() -> None:
    sends = Sends()
    sends.send()
    sends.settle(Code.HA_NOT_AVAILABLE)

    sends.send()

    assert len(sends.outcomes) == 2


def test_ids_of_other_clients_topics_and_users_are_others() -> None:
    sends = Sends()

    for send in (sends.send(), sends.send(key=OTHER), sends.send(topic="u"), sends.send("n")):
        assert send.entry is None

    assert len(sends.outcomes) == 4


def test_an_id_that_a_client_uses_twice_swallows_no_message() -> None:
    sends = Sends()
    sends.send(body=b"one")
    sends.settle(Code.OK)

    assert sends.send(body=b"two").entry is None
    assert sends.send(body=b"one").entry is not None
    assert len(sends.outcomes) == 2


def test_what_is_under_way_is_remembered_whatever_comes_after_it() -> None:
    sends = Sends()
    first = sends.send("first")
    for number in range(duplicates.REMEMBERED_MAX + 1):
        sends.send(str(number))
        sends.settle(Code.OK)

    assert sends.send("first") is first
    assert len(sends.duplicates._clients[ME]) == duplicates.REMEMBERED_MAX
    before = len(sends.outcomes)
    sends.send("0")
    assert len(sends.outcomes) == before + 1, "it was the oldest one that had ended"


def test_those_that_send_are_remembered_rather_than_those_that_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "REMEMBERED_OF_ALL_MAX", 4)
    sends = Sends()
    under_way = sends.send("under way", key=OTHER)
    sends.send("old", key=OTHER)
    sends.settle(Code.OK)
    for message_id in "abc":
        sends.send(message_id)
        sends.settle(Code.OK)

    assert sends.send("under way", key=OTHER) is under_way
    assert all(sends.send(message_id).entry is not None for message_id in "abc")
    assert sends.send("old", key=OTHER).entry is None
    sends.duplicates.forget(ME)
    sends.duplicates.forget(OTHER)
    assert (sends.duplicates._count, len(sends.duplicates._clients)) == (0, 0)


def test_a_send_that_is_refused_is_not_remembered() -> None:
    sends = Sends()

    def refused() -> Outcome:
        raise OverloadedError("too many", retry_after_ms=1)

    with pytest.raises(OverloadedError):
        sends.duplicates.once(ME, "t", "m", b"x", refused)

    assert (sends.duplicates._count, len(sends.duplicates._clients)) == (0, 0)
