"""Renewing the receipts of many messages: in calls that brokers take."""

import asyncio

from paceline.consumer.pop.lease_renewal import LeaseRenewal
from paceline.wire.calls.pop import ReceiptRow

COUNT = 2500


async def test_more_receipts_than_a_call_may_name_are_renewed_in_several() -> None:
    calls: list[int] = []
    done = asyncio.Event()

    async def change(group: str, handles: list[str], invisible_ms: int) -> list[ReceiptRow]:
        calls.append(len(handles))
        if sum(calls) >= COUNT:
            done.set()
        return [
            ReceiptRow(code=None, handle=handle + "'", invisible_until_unix_ms=1)
            for handle in handles
        ]

    renewing = LeaseRenewal(change, limit_ms=60_000, group="g")
    for number in range(COUNT):
        renewing.hold("g1", str(number), 20)
    async with asyncio.timeout(10):
        await done.wait()

    assert max(calls) <= 1024
    assert await renewing.release("2499") == "2499'"
    await renewing.close()
