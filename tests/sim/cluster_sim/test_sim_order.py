"""The product does nothing in the order of addresses in memory: a run could not be repeated."""

import asyncio
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.support.askers import ANYBODY

from paceline.platform.runtime import SeededRandom
from paceline.platform.secret import ClusterSecrets
from paceline.types import GroupName
from paceline_broker.replication.master.server import ReplicationServer, _Link
from paceline_broker.server.stream import StreamServer


class Ended(asyncio.Transport):
    """Tells in which order transports were ended."""

    def __init__(self, number: int, order: list[int]) -> None:
        super().__init__({"peername": (f"10.0.0.{number}", 1000)})
        self._number = number
        self._order = order

    def close(self) -> None:
        self._order.append(self._number)

    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def replication(order: list[int]) -> ReplicationServer:
    server = ReplicationServer(
        group=GroupName("g"), secrets=ClusterSecrets(b"s" * 32), random=SeededRandom("1")
    )
    for number in range(50):
        link = _Link(server)
        link.connection_made(Ended(number, order))
    return server


def streams(order: list[int]) -> StreamServer:
    service = Mock()
    service.counters.streams_open = 0
    service.access = ANYBODY.access
    service.role.identity = Mock(cluster_id="c", group="g", replica_id=1)
    server = StreamServer(service)
    for number in range(50):
        server.upgrade(Ended(number, order), asyncio.Protocol(), asker=ANYBODY)
    return server


@pytest.mark.parametrize("kind", [replication, streams], ids=lambda kind: kind.__name__)
async def test_connections_are_ended_in_the_order_they_came(kind: Any) -> None:
    order: list[int] = []
    server = kind(order)

    if isinstance(server, ReplicationServer):
        server.end_term("a new epoch begins")
    else:
        cast(StreamServer, server).close()

    assert order == list(range(50))
