"""Sessions, time, topics and snapshots of the controllers' state machine."""

import pytest
from tests.support.controller.builders import (
    G1,
    START_MS,
    Driver,
    a_group,
    reason,
    registration,
    users_topics,
)

from paceline.errors import BadRequestError, CorruptLogError
from paceline.types import TopicName
from paceline.wire.names import SYSTEM_TOPICS
from paceline_controller.state import Machine
from paceline_controller.state.commands import CreateTopic, DeleteTopic, Lead, Registration, Tick
from paceline_controller.state.machine import SESSION_MS, TIME_STEP_MS_MAX
from paceline_controller.state.model import RESULTS_MAX


def topic(name: str = "t", queues: int = 4) -> CreateTopic:
    return CreateTopic(topic=TopicName(name), queues={G1: queues})


def test_a_repeated_command_is_applied_once_and_answered_the_same() -> None:
    driver = a_group()
    first = driver.raw(topic().to_json(), sequence=100)

    again = driver.raw(topic().to_json(), sequence=100)

    assert again == first
    assert driver.events == []
    assert driver.machine.view().topics[TopicName("t")].topic_id == 1 + len(SYSTEM_TOPICS)


def test_a_refusal_is_remembered_like_a_result() -> None:
    driver = a_group()
    refused = driver.raw(DeleteTopic(topic=TopicName("t")).to_json(), sequence=100)
    driver.do(topic())

    again = driver.raw(DeleteTopic(topic=TopicName("t")).to_json(), sequence=100)

    assert again == refused
    assert reason(again) == "TOPIC_UNKNOWN"


def test_a_command_of_an_unknown_session_is_refused() -> None:
    driver = a_group()

    result = driver.raw(topic().to_json(), session="never-opened", sequence=1)

    assert reason(result) == "UNKNOWN_SESSION"
    assert not users_topics(driver.machine)


def test_an_expired_session_stays_refused_and_is_not_revived_by_a_late_opening() -> None:
    driver = a_group()
    driver.raw({"kind": "open_session"}, session="old", sequence=0)
    opened_at = driver.now
    for _ in range(SESSION_MS // TIME_STEP_MS_MAX + 2):
        driver.now += TIME_STEP_MS_MAX
        driver.do(Tick(alive=()))

    late, driver.now = driver.now, opened_at
    opening = driver.raw({"kind": "open_session"}, session="old", sequence=0)
    command = driver.raw(topic().to_json(), session="old", sequence=1)
    driver.now = late

    assert reason(opening) == "DEADLINE_PASSED"
    assert reason(command) == "UNKNOWN_SESSION"


def test_a_tick_keeps_the_sessions_it_names_alive() -> None:
    driver = a_group()
    driver.raw({"kind": "open_session"}, session="idle", sequence=0)
    for _ in range(2 * SESSION_MS // TIME_STEP_MS_MAX):
        driver.now += TIME_STEP_MS_MAX
        driver.do(Tick(alive=("idle", "unknown")))

    result = driver.raw(topic().to_json(), session="idle", sequence=1)

    assert result["ok"]


def test_a_command_after_its_deadline_is_refused_for_good() -> None:
    driver = a_group()
    driver.now += 5000
    driver.do(Tick(alive=()))
    driver.now -= 5000

    late = driver.raw(topic().to_json(), sequence=100, timeout_ms=3000)
    driver.now += 5000
    again = driver.raw(topic().to_json(), sequence=100, timeout_ms=3000)

    assert reason(late) == "DEADLINE_PASSED"
    assert again == late


def test_one_wrong_clock_moves_time_by_a_bounded_step() -> None:
    driver = a_group()
    driver.now += 10**9

    driver.do(Tick(alive=()))

    assert driver.machine.time_ms == START_MS + TIME_STEP_MS_MAX


def test_time_never_goes_back() -> None:
    driver = a_group()
    driver.now += 1000
    driver.do(Tick(alive=()))
    driver.now -= 900

    driver.do(Tick(alive=()))

    assert driver.machine.time_ms == START_MS + 1000


def test_a_forgotten_sequence_is_refused_not_applied_again() -> None:
    driver = a_group()
    for number in range(RESULTS_MAX + 1):
        driver.raw(topic(f"t{number}").to_json(), sequence=100 + number)

    result = driver.raw(topic("new").to_json(), sequence=50)

    assert reason(result) == "STALE_SEQUENCE"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"kind": "no_such_kind"},
        {"kind": 7},
        {"kind": "create_topic", "topic": "bad name", "queues": {"g1": 1}},
        {"kind": "create_topic", "topic": "t", "queues": {}},
        {"kind": "create_topic", "topic": "t", "queues": {"g1": 0}},
        {"kind": "create_topic", "topic": "t", "queues": {"g1": True}},
        {"kind": "create_topic", "topic": "t", "queues": {"g1": 1}, "more": 1},
        {"kind": "create_topic", "topic": "t", "queues": [1]},
        {"kind": "elect_master", "group": "g1"},
        {"kind": "tick", "alive": [1]},
    ],
)
def test_a_malformed_command_is_a_result(document: dict[str, object]) -> None:
    driver = a_group()
    before = driver.machine.digest()

    result = driver.raw(document, sequence=100)

    assert reason(result) == "BAD_COMMAND"
    assert driver.machine.digest() == before


def test_the_first_leader_gives_the_cluster_its_id_and_later_ones_keep_it() -> None:
    driver = Driver()
    driver.found()

    result = driver.do(
        Lead(controller_id="c2", term=2, cluster_id="other", cluster_name="paceline")  # type: ignore[arg-type]
    )

    assert result["cluster_id"] == "abc"
    assert driver.machine.term == 2


def test_a_leader_of_an_old_term_is_refused() -> None:
    driver = Driver()
    driver.found(term=3)

    assert reason(driver.found(term=2)) == "STALE_TERM"


def test_topic_ids_are_never_used_again() -> None:
    driver = a_group()
    driver.do(topic("a"))
    driver.do(DeleteTopic(topic=TopicName("a")))

    result = driver.do(topic("a"))

    assert result["topic"]["topic_id"] == 2 + len(SYSTEM_TOPICS)


def test_a_topic_needs_groups_that_exist_and_a_free_name() -> None:
    driver = a_group()
    driver.do(topic("a"))

    assert reason(driver.do(topic("a"))) == "TOPIC_EXISTS"
    unknown = CreateTopic(topic=TopicName("b"), queues={"g9": 1})  # type: ignore[dict-item]
    assert reason(driver.do(unknown)) == "GROUP_UNKNOWN"


def test_the_version_moves_with_what_the_view_shows_and_not_otherwise() -> None:
    driver = a_group()
    version = driver.machine.version

    driver.raise_floor(5000)
    assert driver.machine.version == version

    driver.do(topic())
    assert driver.machine.version == version + 1


def test_a_result_changed_by_its_receiver_does_not_change_the_state() -> None:
    driver = a_group()
    result = driver.raw(topic().to_json(), sequence=100)
    before = driver.machine.digest()

    result["topic"]["queues"]["g1"] = 99

    assert driver.machine.digest() == before


def test_a_restored_snapshot_equals_its_origin_and_goes_on_alike() -> None:
    driver = a_group()
    driver.do(topic())
    copy = Machine()

    copy.restore(driver.machine.snapshot())

    assert copy.digest() == driver.machine.digest()
    assert copy.view() == driver.machine.view()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"snapshot_version":2}'])
def test_bytes_that_are_no_snapshot_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptLogError):
        Machine().restore(content)


@pytest.mark.parametrize("field", ["is_unclean", "is_suspect", "is_learner", "is_empty"])
def test_a_registration_says_what_it_is(field: str) -> None:
    """What is left out must not mean a clean store that may lead (R13, R18, R23)."""
    document = registration(1).to_json()
    del document[field]

    with pytest.raises(BadRequestError) as caught:
        Registration.read(document)

    assert caught.value.details["field"] == field
