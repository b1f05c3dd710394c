"""Time without a master and jitter of heartbeats, as the metrics tell them."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.controller.builders import a_group as a_driver
from tests.support.controller.harness import eventually
from tests.support.controller.sessions import a_cluster, master_of

from paceline.platform.telemetry import Metrics
from paceline.types import GroupName, MasterEpoch, ReplicaId
from paceline_controller.election.contacts import ReplicaKey
from paceline_controller.election.outages import JITTER_SHARE, Beats, Outages
from paceline_controller.probe import ControllerMetrics
from paceline_controller.state.model import Group

G1 = GroupName("g1")
KEY = ReplicaKey(G1, ReplicaId(1))


def a_group() -> Group:
    """With a master in epoch 1."""
    return a_driver().group


def served(is_it: bool) -> Callable[[Group], bool]:
    return lambda group: is_it


def samples_of(metrics: ControllerMetrics, name: str) -> dict[str, float]:
    """Reason -> count."""
    text = metrics.metrics.exposition()[0].decode()
    return {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_time_without_a_master_is_what_passes_between_two_looks_at_none() -> None:
    group = a_group()
    outages = Outages()

    for now_ms, is_it in ((0, True), (100, True), (150, False), (400, False), (450, True)):
        outages.look([group], served(is_it), now_ms)
    outages.look([group], served(True), 900)

    assert outages.total_ms == {G1: 300}
    assert outages.is_served == {G1: True}


def test_time_in_which_this_controller_did_not_lead_is_not_counted() -> None:
    outages = Outages()
    outages.look([a_group()], served(False), 0)
    outages.look([a_group()], served(False), 50)

    outages.stop()
    outages.look([a_group()], served(False), 9_000)
    outages.look([a_group()], served(True), 9_030)

    assert outages.total_ms == {G1: 80}


def test_group_that_never_had_a_master_is_not_without_one() -> None:
    group = a_group()
    group.master_epoch = MasterEpoch(0)
    outages = Outages()

    outages.look([group], served(False), 0)
    outages.look([group], served(False), 500)

    assert (outages.total_ms, outages.is_served) == ({}, {})


def test_jitter_is_the_smoothed_difference_between_intervals() -> None:
    beats = Beats()
    for now_ms in (0, 300, 600, 900):
        beats.heard(KEY, now_ms)
    assert beats.jitter_ms() == {("g1", "1"): 0}

    beats.heard(KEY, 1_360)

    assert beats.jitter_ms() == {("g1", "1"): pytest.approx(160 / JITTER_SHARE)}
    assert beats.age_ms(1_400) == {("g1", "1"): 40}


def test_replica_that_was_cleaned_is_told_of_no_more() -> None:
    beats = Beats()
    beats.heard(KEY, 0)

    beats.keep(lambda key: key.replica_id != 1)

    assert beats.jitter_ms() == {}


def test_set_changes_count_by_reason_and_elections_do_not() -> None:
    metrics = ControllerMetrics(Metrics(cluster="c", node_type="controller", node_id="c1"))
    for kind, members, more in (
        ("master_elected", [1, 2, 3], {"reason": "first"}),
        ("set_changed", [1, 2], {}),
        ("set_changed", [1, 2, 3], {}),
        ("member_removed", [1, 2], {"reason": "suspect"}),
        ("set_changed", [1], {"reason": "port refused"}),
    ):
        metrics.changed_set({"kind": kind, "group": "g1", "sync_state_set": members, **more})
    metrics.changed_set({"kind": "topic_created", "topic": "t"})

    assert samples_of(metrics, "paceline_controller_masters_elected_total") == {"first": 1}
    assert samples_of(metrics, "paceline_controller_set_changes_total") == {
        "shrank": 1,
        "grew": 1,
        "suspect": 1,
        "port refused": 1,
    }


async def test_elections_that_are_ordered_are_counted_on_every_controller() -> None:
    async with a_cluster(2) as (cluster, _):
        await cluster.ask("POST", "/v1/transfers", {"group": "g1", "to": 2})
        await cluster.ask("POST", "/v1/elections", {"group": "g1", "preferred": 3})

        for address in cluster.addresses:
            async with cluster.http.get(f"http://{address}/metrics") as answer:
                text = await answer.text()
            for reason in ("first", "transfer", "operator"):
                labels = f'{{group="g1",reason="{reason}"}}'
                assert f"paceline_controller_masters_elected_total{labels} 1.0" in text


async def test_death_of_a_master_is_in_the_metrics_of_the_leader() -> None:
    async with a_cluster() as (cluster, brokers):
        await brokers[0].kill()
        await eventually(lambda: master_of(brokers[1]) not in (None, 1), "another master")
        await brokers[1].beat()

        url = f"http://{cluster.addresses[0]}/metrics"
        async with cluster.http.get(url) as answer:
            text = await answer.text()

    assert 'paceline_controller_without_master_ms_total{group="g1"}' in text
    assert 'paceline_controller_has_master_count{group="g1"} 0.0' in text  # no epoch was opened
    assert 'paceline_controller_heartbeat_jitter_ms{group="g1",replica="2"}' in text
    assert 'paceline_controller_elections_total{outcome="elected",reason="dead"} 1.0' in text
    assert 'paceline_controller_masters_elected_total{group="g1",reason="dead"} 1.0' in text
    assert 'paceline_controller_sync_state_set_count{group="g1"} 2.0' in text
    assert 'paceline_controller_master_epoch_count{group="g1"} 2.0' in text
    assert "paceline_controller_commit_entries " in text
