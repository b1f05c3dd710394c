"""The peer itself: a real RocketMQ 5.5, its tools and its failover."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from interop.java import InteropError
from interop.mqadmin_table import complaints
from interop.rocketmq import CLUSTER, GROUP, USER, RocketMQ

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("rocketmq"),  # one peer for all of them
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="cluster")
async def _cluster() -> AsyncIterator[RocketMQ]:
    cluster = RocketMQ()
    await cluster.start()
    yield cluster
    await cluster.stop()


async def test_its_tools_list_its_master_and_the_replica(cluster: RocketMQ) -> None:
    output = await cluster.mqadmin("clusterList")

    listed = [line.split()[:2] for line in output.splitlines() if CLUSTER in line]
    assert listed == [[CLUSTER, "broker-a"]] * 2


async def test_what_its_tools_make_its_tools_find(cluster: RocketMQ) -> None:
    await cluster.create_topic("orders", queues=3, kind="FIFO")

    assert '"writeQueueNums":3' in await cluster.mqadmin("topicRoute", "-t", "orders")


async def test_its_tools_print_what_the_table_says(cluster: RocketMQ) -> None:
    scene = {
        "cluster": CLUSTER,
        "broker_name": GROUP,
        "broker": await cluster.wait_for_master(),
        "nameserver": cluster.nameserver,
        "controller": cluster.controllers[0],
        "topic": "of-the-table",
        "group": "of-the-table",
    }

    found = await complaints(cluster.mqadmin, scene)

    # It asks for the route of the group's retries, which there is once the group has consumed.
    assert [each for each in found if not each.startswith("cloneGroupOffset ")] == []


async def test_an_exception_of_its_tools_is_an_error(cluster: RocketMQ) -> None:
    with pytest.raises(InteropError, match="topicRoute -t none failed"):
        await cluster.mqadmin("topicRoute", "-t", "none")


async def test_the_other_replica_follows_a_master_that_was_killed(cluster: RocketMQ) -> None:
    killed = await cluster.kill_master()

    other = await cluster.wait_for_master(other_than=killed)
    await cluster.start_broker(cluster.brokers.index(killed))
    await cluster.wait_for_replicas()

    assert {killed, other} == set(cluster.brokers)


async def test_with_rights_its_tools_show_a_key() -> None:
    cluster = RocketMQ(replicas=1, has_rights=True)
    await cluster.start()
    try:
        assert USER in await cluster.mqadmin("listUser", "-c", CLUSTER)
    finally:
        await cluster.stop()
