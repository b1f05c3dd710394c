"""The replication port says who has not proven that he is a node: to the audit (audit_peers.py)."""

import asyncio
from pathlib import Path

import pytest
from tests.support.broker.brokers import CLUSTER, GROUP, Broker, a_group, eventually, tell
from tests.support.escape.scene import a_scene
from tests.support.replication.builders import a_view
from tests.support.replication.nodes import MasterNode, ReplicaNode, node_tls

from paceline.errors import PacelineError, UnauthenticatedError
from paceline.platform.runtime import SystemClock
from paceline.platform.secret import ClusterSecrets
from paceline.security.authority import Authority
from paceline.security.node_tls import Dial
from paceline.types import Incarnation, ReplicaId
from paceline.wire.messages import Nonce
from paceline_broker.escape.connection import EscapeConnection
from paceline_broker.integrity.repair_wire import RepairHello
from paceline_broker.replication.messages import Hello
from paceline_broker.service.escape.wire import EscapeHello

OTHER = ClusterSecrets(b"another secret of 32 bytes......")
HERE = "127.0.0.1"


class Told(list[tuple[str, str, str]]):
    """Door, source and why, of each."""

    def __call__(self, door: str, source: str, error: PacelineError) -> None:
        self.append((door, source, error.message))


async def say(port: int, hello: type[Hello], *, then: bytes) -> bytes:
    """What a stranger is answered who says hello, and then that in place of a proof."""
    reader, writer = await asyncio.open_connection(HERE, port)
    said = hello(
        cluster_id=CLUSTER,
        group=GROUP,
        replica_id=ReplicaId(2),
        incarnation=Incarnation(1),
        nonce=Nonce(b"n" * 16),
        is_sealed=True,
    )
    writer.write(said.encode())
    async with asyncio.timeout(5):
        challenge = await reader.readuntil(b"}")
        writer.write(then)
        answer = await reader.read()
    writer.close()
    assert b"proof" in challenge
    return answer


@pytest.mark.parametrize("hello", [Hello, RepairHello])
async def test_who_says_hello_and_proves_nothing_is_told_with_his_door(hello: type[Hello]) -> None:
    told = Told()
    async with Broker().running() as broker:
        broker.server.on_refused = told
        tell(a_group(broker, sync_state_set=frozenset({1}), minimum=1), 1, broker)
        await eventually(lambda: broker.server.term is not None)

        await say(broker.port, hello, then=b"\x20\x00\x00\x00" + b"x" * 64)

    [(door, source, why)] = told
    assert (door, source) == (hello.PURPOSE, HERE)
    assert "x" * 8 not in why, "what strangers say is not repeated"


async def test_who_escapes_without_the_secret_is_told_at_both_ends() -> None:
    told = Told()
    async with a_scene() as scene:
        scene.server.on_refused = told
        scene.secret = b"another secret"
        sender = scene.sender()
        sender.dial.on_refused = told
        group = scene.view().groups[scene.there.role.identity.group]

        with pytest.raises(UnauthenticatedError):
            await EscapeConnection.open(sender, group)

        assert [each[:2] for each in told] == [("escape", HERE)], "who dials looks first"
        assert EscapeHello.PURPOSE == "escape"


async def test_a_replica_tells_of_a_master_with_another_secret() -> None:
    told, dial = Told(), Dial()
    dial.on_refused = told
    master, replica = MasterNode(secrets=OTHER), ReplicaNode(2)
    await master.start()
    client = replica.follow(master.port, dial=dial)
    try:
        master.lead(a_view())

        await eventually(lambda: bool(told))
    finally:
        await client.stop()
        await master.server.stop()

    assert told[0] == ("replication", HERE, "the master does not hold this cluster's secret")


async def test_who_shows_a_certificate_of_another_authority_is_told(tmp_path: Path) -> None:
    told, uri = Told(), "URI:paceline:broker/g1"
    authorities = [Authority(tmp_path / name) for name in ("own", "other")]
    for authority in authorities:
        authority.init(common_name="test", now_unix_ms=SystemClock().unix_ms())
    own, other = (node_tls(each, "node", uri) for each in authorities)
    master, replica = MasterNode(), ReplicaNode(2)
    master.server.on_refused = told
    await master.start(tls=own)
    client = replica.follow(master.port, dial=Dial(other))
    try:
        master.lead(a_view())

        await eventually(lambda: bool(told))
    finally:
        await client.stop()
        await master.server.stop()

    assert told[0][:2] == ("replication", HERE)
    assert "TLS" in told[0][2] or "certificate" in told[0][2]
