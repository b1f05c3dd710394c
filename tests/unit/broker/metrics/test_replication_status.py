"""What brokers tell of their replication: status and metrics of a master and of who follows it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.broker.brokers import Broker, a_group, eventually, tell

from paceline.platform.telemetry import Metrics
from paceline_broker.metrics.replication import register_replication
from paceline_broker.ports import RoleState

TWO = frozenset({1, 2})


def samples_of(broker: Broker) -> dict[tuple[str, str], float]:
    """(metric, label value or "") -> value, as Prometheus would read it."""
    metrics = Metrics(cluster="c", node_type="broker", node_id="g1/1")
    register_replication(metrics, broker.role)
    text = metrics.exposition()[0].decode()
    return {
        (sample.name, sample.labels.get("replica", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("paceline_replication")
    }


async def test_master_and_replica_tell_of_each_other_and_a_dead_one_stays_told() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running():
        async with replica.running():
            group = a_group(master, replica, sync_state_set=TWO, minimum=2)
            tell(group, 1, master, replica)
            await eventually(lambda: master.role.mastership is not None)
            await eventually(lambda: master.mastership.is_open)
            end = master.send()
            await eventually(lambda: master.mastership.confirm == end)

            following = replica.role.status()["following"]
            assert following["is_connected"]
            assert following["master"] == f"127.0.0.1:{master.port}"
            assert following["waits"] == []
            assert ("paceline_replication_lag_bytes", "2") not in samples_of(replica)
            replication = master.role.status()["replication"]
            assert replication["waits"] == []
            assert samples_of(master)["paceline_replication_lag_bytes", "2"] == 0
            assert samples_of(master)["paceline_replication_sync_state_set_count", ""] == 2

        await eventually(lambda: master.role.status()["replication"]["connections"] == 0)
        later = master.send()
        await eventually(lambda: master.role.status()["flushed"] == later)

        found = samples_of(master)
        assert found["paceline_replication_lag_bytes", "2"] == later - end
        assert found["paceline_replication_connected_count", "2"] == 0
        assert found["paceline_replication_in_set_count", "2"] == 1
        assert found["paceline_replication_confirm_lag_bytes", ""] == later - end
        sentences = master.role.status()["replication"]["waits"]
        assert any("replica 2, a member without a connection" in one for one in sentences)


async def test_replica_that_does_not_reach_its_master_says_so() -> None:
    replica = Broker(2)
    async with replica.running():
        tell(a_group(replica, master=1), 1, replica)
        await eventually(lambda: replica.role.state is RoleState.REPLICA)

        following = replica.role.status()["following"]

    assert not following["is_connected"]
    assert following["waits"] == ["a connection to its master at 127.0.0.1:2"]


@pytest.mark.parametrize("is_draining", [False, True])
async def test_master_that_hands_over_says_so(*, is_draining: bool) -> None:
    """R20."""
    master = Broker(1)
    async with master.running():
        tell(a_group(master, sync_state_set=frozenset({1}), minimum=1), 1, master)
        await eventually(lambda: master.role.mastership is not None and master.mastership.is_open)
        if is_draining:
            master.mastership.drain()

        replication = master.role.status()["replication"]

    assert replication["is_draining"] is is_draining
    assert bool(replication["waits"]) is is_draining
