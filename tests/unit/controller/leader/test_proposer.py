"""The leader's own commands: a session that has expired is replaced, and nothing happens twice."""

from typing import Any

import pytest

from paceline.errors import (
    NotLeaderError,
    OutcomeUnknownError,
    OverloadedError,
    PacelineError,
    ShuttingDownError,
)
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.types import ControllerId, GroupName, TopicName
from paceline_controller.leader.proposer import Proposer
from paceline_controller.quorum_memory import MemoryLog, MemoryQuorum
from paceline_controller.state import Machine
from paceline_controller.state.commands import CreateTopic, Lead, Tick
from paceline_controller.state.machine import SESSION_MS, TIME_STEP_MS_MAX

HOUR_MS = 3_600_000
TOPIC = CreateTopic(topic=TopicName("orders"), queues={GroupName("g1"): 1})


class LeadingProposer:
    """A proposer that leads a cluster of one, and another session that moves replicated time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.machine = Machine()
        log = MemoryLog()
        self.quorum = MemoryQuorum(self.machine, controller_id=ControllerId("c1"), log=log)
        self.log = log
        self.proposer, self.other = self._made("leader"), self._made("other")

    def _made(self, seed: str) -> Proposer:
        return Proposer(
            self.quorum,
            self.machine,
            clock=self.clock,
            random=SeededRandom(seed),
            timeout_ms=3_000,
        )

    async def begin(self) -> None:
        await self.quorum.start()
        self.log.elect(ControllerId("c1"))
        for proposer in (self.other, self.proposer):
            await proposer.begin(
                Lead(controller_id=ControllerId("c1"), term=1, cluster_id="c", cluster_name="n")
            )

    async def expire(self) -> None:
        """The wall clock jumps by an hour, and commands of others carry replicated time along."""
        self.clock.step_wall(HOUR_MS)
        for _ in range(SESSION_MS // TIME_STEP_MS_MAX + 2):
            await self.other.submit(Tick(alive=()))


async def test_a_leader_whose_session_has_expired_goes_on_in_another() -> None:
    leading = LeadingProposer()
    await leading.begin()
    await leading.expire()

    first = await leading.proposer.submit(TOPIC)
    second = await leading.proposer.submit(Tick(alive=()))

    assert first.get("reason") == "GROUP_UNKNOWN"  # it was judged, not refused for its session
    assert second["ok"]


async def test_a_command_that_an_earlier_attempt_may_have_done_stays_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leading = LeadingProposer()
    await leading.begin()
    propose = leading.quorum.propose
    attempts: list[dict[str, Any]] = []

    async def lost_once(command: dict[str, Any], *, timeout_ms: int) -> dict[str, Any]:
        attempts.append(command)
        result = await propose(command, timeout_ms=timeout_ms)
        if len(attempts) == 1:
            monkeypatch.setattr(leading.quorum, "propose", propose)
            await leading.expire()
            monkeypatch.setattr(leading.quorum, "propose", lost_once)
            raise OutcomeUnknownError("the answer was lost")
        return result

    monkeypatch.setattr(leading.quorum, "propose", lost_once)

    with pytest.raises(OutcomeUnknownError, match="tick: session"):
        await leading.proposer.submit(Tick(alive=()))
    ticks = [command for command in attempts if command["kind"] == "tick"]
    assert len(ticks) == 2  # its result is forgotten: asking again changes nothing
    assert (await leading.proposer.submit(Tick(alive=())))["ok"]


@pytest.mark.parametrize(
    "refusal",
    [
        NotLeaderError("lost meanwhile", leader=None),
        ShuttingDownError("this controller is not running"),
        OverloadedError("10000 proposals wait already", retry_after_ms=100),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_no_refusal_is_definite_after_an_attempt_that_may_have_been_done(
    refusal: PacelineError, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading = LeadingProposer()
    await leading.begin()
    answers: list[PacelineError] = [OutcomeUnknownError("the answer was lost"), refusal]

    async def refused(command: dict[str, Any], *, timeout_ms: int) -> dict[str, Any]:
        raise answers.pop(0)

    monkeypatch.setattr(leading.quorum, "propose", refused)

    with pytest.raises(OutcomeUnknownError, match="tick: an earlier attempt may be applied"):
        await leading.proposer.submit(Tick(alive=()))
    assert not answers


async def test_a_refusal_of_the_first_attempt_stays_definite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leading = LeadingProposer()
    await leading.begin()

    async def refused(command: dict[str, Any], *, timeout_ms: int) -> dict[str, Any]:
        raise ShuttingDownError("this controller is not running")

    monkeypatch.setattr(leading.quorum, "propose", refused)

    with pytest.raises(ShuttingDownError):
        await leading.proposer.submit(Tick(alive=()))
