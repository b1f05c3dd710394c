"""What a failover costs the controllers' watches, counted: docs/SCALE.md extrapolates from it."""

from contextlib import AsyncExitStack
from typing import Any

from tests.support.controller.builders import Driver, alteration, election, of_master, registration
from tests.support.http.turns import turn

from paceline.platform.runtime import ManualClock, cancel_and_wait, spawn
from paceline.types import GroupName, Incarnation, ReplicaId, TopicName
from paceline.wire.session import OpenEpoch
from paceline.wire.views.scope import Scope
from paceline_controller.server.watches import Watches
from paceline_controller.sessions.view_messages import ViewMessages

MEMBERS = {ReplicaId(number): Incarnation(1) for number in (1, 2, 3)}
SCOPE = Scope(topics=frozenset({TopicName("a"), TopicName("b"), TopicName("c")}))


class Answers:
    """Long polls of clients, which ask again with the version that they were told."""

    def __init__(self, driver: Driver) -> None:
        self._machine = driver.machine
        self.views = ViewMessages(driver.machine, ("10.0.0.1:7700",))
        self.watches = Watches(self.views, lambda: driver.machine.version, clock=ManualClock())
        self.sizes: list[int] = []

    async def poll(self, scope: Scope) -> None:
        told = self._machine.version
        while True:
            await self.watches.wait(60_000, scope)
            if self.watches.has_news(told, scope):
                self.sizes.append(len(self.views.body_in(scope, told)))
                told = self._machine.version


def a_cluster_of(groups: int) -> Driver:
    driver = Driver()
    driver.found()

    def done(result: dict[str, Any]) -> None:
        assert result["ok"], result

    for number in range(groups):
        name = GroupName(f"g{number}")
        for replica in MEMBERS:
            done(driver.do(registration(replica, group=name, store_id=f"{name}-{replica}")))
        first = election(driver.machine.groups[name], 1, is_first=True, members=MEMBERS)
        done(driver.do(first))
        done(driver.do(OpenEpoch(**of_master(driver.machine.groups[name]))))
    for topic in SCOPE.topics:
        queues = {"g0": 4, "g1": 4}
        done(
            driver.raw(
                {"kind": "create_topic", "topic": topic, "queues": queues, "read_queues": queues}
            )
        )
    return driver


async def test_each_poll_of_a_client_is_answered_three_times_with_the_group_alone() -> None:
    driver, clients = a_cluster_of(20), 10
    answers, group = Answers(driver), GroupName("g7")
    answers.watches.published()
    of_group = driver.machine.groups
    failover = (
        lambda: election(of_group[group], 2, without=(ReplicaId(1),)),
        lambda: OpenEpoch(**of_master(of_group[group])),
        lambda: registration(
            1,
            group=group,
            store_id="g7-1",
            replica_id=ReplicaId(1),
            incarnation=Incarnation(2),
            is_empty=False,
        ),
        lambda: alteration(of_group[group], (1, 2, 3)),
    )
    async with AsyncExitStack() as stack:
        polls = [spawn(answers.poll(SCOPE), name="poll") for _ in range(2 * clients)]
        stack.push_async_callback(cancel_and_wait, *polls)
        await turn()
        for command in failover:
            assert driver.do(command())["ok"]
            answers.watches.published()
            for _ in range(4):
                await turn()

    assert len(answers.sizes) == 3 * 2 * clients
    assert max(answers.sizes) < 1_300
    # What a client knows grows with the groups: 1,000 would be 1 MB.
    assert len(answers.views.body_in(SCOPE, None)) < 20 * 1_100
