"""What tests of consuming share with others."""

from paceline.consumer.pull import PullConsumer


async def committed_of(bootstrap: list[str], topic: str, group: str) -> int:
    async with PullConsumer(bootstrap) as reader:
        committed = await reader.committed(group, await reader.queues(topic))
    return sum(offset or 0 for offset in committed.values())
