"""Somebody between master and replica who changes what passes: nothing of it is applied."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.replication.builders import a_view
from tests.support.replication.nodes import Group, eventually

from paceline.platform.runtime import cancel_and_wait, spawn

TO_MASTER, TO_REPLICA = "to the master", "to the replica"
Alter = Callable[[bytes], bytes]
WAYS: dict[str, Alter] = {
    "flip": lambda read: read[:-1] + bytes([read[-1] ^ 1]),
    "flip of the tag": lambda read: read[:10] + bytes([read[10] ^ 1]) + read[11:],
    "repeat": lambda read: read + read,
    "drop": lambda read: b"",
}


class Middleman:
    """Passes on what it reads, and once what `alter` makes of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.connections_count = 0
        self.has_altered = False
        self._alter: dict[str, Alter] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def alter(self, direction: str, by: Alter) -> None:
        """The next that goes there."""
        self._alter[direction] = by

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_count += 1
        own_reader, own_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._tasks += [
            spawn(self._pass(reader, own_writer, TO_MASTER), name="to-master"),
            spawn(self._pass(own_reader, writer, TO_REPLICA), name="to-replica"),
        ]

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        try:
            while read := await reader.read(1 << 20):
                alter = self._alter.pop(direction, None)
                if alter is not None and (altered := alter(read)) != read:
                    self.has_altered = True
                    read = altered
                elif alter is not None:
                    self._alter[direction] = alter
                writer.write(read)
        except ConnectionError:
            pass  # one of the two has had enough: so has the other
        finally:
            writer.close()

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks)


@asynccontextmanager
async def a_middleman(port: int) -> AsyncIterator[tuple[Middleman, int]]:
    middleman = Middleman(port)
    server = await asyncio.start_server(middleman.connected, "127.0.0.1", 0)
    try:
        yield middleman, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await middleman.stop()


@pytest.mark.parametrize("direction", [TO_MASTER, TO_REPLICA])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_what_is_changed_on_the_way_ends_the_connection_and_is_sent_again(
    way: Alter, direction: str
) -> None:
    async with Group(replicas=(2,)) as group, a_middleman(group.master.port) as (between, port):
        group.master.lead(a_view(sync_state_set=frozenset({1, 2})))
        group.replicas[0].follow(port)
        await eventually(lambda: group.master.is_opened)
        assert between.connections_count == 1

        between.alter(direction, way)
        for number in range(3):
            group.master.send(b"a message %d" % number)

        await eventually(lambda: between.has_altered and between.connections_count == 2)
        await eventually(group.is_equal)


@pytest.mark.parametrize(
    ("direction", "was", "becomes"),
    [
        (TO_MASTER, b'"is_sealed":true', b'"is_sealed":false'),
        (TO_MASTER, b'"is_sealed":true', b'"is_SEALED":true'),
        (TO_REPLICA, b'"epoch":3', b'"epoch":4'),
    ],
    ids=["flag", "no flag", "epoch"],
)
async def test_nobody_between_can_talk_them_into_less(
    direction: str, was: bytes, becomes: bytes
) -> None:
    def alter(message: bytes) -> bytes:
        body = message[8:].replace(was, becomes)
        return message[:4] + len(body).to_bytes(4, "little") + body

    async with Group(replicas=(2,)) as group, a_middleman(group.master.port) as (between, port):
        group.master.lead(a_view(sync_state_set=frozenset({1, 2})))
        between.alter(direction, alter)
        group.replicas[0].follow(port)

        await eventually(lambda: between.has_altered and between.connections_count == 2)
        await eventually(lambda: group.master.is_opened and group.is_equal())
