"""What nodes were, out of samples and of decisions that every controller reports."""

from typing import Any

from tests.unit.chaos.report.histories import Maker

from paceline_chaos.history.model import Probe, Queue
from paceline_chaos.report.lanes import story_of
from paceline_chaos.report.plot_faults import packed
from paceline_chaos.report.rates import Span
from paceline_chaos.report.scale import TimeScale

SPAN = Span(start_us=0, end_us=10_000_000)


def probe(maker: Maker, at_ms: int, **changes: Any) -> None:
    members: dict[str, Any] = {
        "node": "g1-b1",
        "group": "g1",
        "replica": 1,
        "incarnation": 1,
        "role": "replica",
        "epoch": 1,
        "is_open": False,
        "start": 0,
        "end": 10,
        "flushed": 10,
        "confirm": 10,
    }
    maker.add(Probe, at_us=at_ms * 1000, **{**members, **changes})


def test_equal_samples_are_one_band_until_something_changes() -> None:
    maker = Maker()
    for at_ms in (0, 200, 400):
        probe(maker, at_ms)
    for at_ms in (600, 800):
        probe(maker, at_ms, role="master", epoch=2, is_open=True)

    (lane,) = story_of(maker.history(), SPAN).lanes

    assert [(band.start, band.end, band.role, band.epoch) for band in lane.bands] == [
        (0, 600, "replica", 1),
        (600, 1000, "master", 2),
    ]


def test_node_that_falls_silent_has_no_band() -> None:
    maker = Maker()
    for at_ms in (0, 200, 5000, 5200):
        probe(maker, at_ms)

    (lane,) = story_of(maker.history(), SPAN).lanes

    assert [(band.start, band.end) for band in lane.bands] == [(0, 400), (5000, 5400)]


def test_new_start_of_a_node_begins_a_band() -> None:
    maker = Maker()
    probe(maker, 0)
    probe(maker, 200, incarnation=2)

    (lane,) = story_of(maker.history(), SPAN).lanes

    assert [band.incarnation for band in lane.bands] == [1, 2]


def test_confirm_that_a_starting_node_does_not_know_is_not_drawn() -> None:
    maker = Maker()
    probe(maker, 0, confirm=8)
    probe(maker, 200, confirm=0, incarnation=2)
    probe(maker, 400, confirm=10, incarnation=2)

    (lane,) = story_of(maker.history(), SPAN).lanes

    assert lane.confirm == [(0, 8), (400, 10)]


def test_decision_counts_once_and_from_the_first_controller_that_applied_it() -> None:
    maker = Maker()
    maker.decide(100, "set_changed", 7, group="g1", set_epoch=2, sync_state_set=[1, 2, 3])
    maker.decide(900, "member_removed", 8, group="g1", set_epoch=3, sync_state_set=[2, 3])

    bands = story_of(maker.history(), SPAN).sets["g1"]

    assert [(band.start, band.end, band.label) for band in bands] == [
        (100, 900, "1 2 3"),
        (900, 10_000, "2 3"),
    ]


def test_member_of_the_set_is_marked_in_its_lane() -> None:
    maker = Maker()
    probe(maker, 0)
    maker.decide(100, "set_changed", 7, group="g1", sync_state_set=[1, 2])
    maker.decide(300, "set_changed", 8, group="g1", sync_state_set=[1])
    maker.decide(500, "set_changed", 9, group="g1", sync_state_set=[2])

    lanes = story_of(maker.history(), SPAN).lanes

    assert [lane.member for lane in lanes if lane.node == "g1-b1"] == [[(100, 500)]]


def test_election_tells_how_long_it_was_until_somebody_was_served() -> None:
    maker = Maker()
    probe(maker, 0)
    maker.decide(
        1000, "master_elected", 7, group="g1", master=1, master_epoch=4, sync_state_set=[1, 2]
    )
    probe(maker, 1200, role="master", epoch=4, is_open=True)
    maker.send("client-1", 1350, epoch=4, queue=Queue("orders", "g1", 0))
    maker.send("client-1", 1300, epoch=4, queue=Queue("orders", "g2", 0))

    (election,) = story_of(maker.history(), SPAN).elections

    assert (election.master, election.epoch, election.at) == ("g1-b1", 4, 1000)
    assert (election.open_after_ms, election.ack_after_ms) == (200, 350)


def test_faults_are_matched_with_their_ends() -> None:
    maker = Maker()
    maker.fault("kill", "g1-b1", 100, 300)
    maker.fault("kill", "g1-b1", 500, 900)
    maker.fault("pause", "c1", 200, None)
    maker.fault("clock_step", "c2", 250, None)

    spans = story_of(maker.history(), SPAN).faults

    assert [(one.kind, one.start, one.end, one.has_end) for one in spans] == [
        ("kill", 100, 300, True),
        ("pause", 200, 10_000, False),
        ("clock_step", 250, 250, False),
        ("kill", 500, 900, True),
    ]


def test_faults_at_the_same_time_get_rows_of_their_own() -> None:
    maker = Maker()
    for number in range(4):
        maker.fault("kill", f"g1-b{number}", 100, 5000)
    maker.fault("kill", "g1-b9", 8000, 8100)
    faults = story_of(maker.history(), SPAN).faults

    placed = packed(faults, TimeScale(10_000))

    assert [one.row for one in placed] == [0, 1, 2, 3, 0]


def test_more_faults_than_rows_lose_their_labels_and_not_their_bars() -> None:
    maker = Maker()
    for number in range(40):
        maker.fault("kill", f"g1-b{number}", 100, 5000)
    faults = story_of(maker.history(), SPAN).faults

    placed = packed(faults, TimeScale(10_000))

    assert len(placed) == 40
    assert sum(1 for one in placed if one.has_label) == 8
