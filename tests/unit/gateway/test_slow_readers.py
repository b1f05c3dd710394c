"""Who does not read what waits for him is cut; who reads is not."""

import asyncio
from typing import cast

from paceline_gateway.slow_readers import TAKING_BYTES_MIN, Taking


class Transport:
    """So much waits in it."""

    waiting = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting


async def test_who_takes_something_is_not_cut_and_who_takes_nothing_is() -> None:
    transport, cut = Transport(), asyncio.Event()
    taking = Taking(cast(asyncio.Transport, transport), cut.set)
    transport.waiting = 10 * TAKING_BYTES_MIN
    taking.wrote(transport.waiting)
    taking.paused()

    taking.wrote(TAKING_BYTES_MIN)  # as much is written as he has taken
    taking._look()
    assert not cut.is_set()
    taking._look()

    assert cut.is_set()
    taking.end()
    taking.end()
