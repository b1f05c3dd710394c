"""Messages with a priority: which queue each goes to, and what is refused."""

import pytest
from tests.support.client.fake_cluster import FakeCluster

from paceline.errors import BadRequestError, MessageTypeError
from paceline.message import Message
from paceline.producer.producer import Producer
from paceline.records.decode import BatchView


async def test_a_priority_chooses_the_queue_of_its_number_in_the_groups_in_turn() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("jobs", 3, message_type="PRIORITY")
        async with Producer(cluster.controller) as producer:
            sent = [
                await producer.send(Message("jobs", b"x", key="k", priority=priority))
                for priority in (0, 1, 2, 9, None) * 6
            ]
            unit = await producer.send_batch([Message("jobs", b"x", priority=2)] * 2)
            await producer.send_bodies("jobs", [b"x"])

    assert [result.queue_id for result in sent] == [0, 1, 2, 2, 0] * 6
    assert {result.group for result in sent} == {"g1", "g2"}
    assert {result.queue_id for result in unit} == {2}
    stored = [BatchView(each.data) for each in cluster.logs["g1"].queues[(1, 2)]]
    assert {"_SYS_MSG_PRIORITY_": "9"} in [row for view in stored for row in view.properties()]


async def test_a_priority_where_there_are_none_is_refused() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        async with Producer(cluster.controller) as producer:
            for wrong in (-1, 2**31, True, "1"):
                with pytest.raises(BadRequestError, match="a priority is 0 to"):
                    await producer.send(Message("orders", b"x", priority=wrong))  # type: ignore[arg-type]
            with pytest.raises(MessageTypeError, match="takes no priorities"):
                await producer.send(Message("orders", b"x", priority=1))
