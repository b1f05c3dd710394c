"""What tests of group rules share with others."""

from tests.support.client.fake_cluster import FakeCluster

from paceline.message import ReceivedMessage
from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView

GROUP = ConsumerGroupName("audit")


def publish(cluster: FakeCluster, settings: ConsumerGroupSettings) -> None:
    cluster.publish(consumer_groups={GROUP: ConsumerGroupView(group=GROUP, settings=settings)})


class Seen:
    """What a member was given."""

    def __init__(self) -> None:
        self.bodies: set[int] = set()

    async def listen(self, message: ReceivedMessage) -> None:
        self.bodies.add(int(message.body))

    def has(self, count: int) -> bool:
        return self.bodies == set(range(count))
