"""Topics and consumer groups in the controllers' state: numbers of queues, system topics, names."""

from typing import Any

import orjson
import pytest
from tests.support.controller.builders import G1, Driver, a_group, reason, users_topics

from paceline.errors import BadRequestError
from paceline.types import ConsumerGroupName, GroupName, TopicId, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.consumer_groups import ConsumerGroupSettings, SettingsChanges
from paceline.wire.topic_commands import EnsureConsumerGroup, EnsureTopic
from paceline.wire.topics import DELAY, MIXED, PERM_READ, TopicView
from paceline_controller.state import Machine
from paceline_controller.state.topic_commands import (
    AlterConsumerGroup,
    AlterTopic,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteTopic,
    PutConsumerGroup,
)

T = TopicName("t")
BILLING = ConsumerGroupName("billing")


def with_topic(queues: int = 4) -> Driver:
    driver = a_group()
    driver.do(CreateTopic(topic=T, queues={G1: queues}))
    return driver


def view_of(driver: Driver, name: str = "t") -> TopicView:
    return driver.machine.view().topics[TopicName(name)]


def alter(driver: Driver, **changes: Any) -> dict[str, Any]:
    return driver.do(AlterTopic(topic=T, topic_id=view_of(driver).topic_id, **changes))


def test_the_systems_topics_come_with_the_first_master_and_are_in_every_group() -> None:
    driver = a_group()

    for name, queues in (
        ("TRANS_CHECK_MAX_TIME_TOPIC", 1),
        ("%DLQ%paceline.delay", 1),
        ("paceline_REPLY_TOPIC", 4),
    ):
        topic = view_of(driver, name)
        assert (topic.is_system, dict(topic.queues)) == (True, {G1: queues})
    assert users_topics(driver.machine) == []


def test_an_older_election_makes_no_topics_so_that_replayed_ids_stay_the_same() -> None:
    """R35: brokers' logs know topics by their ids."""
    driver = a_group(spreads_system_topics=False)
    driver.do(CreateTopic(topic=T, queues={G1: 1}))

    assert view_of(driver).topic_id == 1
    assert list(driver.machine.topics) == [T]


def test_the_view_says_which_ids_were_given_also_of_a_deleted_topic() -> None:
    """R35: by that a broker that starts later knows the newest one as deleted."""
    driver = with_topic()
    topic_id = view_of(driver).topic_id
    assert driver.machine.view().topic_id_max == topic_id

    driver.do(DeleteTopic(topic=T))

    assert driver.machine.view().topic_id_max == topic_id
    assert ClusterView.from_json(driver.machine.view().to_json()).topic_id_max == topic_id
    old = {**driver.machine.view().to_json()}
    del old["topic_id_max"]
    assert ClusterView.from_json(old).topic_id_max == 0


@pytest.mark.parametrize(
    "name", ["%DLQ%g", "%RETRY%g", "TRANS_CHECK_MAX_TIME_TOPIC", "paceline_REPLY_TOPIC"]
)
def test_users_neither_make_nor_change_nor_delete_a_system_topic(name: str) -> None:
    driver = a_group()
    topic = TopicName(name)

    for command in (
        CreateTopic(topic=topic, queues={G1: 1}),
        EnsureTopic(topic=topic, queues=1),
        AlterTopic(topic=topic, topic_id=TopicId(1), perm=4),
        DeleteTopic(topic=topic),
    ):
        assert reason(driver.do(command)) == "SYSTEM_TOPIC"


def test_a_topic_is_made_once_however_often_brokers_ask_for_it() -> None:
    driver = a_group()
    first = driver.do(EnsureTopic(topic=T, queues=8))
    version = driver.machine.version

    again = driver.do(EnsureTopic(topic=T, queues=2))

    assert again["topic"] == first["topic"]
    assert (first["topic"]["queues"], first["topic"]["message_type"]) == ({"g1": 8}, MIXED)
    assert driver.machine.version == version, "nothing to publish"


def test_what_was_decided_on_an_earlier_form_of_a_topic_changes_nothing() -> None:
    driver = with_topic()
    before = driver.machine.topics[T].alterations
    alter(driver, perm=PERM_READ)
    alter(driver, perm=PERM_READ)  # which changes nothing

    assert reason(alter(driver, read_queues={G1: 1}, alterations=before)) == "TOPIC_CHANGED"
    assert alter(driver, attributes={"owner": "x"}, alterations=before + 1)["ok"]
    copy = Machine()
    copy.restore(driver.machine.snapshot())
    assert copy.topics[T].alterations == before + 2


def test_parts_that_are_not_named_stay_as_they_are() -> None:
    driver = with_topic()
    alter(driver, attributes={"owner": "billing", "note": "x"}, message_type=DELAY)

    result = alter(driver, perm=PERM_READ, attributes={"note": None})

    topic = view_of(driver)
    assert result["topic"] == topic.to_json()
    assert (topic.perm, topic.message_type, dict(topic.attributes)) == (
        PERM_READ,
        DELAY,
        {"owner": "billing"},
    )
    assert dict(topic.read_queues) == dict(topic.write_queues) == {"g1": 4}


def test_shrinking_goes_by_way_of_the_written_queues() -> None:
    driver = with_topic(4)

    too_early = alter(driver, read_queues={G1: 2})
    first = alter(driver, write_queues={G1: 2})
    then = alter(driver, read_queues={G1: 2})

    assert reason(too_early) == "READ_BELOW_WRITE"
    assert first["topic"]["queues"] == {"g1": 4}, "consumers still read them all"
    assert then["topic"]["queues"] == then["topic"]["write_queues"] == {"g1": 2}


def test_what_is_read_and_written_shrinks_together_only_by_force() -> None:
    driver = with_topic(4)

    refused = alter(driver, read_queues={G1: 2}, write_queues={G1: 2})
    forced = alter(driver, read_queues={G1: 2}, write_queues={G1: 2}, is_forced=True)

    assert reason(refused) == "STILL_WRITTEN"
    assert forced["topic"]["queues"] == {"g1": 2}


def test_a_change_decided_on_a_topic_that_was_made_again_is_refused() -> None:
    driver = with_topic()
    old = view_of(driver).topic_id
    driver.do(DeleteTopic(topic=T))
    driver.do(CreateTopic(topic=T, queues={G1: 4}))

    late = driver.do(AlterTopic(topic=T, topic_id=old, perm=PERM_READ))

    assert reason(late) == "TOPIC_CHANGED"


def test_a_consumer_group_comes_and_goes_with_its_topics() -> None:
    driver = a_group()

    made = driver.do(EnsureConsumerGroup(group=BILLING))
    topics = [view_of(driver, name) for name in ("%RETRY%billing", "%DLQ%billing")]
    driver.do(DeleteConsumerGroup(group=BILLING))

    assert made["group"]["settings"] == ConsumerGroupSettings().to_json()
    assert [(topic.is_system, dict(topic.queues)) for topic in topics] == [(True, {"g1": 1})] * 2
    assert not driver.machine.consumer_groups
    assert "%RETRY%billing" not in driver.machine.topics


def test_settings_of_a_group_are_changed_and_a_group_is_not_made_twice() -> None:
    driver = a_group()
    usual = ConsumerGroupSettings()
    changed = ConsumerGroupSettings(retry_max_times=3, retry_queue_nums=2)
    driver.do(PutConsumerGroup(group=BILLING, settings=usual, is_new=True))

    twice = driver.do(PutConsumerGroup(group=BILLING, settings=changed, is_new=True))
    driver.do(PutConsumerGroup(group=BILLING, settings=changed, is_new=False))

    assert reason(twice) == "GROUP_EXISTS"
    assert driver.machine.view().consumer_groups[BILLING].settings == changed
    assert dict(view_of(driver, "%RETRY%billing").queues) == {"g1": 2}
    unknown = PutConsumerGroup(group=ConsumerGroupName("other"), settings=usual, is_new=False)
    assert reason(driver.do(unknown)) == "CONSUMER_GROUP_UNKNOWN"


def test_changes_of_different_settings_at_one_time_undo_nothing() -> None:
    driver = a_group()
    usual = ConsumerGroupSettings(attributes={"team": "a", "old": "x"})
    driver.do(PutConsumerGroup(group=BILLING, settings=usual, is_new=True))

    for changes in (
        {"retry_max_times": 3},
        {"consume_enable": False},
        {"attributes": {"old": None, "new": "y"}},
    ):
        given = SettingsChanges.read(changes, name="changes")
        assert driver.do(AlterConsumerGroup(group=BILLING, changes=given))["ok"]

    settings = driver.machine.view().consumer_groups[BILLING].settings
    assert (settings.retry_max_times, settings.consume_enable) == (3, False)
    assert settings.attributes == {"team": "a", "new": "y"}
    other = AlterConsumerGroup(group=ConsumerGroupName("other"), changes=SettingsChanges())
    assert reason(driver.do(other)) == "CONSUMER_GROUP_UNKNOWN"
    with pytest.raises(BadRequestError):
        AlterConsumerGroup.read({"group": BILLING, "changes": {"retry_max_times": -1}})


def test_fewer_retry_queues_are_written_while_the_others_are_still_read() -> None:
    driver = a_group()
    many, few = (ConsumerGroupSettings(retry_queue_nums=count) for count in (4, 1))
    driver.do(PutConsumerGroup(group=BILLING, settings=many, is_new=True))

    driver.do(PutConsumerGroup(group=BILLING, settings=few, is_new=False))

    topic = view_of(driver, "%RETRY%billing")
    assert (dict(topic.read_queues), dict(topic.write_queues)) == ({"g1": 4}, {"g1": 1})


def test_the_snapshot_holds_it_all() -> None:
    driver = with_topic()
    alter(driver, write_queues={G1: 2}, attributes={"a": "b"})
    driver.do(EnsureConsumerGroup(group=BILLING))
    copy = Machine()

    copy.restore(driver.machine.snapshot())

    assert copy.digest() == driver.machine.digest()
    assert copy.view() == driver.machine.view()


def test_a_snapshot_of_the_version_before_is_understood() -> None:
    document = orjson.loads(with_topic(3).machine.snapshot())
    document["snapshot_version"] = 1
    del document["consumer_groups"]
    document["topics"] = [{"topic": "t", "topic_id": 7, "queues": {"g1": 3}}]
    machine = Machine()

    machine.restore(orjson.dumps(document))

    topic = machine.view().topics[T]
    assert topic.topic_id == 7
    assert dict(topic.read_queues) == dict(topic.write_queues) == {GroupName("g1"): 3}
    assert (topic.perm, topic.message_type, topic.is_system) == (6, "NORMAL", False)


def test_use_alone_makes_so_many_groups_and_leaves_the_rest_to_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline_controller.state.consumer_groups.MADE_BY_USE_MAX", 2)
    driver = a_group()
    for name in ("a", "b"):
        driver.do(EnsureConsumerGroup(group=ConsumerGroupName(name)))

    refused = driver.do(EnsureConsumerGroup(group=BILLING))

    assert reason(refused) == "TOO_MANY_GROUPS"
    assert driver.do(EnsureConsumerGroup(group=ConsumerGroupName("a")))["ok"], "it is there"
    made = driver.do(PutConsumerGroup(group=BILLING, settings=ConsumerGroupSettings(), is_new=True))
    assert made["ok"]


def test_use_alone_makes_so_many_topics_and_leaves_the_rest_to_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline_controller.state.topics.MADE_BY_USE_MAX", 1)
    driver = a_group()
    driver.do(EnsureTopic(topic=T, queues=1))

    refused = driver.do(EnsureTopic(topic=TopicName("other"), queues=1))

    assert reason(refused) == "TOO_MANY_TOPICS"
    assert driver.do(EnsureTopic(topic=T, queues=1))["ok"], "it is there"
    assert driver.do(CreateTopic(topic=TopicName("other"), queues={G1: 1}))["ok"]
