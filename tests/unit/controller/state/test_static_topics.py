"""Static topics in the controllers' state: spread, moved, sealed; pure and total (INV-10)."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.controller.builders import (
    G1,
    Driver,
    a_group,
    election,
    of_master,
    reason,
    registration,
)
from tests.support.controller.harness import TalkingBroker
from tests.support.controller.sessions import a_cluster

from paceline.admin.client import AdminClient
from paceline.errors import CommandRefusedError, DeadlineError
from paceline.types import GroupName, Incarnation, ReplicaId, TopicName
from paceline.wire.session import QueueSealed
from paceline.wire.static_topics import Segment, places
from paceline.wire.topics import FIFO, MIXED, TopicView
from paceline_controller.state import Machine
from paceline_controller.state.commands import RemoveGroup, SetWritePermission
from paceline_controller.state.topic_commands import (
    AlterTopic,
    CreateStaticTopic,
    CreateTopic,
    DeleteTopic,
    GrowStaticTopic,
    RemapQueue,
)

T = TopicName("t")
G2 = GroupName("g2")


def two_groups() -> Driver:
    """g1 and g2, each with a master in epoch 1."""
    driver = a_group()
    for number in (1, 2, 3):
        driver.do(registration(number, group=G2, store_id=f"other{number}"))
    members = {ReplicaId(number): Incarnation(1) for number in (1, 2, 3)}
    first = election(driver.machine.groups[G2], 1, is_first=True, members=members)
    assert driver.do(first)["ok"]
    return driver


def with_topic(count: int = 4, **changes: Any) -> Driver:
    driver = two_groups()
    arguments = {"groups": (), **changes}
    made = driver.do(CreateStaticTopic(topic=T, logical_queues=count, **arguments))
    assert made["ok"], made
    return driver


def view_of(driver: Driver) -> TopicView:
    return driver.machine.view().topics[T]


def remap(driver: Driver, number: int, group: GroupName, **changes: Any) -> dict[str, Any]:
    topic = view_of(driver)
    generation = 0
    if number < len(topic.logical_queues):
        generation = topic.logical_queues[number].last.generation
    arguments = {"generation": generation, **changes}
    return driver.do(
        RemapQueue(topic=T, topic_id=topic.topic_id, logical_queue=number, group=group, **arguments)
    )


def seal(
    driver: Driver, number: int, end: int, *, group: GroupName = G1, **changes: Any
) -> dict[str, Any]:
    topic = view_of(driver)
    arguments = {
        **of_master(driver.machine.groups[group]),
        "topic_id": topic.topic_id,
        "logical_queue": number,
        "generation": topic.logical_queues[number].last.generation,
        "end": end,
        **changes,
    }
    return driver.do(QueueSealed(**arguments))


def test_logical_queues_are_spread_over_the_groups_in_turn() -> None:
    topic = view_of(with_topic(5, message_type=FIFO))

    assert [logical.last.group for logical in topic.logical_queues] == [G1, G2, G1, G2, G1]
    assert [logical.last.queue_id for logical in topic.logical_queues] == [0, 0, 1, 1, 2]
    assert all(logical.last.start == 0 for logical in topic.logical_queues)
    assert dict(topic.queues) == dict(topic.write_queues) == {G1: 3, G2: 2}
    assert topic.message_type == FIFO


def test_a_move_opens_the_next_segment_where_the_sealed_one_ends() -> None:
    driver = with_topic()

    assert remap(driver, 0, G2)["ok"]
    moving = view_of(driver).logical_queues[0]
    assert (moving.moving_to, moving.last.is_open, len(moving.segments)) == (G2, True, 1)
    assert seal(driver, 0, 70)["ok"]

    moved = view_of(driver).logical_queues[0]
    assert moved.moving_to is None
    assert [segment.to_json() for segment in moved.segments] == [
        {"generation": 0, "group": "g1", "queue": 0, "start": 0, "end": 70},
        {"generation": 1, "group": "g2", "queue": 2, "start": 70, "end": None},
    ]
    assert dict(view_of(driver).queues) == {G1: 2, G2: 3}


def test_a_queue_that_comes_back_gets_a_number_that_was_never_used() -> None:
    """What was sealed stays sealed."""
    driver = with_topic()
    remap(driver, 0, G2)
    seal(driver, 0, 70)

    assert remap(driver, 0, G1)["ok"]
    assert seal(driver, 0, 5, group=G2)["ok"]

    last = view_of(driver).logical_queues[0].last
    assert (last.group, last.queue_id, last.generation, last.start) == (G1, 2, 2, 75)


def test_the_same_remap_again_finds_it_moving_or_moved() -> None:
    driver = with_topic()
    remap(driver, 0, G2)
    version = driver.machine.version

    assert remap(driver, 0, G2)["ok"]
    assert driver.machine.version == version
    seal(driver, 0, 70)
    version = driver.machine.version
    assert remap(driver, 0, G2, generation=0)["ok"]
    assert remap(driver, 0, G2)["ok"]
    assert driver.machine.version == version


def test_a_remap_is_refused_while_another_is_under_way_or_when_it_is_late() -> None:
    driver = with_topic()
    remap(driver, 0, G2)

    assert reason(remap(driver, 0, G1)) == "MOVING"
    seal(driver, 0, 70)
    assert reason(remap(driver, 0, G1, generation=0)) == "STALE_GENERATION"
    assert reason(remap(driver, 0, G1, generation=9)) == "STALE_GENERATION"
    assert reason(remap(driver, 4, G1)) == "BAD_QUEUES"
    assert reason(remap(driver, 0, GroupName("g9"))) == "GROUP_UNKNOWN"
    driver.do(SetWritePermission(group=G1, is_writable=False))
    assert reason(remap(driver, 0, G1)) == "WRITE_WIPED"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"master_epoch": 2}, "STALE_MASTER_EPOCH"),
        ({"master": ReplicaId(2)}, "NOT_MASTER"),
        ({"master_incarnation": Incarnation(2)}, "NOT_MASTER"),
        ({"group": G2, "master": ReplicaId(1)}, "SEGMENT_UNKNOWN"),
        ({"generation": 1}, "SEGMENT_UNKNOWN"),
        ({"logical_queue": 2, "generation": 0}, "NOT_MOVING"),
        ({"logical_queue": 9}, "SEGMENT_UNKNOWN"),
        ({"topic_id": 99}, "TOPIC_UNKNOWN"),
    ],
)
def test_only_the_present_master_of_its_group_closes_a_segment(
    changes: dict[str, Any], why: str
) -> None:
    driver = with_topic()
    remap(driver, 0, G2)
    before = view_of(driver)

    assert reason(seal(driver, 0, 70, **changes)) == why
    assert view_of(driver) == before


def test_a_report_again_changes_nothing_and_holds_the_floor() -> None:
    """R16: no later master lacks the record that sealed the queue."""
    driver = with_topic()
    remap(driver, 0, G2)
    seal(driver, 0, 70, confirm=900)
    assert driver.group.confirm_floor == 900
    before = view_of(driver)

    assert seal(driver, 0, 70, generation=0)["ok"]
    assert seal(driver, 0, 71, generation=0)["ok"]
    assert view_of(driver) == before


def test_what_an_unclean_election_cut_off_is_not_waited_for() -> None:
    """R21."""
    driver = with_topic()
    remap(driver, 0, G2)
    seal(driver, 0, 70)

    assert seal(driver, 0, 60, generation=0)["ok"]

    first, second = view_of(driver).logical_queues[0].segments
    assert (first.end, second.start) == (60, 70)


def test_it_grows_and_its_queue_numbers_are_nobodys_to_set() -> None:
    driver = with_topic(3)
    topic_id = view_of(driver).topic_id

    def grow(count: int, **changes: Any) -> dict[str, Any]:
        arguments = {"topic": T, "topic_id": topic_id, "groups": (), **changes}
        return driver.do(GrowStaticTopic(logical_queues=count, **arguments))

    assert grow(5)["ok"]
    assert [one.last.group for one in view_of(driver).logical_queues] == [G1, G2, G1, G2, G1]
    version = driver.machine.version
    assert grow(5)["ok"]
    assert driver.machine.version == version
    assert reason(grow(4)) == "STATIC_TOPIC"
    assert reason(grow(6, topic_id=99)) == "TOPIC_CHANGED"

    def alter(**changes: Any) -> str:
        return reason(driver.do(AlterTopic(topic=T, topic_id=topic_id, **changes)))

    assert alter(read_queues={G1: 9}, write_queues={G1: 9}) == "STATIC_TOPIC"
    assert alter(message_type=MIXED) == "BAD_MESSAGE_TYPE"
    assert alter(message_type=FIFO, perm=4) == ""
    assert (view_of(driver).message_type, view_of(driver).perm) == (FIFO, 4)


def test_what_cannot_be_a_static_topic_is_refused() -> None:
    driver = two_groups()

    def create(**changes: Any) -> str:
        arguments = {"topic": T, "logical_queues": 2, "groups": (), **changes}
        return reason(driver.do(CreateStaticTopic(**arguments)))

    assert create(message_type=MIXED) == "BAD_MESSAGE_TYPE"
    assert create(groups=(GroupName("g9"),)) == "GROUP_UNKNOWN"
    assert create(topic=TopicName("%RETRY%x")) == "SYSTEM_TOPIC"
    assert create(groups=(G2,)) == ""
    assert create() == "TOPIC_EXISTS"
    driver.do(CreateTopic(topic=TopicName("plain"), queues={G1: 1}))
    plain = driver.machine.view().topics[TopicName("plain")]
    move = RemapQueue(
        topic=plain.topic, topic_id=plain.topic_id, logical_queue=0, group=G2, generation=0
    )
    assert reason(driver.do(move)) == "NOT_STATIC"
    assert reason(Driver().do(CreateStaticTopic(topic=T, logical_queues=1, groups=()))) == (
        "GROUP_UNKNOWN"
    )


def test_a_group_that_is_given_up_leaves_its_logical_queues_to_another() -> None:
    driver = with_topic(4)
    remap(driver, 1, G1)
    seal(driver, 1, 10, group=G2)
    remap(driver, 0, G2)

    assert driver.do(RemoveGroup(group=G2, is_forced=True))["ok"]

    zero, one, two, three = view_of(driver).logical_queues
    assert (zero.moving_to, zero.last.group, zero.last.queue_id) == (G1, G1, 0)
    assert [segment.group for segment in one.segments] == [G1]
    assert (one.last.start, two.last.generation) == (10, 0)
    assert (three.last.group, three.last.generation, three.last.start) == (G1, 1, 0)
    assert dict(view_of(driver).queues) == {G1: 4}


def test_the_answer_to_a_report_is_short_however_many_logical_queues_there_are() -> None:
    """Sessions keep their last answers, and a master reports thousands of queues in a row."""
    driver = with_topic(1000)
    remap(driver, 0, G2)

    assert len(orjson.dumps(seal(driver, 0, 5))) < 1000


def test_nothing_moves_to_a_group_that_is_given_up_before_it_has_a_queue() -> None:
    """Its segment would open where nobody is: no master could ever seal it again."""
    driver = with_topic(2, groups=(G1,))
    remap(driver, 0, G2)

    assert reason(driver.do(RemoveGroup(group=G2, is_forced=False))) == "GROUP_HAS_TOPICS"
    assert driver.do(RemoveGroup(group=G2, is_forced=True))["ok"]
    assert seal(driver, 0, 5)["ok"]

    moved = view_of(driver).logical_queues[0]
    assert [(one.group, one.queue_id, one.start) for one in moved.segments] == [
        (G1, 0, 0),
        (G1, 2, 5),
    ]
    assert dict(view_of(driver).queues) == dict(view_of(driver).write_queues) == {G1: 3}


def test_a_snapshot_of_before_has_no_static_topics() -> None:
    driver = with_topic(2)
    remap(driver, 0, G2)
    seal(driver, 0, 3)
    restored = Machine()
    restored.restore(driver.machine.snapshot())
    assert restored.digest() == driver.machine.digest()
    assert restored.view().topics == driver.machine.view().topics

    old = orjson.loads(driver.machine.snapshot())
    [segment, _] = old["topics"][-1]["logical_queues"][0]["segments"]
    assert segment == {"generation": 0, "group": "g1", "queue": 0, "start": 0, "end": 3}
    for topic in old["topics"]:
        del topic["logical_queues"]
    restored.restore(orjson.dumps(old))
    assert not restored.view().topics[T].is_static


groups = st.sampled_from([G1, G2])
numbers = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("remap"), numbers, groups, st.integers(-1, 1)),
    st.tuples(st.just("seal"), numbers, groups, st.integers(-1, 1), st.integers(0, 9)),
    st.tuples(st.just("grow"), st.integers(1, 6)),
    st.tuples(st.just("again")),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=30))
def test_segments_are_contiguous_and_no_queue_is_used_twice(history: list[Any]) -> None:
    """Whatever is asked in whatever order, also late or from the wrong group."""
    driver = with_topic(4)
    for step in history:
        before = view_of(driver)
        match step:
            case ("remap", number, group, late):
                generation = before.logical_queues[number].last.generation + late
                remap(driver, number, group, generation=max(0, generation))
            case ("seal", number, group, late, end):
                generation = before.logical_queues[number].last.generation + late
                seal(driver, number, end, group=group, generation=max(0, generation))
            case ("grow", count):
                driver.do(
                    GrowStaticTopic(
                        topic=T, topic_id=before.topic_id, logical_queues=count, groups=()
                    )
                )
            case _:
                restored = Machine()
                restored.restore(driver.machine.snapshot())
                assert restored.digest() == driver.machine.digest()
                driver.machine = restored
        check(before, view_of(driver))


def check(before: TopicView, after: TopicView) -> None:
    assert len(after.logical_queues) >= len(before.logical_queues)
    found = places(after.logical_queues)
    assert len(found) == sum(len(one.segments) for one in after.logical_queues)
    assert len(found) == sum(after.queues.values())
    assert all(queue < after.queues[group] for group, queue in found)
    for number, logical in enumerate(after.logical_queues):
        old = before.logical_queues[number : number + 1]
        was: tuple[Segment, ...] = old[0].segments if old else ()
        for earlier, later in zip(logical.segments, logical.segments[1:], strict=False):
            assert earlier.end is not None
            assert earlier.end <= later.start
            assert later.generation == earlier.generation + 1
        assert logical.last.is_open
        for one, other in zip(was, logical.segments, strict=False):
            assert (one.group, one.queue_id, one.start) == (
                other.group,
                other.queue_id,
                other.start,
            )


async def test_it_is_made_moved_and_grown_over_http() -> None:
    async with a_cluster() as (cluster, brokers):
        other = TalkingBroker(cluster, 1, group="g2")
        await other.join()
        body = {"topic": "t", "logical_queues": 3, "groups": ["g1"], "message_type": "FIFO"}

        status, made = await cluster.ask("POST", "/v1/topics", body)
        assert (status, made["queues"]) == (201, {"g1": 3})
        move = {"logical_queue": 1, "group": "g2", "generation": 0}
        status, moving = await cluster.ask("POST", "/v1/topics/t/remap", move)
        assert (status, moving["logical_queues"][1]["moving_to"]) == (200, "g2")
        group = cluster.leader.machine.groups[G1]
        report = QueueSealed(
            **of_master(group),
            topic_id=made["topic_id"],
            logical_queue=1,
            generation=0,
            end=12,
        )
        assert (await brokers[0].command(report))["ok"]
        _, moved = await cluster.ask("GET", "/v1/topics/t")
        assert [one["group"] for one in moved["logical_queues"][1]["segments"]] == ["g1", "g2"]
        move = {"logical_queue": 1, "group": "g1"}
        assert (await cluster.ask("POST", "/v1/topics/t/remap", move))[0] == 200
        status, grown = await cluster.ask("PUT", "/v1/topics/t", {"logical_queues": 4})
        assert (status, len(grown["logical_queues"])) == (200, 4)
        assert (await cluster.ask("DELETE", "/v1/topics/t"))[0] == 200
        await other.stop()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "/v1/topics", {"topic": "u", "logical_queues": 0}, 400, "logical_queues"),
        ("POST", "/v1/topics", {"topic": "u", "logical_queues": 2, "queues": 2}, 400, "queues"),
        ("POST", "/v1/topics", {"topic": "u", "groups": ["g1"]}, 400, "groups"),
        ("POST", "/v1/topics", {"topic": "u", "logical_queues": 1, "groups": "g1"}, 400, "groups"),
        ("POST", "/v1/topics", {"topic": "u", "logical_queues": 1, "groups": ["g9"]}, 404, None),
        (
            "POST",
            "/v1/topics",
            {"topic": "u", "logical_queues": 1, "message_type": "MIXED"},
            400,
            None,
        ),
        ("PUT", "/v1/topics/t", {"queues": 9}, 400, None),
        ("PUT", "/v1/topics/t", {"logical_queues": 1}, 400, None),
        ("PUT", "/v1/topics/t", {"logical_queues": 3, "perm": 6}, 400, "perm"),
        ("POST", "/v1/topics/none/remap", {"logical_queue": 0, "group": "g1"}, 404, None),
        ("POST", "/v1/topics/t/remap", {"logical_queue": 0, "group": "g9"}, 404, "group"),
        ("POST", "/v1/topics/t/remap", {"logical_queue": 7, "group": "g1"}, 400, None),
        ("POST", "/v1/topics/t/remap", {"group": "g1"}, 400, "logical_queue"),
        (
            "POST",
            "/v1/topics/t/remap",
            {"logical_queue": 0, "group": "g1", "generation": 5},
            409,
            None,
        ),
    ],
)
async def test_bad_input_is_refused_and_changes_nothing(
    method: str, path: str, body: dict[str, Any], status: int, field: str | None
) -> None:
    async with a_cluster() as (cluster, _):
        await cluster.ask("POST", "/v1/topics", {"topic": "t", "logical_queues": 2})
        version = cluster.leader.machine.version

        answer = await cluster.ask(method, path, body)

        assert answer[0] == status, answer
        assert field is None or answer[1]["field"] == field
        assert cluster.leader.machine.version == version


def test_a_deleted_topic_is_not_sealed_any_more() -> None:
    driver = with_topic()
    remap(driver, 0, G2)
    topic_id = view_of(driver).topic_id
    driver.do(DeleteTopic(topic=T))
    report = QueueSealed(
        **of_master(driver.group), topic_id=topic_id, logical_queue=0, generation=0, end=3
    )

    assert reason(driver.do(report)) == "TOPIC_UNKNOWN"


async def test_the_admin_client_makes_and_moves_and_knows_when_it_has_arrived() -> None:
    async with a_cluster() as (cluster, brokers):
        other = TalkingBroker(cluster, 1, group="g2")
        await other.join()
        async with AdminClient([str(address) for address in cluster.addresses]) as admin:
            made = await admin.topics.create("t", logical_queues=2, groups=["g1"])
            assert [one.last.group for one in made.logical_queues] == ["g1", "g1"]
            moving = await admin.topics.remap_queue("t", 1, "g2", generation=0)
            assert moving.logical_queues[1].moving_to == "g2"
            with pytest.raises(DeadlineError):
                await admin.topics.wait_remapped("t", 1, "g2", timeout_ms=50)
            with pytest.raises(CommandRefusedError) as refused:
                await admin.topics.remap_queue("t", 1, "g1")
            assert refused.value.details["reason"] == "MOVING"

            report = QueueSealed(
                **of_master(cluster.leader.machine.groups[G1]),
                topic_id=made.topic_id,
                logical_queue=1,
                generation=0,
                end=12,
            )
            assert (await brokers[0].command(report))["ok"]
            moved = await admin.topics.wait_remapped("t", 1, "g2", timeout_ms=5000)
            assert moved.logical_queues[1].last.start == 12
            grown = await admin.topics.alter("t", logical_queues=3)
            assert len(grown.logical_queues) == 3
        await other.stop()
