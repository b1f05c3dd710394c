"""RocketMQ's own tools against paceline: each command prints what it prints of a RocketMQ."""

import re
from pathlib import Path
from uuid import uuid4

import pytest
from interop.mqadmin import Mqadmin
from interop.mqadmin_table import complaints
from tests.interop.peers import PacelinePeer
from tests.interop.scene import Scene
from tests.support.process.harness import running_cluster

from interop import judge
from paceline.admin.client import AdminClient
from paceline.net.connect import ConnectSettings

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
        "controller": scene.peer.controller,
        "user": f"u-{uuid4().hex[:12]}",
        "password": uuid4().hex,
        "cluster": scene.peer.cluster_name,
        "broker_name": scene.peer.broker_name,
        "broker": broker[1],
        "nameserver": scene.peer.nameserver,
        "topic": f"t-{uuid4().hex[:12]}",
        "group": f"g-{uuid4().hex[:12]}",
        "live_topic": scene.topic,
        "live_group": scene.group,
        "live_producer": "live-producers",
    }

    found = await complaints(mqadmin, values)
    # At the end: whoever is the master at the start may have died meanwhile on a busy machine.
    members = await mqadmin(
        "getSyncStateSet", "-a", scene.peer.controller, "-b", scene.peer.broker_name
    )
    master = re.search(r"#MasterBrokerId\s+(\d+)", members)
    assert master is not None, members
    others = set(re.findall(r"InSyncReplica:.*brokerId=(\d+)", members)) - {master[1]}
    elected = await mqadmin(
        *("electMaster", "-a", scene.peer.controller, "-c", scene.peer.cluster_name),
        *("-bn", scene.peer.broker_name, "-b", min(others)),
    )

    await mqadmin.stop()
    await consumer.stop()
    await producer.stop()
    wrong = [each for each in found if not each.startswith("updateOrderConf ")]  # is refused
    assert not wrong, "\n\n".join(wrong)
    assert re.search(r"#MasterEpoch\s+\d+", elected), elected


async def test_a_user_that_it_makes_signs_with_its_password(tmp_path: Path) -> None:
    """Of a cluster of its own, which has rights."""
    sizes = ("--controllers", "1", "--brokers", "1")
    with running_cluster(tmp_path / "data", *sizes, "--doors", "grpc,remoting") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.users.create("root", is_super=True)
            root = await admin.users.add_key("root", signs=True)
            await admin.security.set("on")
        peer = PacelinePeer(cluster, ConnectSettings(cluster.bootstrap, root))
        home = tmp_path / "home"
        (home / "conf").mkdir(parents=True)
        (home / "conf/tools.yml").write_text(
            f"accessKey: {root.access_key}\nsecretKey: {root.secret_key}\n"
        )
        mqadmin = Mqadmin(nameserver=peer.nameserver, home=home)
        scene = Scene(peer, tmp_path)
        await scene.prepare()
        user, password = "shop", uuid4().hex

        await mqadmin("createUser", "-c", "paceline", "-u", user, "-p", password)
        acl = ("-r", f"Topic:{scene.topic}", "-a", "Pub", "-d", "Allow")
        await mqadmin("createAcl", "-c", "paceline", "-s", f"User:{user}", *acl)

        shown = {"access_key": user, "secret_key": password}
        sent = await scene.send("java_remoting4", scene.job("send", count=3, **shown))
        assert judge.failures(sent) == []
        assert len(judge.of_kind(sent, "sent")) == 3
        wrong = {**shown, "secret_key": password[::-1]}
        assert await scene.refused("java_remoting4", scene.job("send", count=1, **wrong))
        await mqadmin.stop()
        await scene.close()
