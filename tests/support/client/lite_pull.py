"""What tests of lite pull share with others."""

from typing import Any

from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.message import ReceivedMessage

BY_HAND = LitePullSettings(start="first", auto_commit=False)


async def polled(consumer: LitePullConsumer, count: int, **more: Any) -> list[int]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await consumer.poll(**more)
    return [int(message.body) for message in found]
