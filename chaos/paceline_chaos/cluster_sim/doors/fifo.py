"""Topics of their own in which clients of the gRPC protocol send and receive in order."""

from contextlib import suppress

from paceline.admin.client import AdminClient
from paceline.errors import GroupExistsError, TopicExistsError
from paceline.platform.runtime import pause
from paceline.wire.topics import MIXED
from paceline_chaos.cluster_sim.jobs.around import Around

FIFO_TOPICS = ("fifo-1", "fifo-2")
FIFO_GROUP = "grpc-fifo"
_HEARD_MS = 1_000.0
"""Brokers have heard by then that the group consumes in order."""


async def make_fifo(around: Around) -> None:
    """The topics, one queue each, and a consumer group that is given each queue in order."""

    async def make(admin: AdminClient) -> None:
        for topic in FIFO_TOPICS:
            with suppress(TopicExistsError):  # made in an earlier life, or by another client
                await admin.topics.create(topic, queues=1, message_type=MIXED)
        with suppress(GroupExistsError):
            await admin.consumer_groups.create(FIFO_GROUP, consume_message_orderly=True)

    await around.try_again(lambda: around.as_admin(make))
    await pause(_HEARD_MS)
