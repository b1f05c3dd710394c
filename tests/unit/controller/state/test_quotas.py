"""Quotas in the controllers' state: creations by user, and topics and groups by namespace."""

from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.controller.builders import Driver, a_group, reason

from paceline.errors import BadRequestError
from paceline.types import ConsumerGroupName, GroupName, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline.wire.topic_commands import EnsureConsumerGroup, EnsureTopic
from paceline.wire.users import HOUR_MS, Quota, check_quota
from paceline_controller.state import Machine
from paceline_controller.state.commands import Tick
from paceline_controller.state.security_commands import DeleteUser, PutQuota, PutUser
from paceline_controller.state.topic_commands import (
    CreateStaticTopic,
    CreateTopic,
    DeleteTopic,
    PutConsumerGroup,
)

NAMES = count()


def limited(**quotas: Quota) -> Driver:
    driver = a_group()
    driver.do(PutUser(user="ana", is_new=True))
    for subject, quota in quotas.items():
        assert driver.do(PutQuota(subject=subject, quota=quota))["ok"]
    return driver


def create(driver: Driver, by: str | None = "ana", name: str = "") -> dict[str, Any]:
    topic = TopicName(name or f"t{next(NAMES)}")
    return driver.do(CreateTopic(topic=topic, queues={GroupName("g1"): 1}, by=by))


def let_pass(driver: Driver, ms: int) -> None:
    """Replicated time moves by steps."""
    while ms > 0:
        step = min(ms, 60_000)
        driver.now, ms = driver.now + step, ms - step
        driver.do(Tick(alive=()))


def test_a_user_makes_an_hours_worth_at_once_and_then_waits_as_told() -> None:
    driver = limited(**{"User:ana": Quota(creations_per_hour=4)})

    assert all(create(driver)["ok"] for _ in range(4))
    refused = create(driver)
    assert reason(refused) == "QUOTA_EXCEEDED"
    assert refused["retry_after_ms"] == HOUR_MS // 4
    assert create(driver, by=None)["ok"], "what operators of rights-less clusters do"
    assert create(driver, by="bob")["ok"]
    let_pass(driver, HOUR_MS // 4 - 1)
    assert reason(create(driver)) == "QUOTA_EXCEEDED"
    let_pass(driver, 1)
    assert create(driver)["ok"]
    assert reason(create(driver)) == "QUOTA_EXCEEDED"


def test_all_that_is_made_counts_and_what_is_there_does_not() -> None:
    driver = limited(**{"User:ana": Quota(creations_per_hour=5)})
    group = ConsumerGroupName("readers")
    settings = ConsumerGroupSettings()
    commands = [
        CreateTopic(topic=TopicName("a"), queues={GroupName("g1"): 1}, by="ana"),
        CreateStaticTopic(topic=TopicName("b"), logical_queues=1, groups=(), by="ana"),
        EnsureTopic(topic=TopicName("c"), queues=1, by="ana"),
        EnsureConsumerGroup(group=ConsumerGroupName("others"), by="ana"),
        PutConsumerGroup(group=group, settings=settings, is_new=True, by="ana"),
    ]
    assert [driver.do(command)["ok"] for command in commands] == [True] * 5

    assert driver.do(commands[2])["ok"], "it exists"
    assert driver.do(commands[3])["ok"]
    assert reason(driver.do(commands[0])) == "TOPIC_EXISTS"
    for command in (
        EnsureTopic(topic=TopicName("d"), queues=1, by="ana"),
        EnsureConsumerGroup(group=ConsumerGroupName("more"), by="ana"),
        CreateStaticTopic(topic=TopicName("e"), logical_queues=1, groups=(), by="ana"),
    ):
        before = driver.machine.version
        assert reason(driver.do(command)) == "QUOTA_EXCEEDED"
        assert driver.machine.version == before, "nothing was made"


@example(7, [(1, 0), (1, 0), (6, 0)])
@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 600_000)), max_size=12),
)
def test_nobody_ever_makes_more_than_the_limit_says(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    """In any time: what the rate allows and an hour's worth; and who waits as told makes one."""
    driver = limited(**{"User:*": Quota(creations_per_hour=limit)})
    began, made = driver.now, 0
    for wanted, pause_ms in steps:
        for _ in range(wanted):
            result = create(driver)
            made += result["ok"]
            if not result["ok"]:
                let_pass(driver, result["retry_after_ms"])
                assert create(driver)["ok"]
                made += 1
        let_pass(driver, pause_ms)
        share_ms = HOUR_MS // limit
        assert made <= limit + (driver.now - began) // share_ms


def test_what_was_made_is_remembered_in_a_snapshot_and_forgotten_in_time() -> None:
    driver = limited(**{"User:ana": Quota(creations_per_hour=2)})
    assert "creations" not in orjson.loads(driver.machine.snapshot())
    create(driver)
    create(driver)

    other = Machine()
    other.restore(driver.machine.snapshot())
    driver.machine = other

    assert reason(create(driver)) == "QUOTA_EXCEEDED"
    driver.do(PutUser(user="bob", is_new=True))
    driver.do(PutQuota(subject="User:bob", quota=Quota(creations_per_hour=2)))
    let_pass(driver, HOUR_MS)
    create(driver, by="bob")
    assert list(driver.machine._state.creations) == ["bob"]


def test_a_namespace_has_as_many_topics_as_its_quota_allows() -> None:
    driver = limited(**{"Namespace:shop": Quota(topics=2)})

    assert create(driver, name="shop%a")["ok"]
    assert create(driver, name="shop%b")["ok"]
    refused = create(driver, by=None, name="shop%c")
    assert reason(refused) == "TOO_MANY_TOPICS"
    assert "namespace shop has 2 topics" in refused["detail"]
    assert create(driver, name="other%c")["ok"]
    assert create(driver, name="c")["ok"]
    driver.do(DeleteTopic(topic=TopicName("shop%a")))
    assert create(driver, name="shop%c")["ok"]


def test_quotas_go_with_their_user_and_unknown_users_have_none() -> None:
    driver = limited(**{"User:ana": Quota(connections=1), "User:ana/Client:till": RATE})
    assert reason(driver.do(PutQuota(subject="User:eve", quota=RATE))) == "USER_UNKNOWN"
    assert driver.do(PutQuota(subject="User:anonymous", quota=RATE))["ok"]
    assert driver.do(PutQuota(subject="User:*", quota=RATE))["ok"]

    driver.do(DeleteUser(user="ana"))

    assert sorted(driver.machine.security.quotas) == ["User:*", "User:anonymous"]
    version = driver.machine.security.version
    driver.do(PutQuota(subject="User:*", quota=Quota()))
    driver.do(PutQuota(subject="User:*", quota=Quota()))
    assert list(driver.machine.security.quotas) == ["User:anonymous"]
    assert driver.machine.security.version == version + 1


RATE = Quota(requests_per_s=1)


@pytest.mark.parametrize(
    ("subject", "quota", "field"),
    [
        ("User:ana/Client:till", Quota(connections=1), "connections"),
        ("User:ana", Quota(storage_bytes=1), "storage_bytes"),
        ("Namespace:shop", Quota(creations_per_hour=1), "creations_per_hour"),
        ("Topic:orders", RATE, "requests_per_s"),
    ],
)
def test_a_limit_that_means_nothing_for_a_subject_is_refused(
    subject: str, quota: Quota, field: str
) -> None:
    with pytest.raises(BadRequestError, match=f"has no limit {field}: it may have"):
        check_quota(subject, quota)


@pytest.mark.parametrize(
    "subject",
    ["ana", "User:", "User:..", "User:../Client:a", "User:ana/Client:", "Group:a", "User:a b"],
)
def test_what_is_no_subject_is_refused(subject: str) -> None:
    driver = a_group()

    result = driver.raw({"kind": "put_quota", "subject": subject, "quota": {}})

    assert reason(result) == "BAD_COMMAND"


def test_commands_that_nobody_is_charged_for_have_the_form_of_before() -> None:
    assert "by" not in EnsureConsumerGroup(group=ConsumerGroupName("g")).to_json()
    assert EnsureConsumerGroup(group=ConsumerGroupName("g"), by="ana").to_json()["by"] == "ana"
