"""Sends that clients repeat."""

import asyncio

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

    def send(self, message_id: str = "m", *, key: ClientKey = ME, topic: str = "t") -> Outcome:
        return self.duplicates.once(key, topic, message_id, self._new)

    def _new(self) -> Outcome:
        self.outcomes.append(asyncio.get_running_loop().create_future())
        return self.outcomes[-1]

    async def settle(self, code: Code, number: int = -1) -> None:
        self.outcomes[number].set_result(SendResultEntry(status=Status(code=code)))
        await self.outcomes[number]


async def test_a_repetition_gets_the_outcome_of_the_first() -> None:
    sends = Sends()

    under_way = sends.send(), sends.send()
    await sends.settle(Code.OK)
    after = sends.send()

    assert under_way[0] is under_way[1] is after
    assert len(sends.outcomes) == 1


async def test_what_failed_is_sent_again() -> None:
    sends = Sends()
    sends.send()
    await sends.settle(Code.HA_NOT_AVAILABLE)

    sends.send()

    assert len(sends.outcomes) == 2


async def test_ids_of_other_clients_topics_and_users_are_others() -> None:
    sends = Sends()

    for send in (sends.send(), sends.send(key=OTHER), sends.send(topic="u"), sends.send("n")):
        assert not send.done()

    assert len(sends.outcomes) == 4


async def test_what_is_remembered_has_bounds() -> None:
    sends = Sends()
    for number in range(duplicates.REMEMBERED_MAX + 1):
        sends.send(str(number))
    for number in range(duplicates.CLIENTS_MAX):
        sends.send(key=ClientKey("", str(number)))

    before = len(sends.outcomes)
    sends.send("1")  # of a client that is forgotten

    assert len(sends.outcomes) == before + 1
