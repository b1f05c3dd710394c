"""What tests of consuming share with others."""

from paceline.consumer.pull import PullConsumer
from paceline.net.connect import Bootstrap


async def committed_of(bootstrap: list[str], topic: str, group: str) -> int:
    async with PullConsumer(bootstrap) as reader:
        committed = await reader.committed(group, await reader.queues(topic))
    return sum(offset or 0 for offset in committed.values())


async def bodies_of(connect: Bootstrap, topic: str, count: int) -> list[bytes]:
    """Of a topic's messages from the first on, `count` or some more."""
    bodies: list[bytes] = []
    async with PullConsumer(connect) as reader:
        await reader.subscribe(topic, start="first")
        while len(bodies) < count:
            bodies += [bytes(message.body) for message in await reader.poll()]
    return bodies
