"""Stores that have more topics than one command holds show them in parts (R18, R35)."""

import pytest
from tests.support.controller.builders import G1, reason
from tests.support.controller.recovery_bed import Recovery

from paceline.types import Incarnation, TopicName
from paceline.wire.session_commands import PresentedTopic, PresentTopics
from paceline_controller.state import Machine
from paceline_controller.state.operator_commands import ForgetStore
from paceline_controller.state.presenting import TOPICS_MAX

ALL = tuple(PresentedTopic(topic=f"t{at}", topic_id=at + 1, queues=4) for at in range(6))


def part(topics: tuple[PresentedTopic, ...], *, first: int, incarnation: int = 5) -> PresentTopics:
    return PresentTopics(
        group=G1,
        store_id="store1",
        incarnation=Incarnation(incarnation),
        first=first,
        topics=topics,
    )


def in_parts(*parts: tuple[int, int]) -> Recovery:
    """One of three stores has shown two topics of six, and then those."""
    driver = Recovery()
    driver.present_all()
    shown = driver.present(1, incarnation=5, topics=ALL[:2], topics_to_come=4, topic_id_max=6)
    assert shown["topics_shown"] == 2
    for first, stop in parts:
        result = driver.do(part(ALL[first:stop], first=first))
        assert reason(result) == "RECOVERY_NEEDED"
        assert result["topics_shown"] == stop
    return driver


def more(driver: Recovery, topics: tuple[PresentedTopic, ...], *, first: int) -> str:
    return reason(driver.do(part(topics, first=first)))


def test_a_group_is_recovered_with_the_topics_of_all_parts() -> None:
    driver = in_parts((2, 5), (5, 6))

    assert driver.recover()["ok"]

    topics = driver.machine.view().topics
    assert {str(name): topics[name].topic_id for name in topics if name.startswith("t")} == {
        topic.topic: topic.topic_id for topic in ALL
    }


def test_a_group_is_not_recovered_before_all_topics_are_shown() -> None:
    """R35: a topic that the controllers do not hear of would be deleted from the log."""
    driver = in_parts((2, 5))

    result = driver.recover()

    assert reason(result) == "TOPICS_MISSING"
    assert "has shown 5 of 6 topics" in result["detail"]
    assert not driver.machine.groups
    assert reason(driver.recover(gives_up_missing=True)) == "TOPICS_MISSING"


def test_what_was_shown_stays_when_its_beginning_is_shown_again() -> None:
    driver = in_parts((2, 5))

    again = driver.present(1, incarnation=5, topics=ALL[:2], topics_to_come=4, topic_id_max=6)

    assert (reason(again), again["topics_shown"]) == ("RECOVERY_NEEDED", 5)
    assert driver.machine.presented["store1"].topics == ALL[:5]


def test_a_part_may_come_twice() -> None:
    driver = in_parts((2, 5))

    assert more(driver, ALL[2:5], first=2) == "RECOVERY_NEEDED"
    assert more(driver, ALL[3:6], first=3) == "RECOVERY_NEEDED"
    assert driver.machine.presented["store1"].topics == ALL


@pytest.mark.parametrize(
    ("first", "topics", "why"),
    [
        (3, ALL[3:], "TOPICS_MISSING"),
        (2, (*ALL[2:], ALL[0]), "TOPICS_MISSING"),
        (1, ALL[2:], "STORE_TWICE"),
        (2, (ALL[0],), "TOPICS_CONTRADICT"),
        (2, (PresentedTopic(topic="other", topic_id=1, queues=4),), "TOPICS_CONTRADICT"),
    ],
    ids=["a gap", "too many", "other content", "a name twice", "an id twice"],
)
def test_parts_that_do_not_fit_change_nothing(
    first: int, topics: tuple[PresentedTopic, ...], why: str
) -> None:
    driver = in_parts()

    assert more(driver, topics, first=first) == why
    assert driver.machine.presented["store1"].topics == ALL[:2]


def test_parts_of_another_start_or_of_no_store_change_nothing() -> None:
    driver = in_parts()
    before = driver.machine.presented["store1"]

    of_before = part(ALL[2:4], first=2, incarnation=4)
    assert reason(driver.do(of_before)) == "STORE_UNKNOWN"
    driver.do(ForgetStore(store_id="store1"))

    assert more(driver, ALL[2:], first=2) == "STORE_UNKNOWN"
    assert before.topics == ALL[:2]


def test_there_is_a_bound_to_the_topics_of_all_that_wait() -> None:
    driver = Recovery()
    most = TOPICS_MAX // 5

    answers = [
        reason(driver.present(number, topics=(), topics_to_come=most)) for number in range(1, 8)
    ]

    assert set(answers[:5]) == {"RECOVERY_NEEDED"}
    assert set(answers[5:]) == {"TOO_MANY_TOPICS"}


def test_a_digest_of_parts_has_every_topic_that_waits() -> None:
    driver, other = in_parts((2, 6)), in_parts((2, 5))
    assert more(other, (PresentedTopic(topic="last", topic_id=6, queues=4),), first=5)
    restored = Machine()
    restored.restore(driver.machine.snapshot())

    assert restored.digest() == driver.machine.digest()
    assert restored.digest_of_part(7) == driver.machine.digest_of_part(7)
    assert other.machine.digest_of_part(7) != driver.machine.digest_of_part(7)
    assert TopicName("t0") not in driver.machine.view().topics
