"""Topics and groups that make themselves: asked for once, used when the view shows them."""

import asyncio
from typing import Any

import pytest
from tests.support.service.fakes import GROUP, a_view, until

from paceline.errors import (
    CommandRefusedError,
    ForbiddenError,
    GroupNotFoundError,
    NotYetAvailableError,
    OverloadedError,
    TopicNotFoundError,
)
from paceline.platform.runtime import ManualClock
from paceline.types import ConsumerGroupName, TopicId, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.session_commands import BrokerCommand
from paceline.wire.topics import TopicView
from paceline_broker.service.produce.auto_create import (
    NEW_NAMES_BURST,
    NEW_NAMES_PER_S,
    WANTED_MAX,
    AutoCreator,
    NamesAllowance,
)
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings

NEW = TopicView(topic=TopicName("new"), topic_id=TopicId(9), queues={GROUP: 4})


class Controllers:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[BrokerCommand] = []
        self.may_answer = asyncio.Event()
        self.result: dict[str, Any] = {"ok": True, "version": 8}

    async def __call__(self, command: BrokerCommand) -> dict[str, Any]:
        self.asked.append(command)
        await self.may_answer.wait()
        return self.result


def a_creator(ask: Controllers | None, **settings: Any) -> tuple[AutoCreator, Routes]:
    routes = Routes(GROUP)
    routes.apply(a_view(version=7))
    return AutoCreator(routes, ServiceSettings(**settings), ask, ManualClock()), routes


def newer(routes: Routes) -> ClusterView:
    assert routes.view is not None
    billing = ConsumerGroupView(group=ConsumerGroupName("billing"))
    return ClusterView(
        cluster_id=routes.view.cluster_id,
        version=8,
        groups=routes.view.groups,
        topics={**routes.view.topics, NEW.topic: NEW},
        consumer_groups={billing.group: billing},
    )


async def test_all_who_want_a_topic_ask_once_and_go_on_when_the_view_shows_it() -> None:
    ask = Controllers()
    creator, routes = a_creator(ask, default_topic_queue_nums=4)
    loop = asyncio.get_running_loop()
    wanting = [loop.create_task(creator.ensure_topic("new")) for _ in range(3)]
    await until(lambda: bool(ask.asked))
    ask.may_answer.set()
    await until(lambda: not creator.is_asking)
    assert not any(want.done() for want in wanting), "the view is behind"

    routes.apply(newer(routes))

    assert await asyncio.gather(*wanting) == [NEW] * 3
    [command] = ask.asked
    assert command.to_json() == {
        "kind": "ensure_topic",
        "topic": "new",
        "queues": 4,
        "message_type": "MIXED",
    }


async def test_what_is_there_is_not_asked_for() -> None:
    ask = Controllers()
    creator, routes = a_creator(ask)
    routes.apply(newer(routes))

    assert await creator.ensure_topic("new") == NEW
    assert (await creator.ensure_group("billing")).settings.retry_max_times == 16
    assert not ask.asked


@pytest.mark.parametrize("has_controllers", [False, True])
async def test_switched_off_nothing_is_made(has_controllers: bool) -> None:
    ask = Controllers()
    creator, _ = a_creator(
        ask if has_controllers else None,
        auto_create_topic_enable=not has_controllers,
        auto_create_subscription_group=not has_controllers,
    )

    with pytest.raises(TopicNotFoundError):
        await creator.ensure_topic("new")
    with pytest.raises(GroupNotFoundError):
        await creator.ensure_group("billing")
    assert not ask.asked


async def test_a_silent_quorum_is_waited_for_so_long_and_the_next_one_asks_with_the_first() -> None:
    ask = Controllers()
    creator, routes = a_creator(ask, create_timeout_ms=20)

    with pytest.raises(NotYetAvailableError):
        await creator.ensure_group("billing")
    again = asyncio.get_running_loop().create_task(creator.ensure_group("billing"))
    await until(lambda: len(ask.asked) == 1)
    ask.may_answer.set()
    routes.apply(newer(routes))

    assert (await again).group == "billing"
    assert len(ask.asked) == 1


async def test_a_refusal_says_why() -> None:
    ask = Controllers()
    ask.may_answer.set()
    ask.result = {"ok": False, "reason": "TOO_MANY_TOPICS", "detail": "there are 10000 topics"}
    creator, _ = a_creator(ask)

    with pytest.raises(CommandRefusedError, match="10000 topics"):
        await creator.ensure_topic("new")
    with pytest.raises(ForbiddenError):
        await creator.ensure_topic("%RETRY%billing")
    with pytest.raises(ForbiddenError):
        await creator.ensure_group("paceline.delay")


async def test_made_up_names_are_asked_for_one_at_a_time_and_not_without_bound() -> None:
    ask = Controllers()
    creator, routes = a_creator(ask)
    loop = asyncio.get_running_loop()
    wanting = [loop.create_task(creator.ensure_group(f"g{n}")) for n in range(2 * WANTED_MAX)]
    await until(lambda: bool(ask.asked))
    with pytest.raises(NotYetAvailableError):
        await creator.ensure_group("one-more")
    assert len(ask.asked) == 1, "mastership commands must not stand behind many"

    ask.may_answer.set()
    await until(lambda: not creator.is_asking)
    routes.stop_waiting()
    await asyncio.gather(*wanting, return_exceptions=True)

    assert len(ask.asked) == WANTED_MAX


async def test_names_without_end_are_asked_for_at_a_rate() -> None:
    clock = ManualClock()
    allowance = NamesAllowance(now_ms=clock.monotonic_ms())
    for _ in range(NEW_NAMES_BURST):
        allowance.take(now_ms=clock.monotonic_ms())
    with pytest.raises(OverloadedError):
        allowance.take(now_ms=clock.monotonic_ms())

    clock.advance(1000)
    for _ in range(NEW_NAMES_PER_S):
        allowance.take(now_ms=clock.monotonic_ms())
    with pytest.raises(OverloadedError):
        allowance.take(now_ms=clock.monotonic_ms())


async def test_a_name_over_the_rate_is_refused_and_nobody_is_asked() -> None:
    ask = Controllers()
    ask.may_answer.set()
    ask.result = {"ok": False, "reason": "TOO_MANY_GROUPS", "detail": "there are 2000"}
    creator, _ = a_creator(ask)
    for number in range(NEW_NAMES_BURST):
        with pytest.raises(CommandRefusedError):
            await creator.ensure_group(f"g{number}")

    with pytest.raises(OverloadedError):
        await creator.ensure_group("one-more")

    assert len(ask.asked) == NEW_NAMES_BURST


async def test_who_waits_for_the_view_while_the_broker_stops_is_told() -> None:
    ask = Controllers()
    creator, routes = a_creator(ask)
    waiting = asyncio.get_running_loop().create_task(creator.ensure_topic("new"))
    await until(lambda: bool(ask.asked))
    ask.may_answer.set()
    await until(lambda: not creator.is_asking)

    routes.stop_waiting()

    with pytest.raises(NotYetAvailableError, match="stops"):
        await waiting


async def test_closing_ends_what_is_asked() -> None:
    ask = Controllers()
    creator, _ = a_creator(ask)
    waiting = asyncio.get_running_loop().create_task(creator.ensure_group("billing"))
    await until(lambda: bool(ask.asked))

    await creator.close()

    assert not creator.is_asking
    with pytest.raises(asyncio.CancelledError):
        await waiting
