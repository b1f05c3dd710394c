"""RocketMQ's own tools against paceline: each command prints what it prints of a RocketMQ."""

import re
from pathlib import Path
from uuid import uuid4

import pytest
from interop.mqadmin import Mqadmin
from interop.mqadmin_table import complaints
from tests.interop.scene import Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_its_tools_print_what_the_table_says(scene: Scene, tmp_path: Path) -> None:
    await scene.prepare("TRANSACTION")
    consumer = await scene.start("java_remoting", scene.job("push"))
    producer = await scene.start(
        "java_remoting", scene.job("send-transaction", group="live-producers", count=1)
    )
    await producer.until(lambda events: len(events) > 1, what="a message was sent")
    mqadmin = Mqadmin(nameserver=scene.peer.nameserver, home=tmp_path)
    route = await mqadmin("topicRoute", "-t", scene.topic)
    broker = re.search(r'0:"([0-9.:]+)"', route)
    assert broker is not None, route
    values = {
        "cluster": "paceline",
        "broker_name": "g1",
        "broker": broker[1],
        "nameserver": scene.peer.nameserver,
        "topic": f"t-{uuid4().hex[:12]}",
        "group": f"g-{uuid4().hex[:12]}",
        "live_topic": scene.topic,
        "live_group": scene.group,
        "live_producer": "live-producers",
    }

    found = await complaints(mqadmin, values)

    await mqadmin.stop()
    await consumer.stop()
    await producer.stop()
    wrong = [each for each in found if not each.startswith("updateOrderConf ")]  # is refused
    assert not wrong, "\n\n".join(wrong)
