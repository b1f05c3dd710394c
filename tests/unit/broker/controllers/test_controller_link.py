"""Commands to the controllers: repeated until the answer is definite, whatever comes between."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.client.views import view_changes
from tests.support.service.fakes import a_view

from paceline.errors import PeerError
from paceline.platform.runtime import SeededRandom, pause
from paceline.platform.secret import ClusterSecrets
from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView
from paceline_broker.controllers.session import ControllerLinks
from paceline_broker.storage.identity import Identity

COMMAND = wire.OpenEpoch(
    group=GroupName("g1"),
    master=ReplicaId(1),
    master_incarnation=Incarnation(1),
    master_epoch=MasterEpoch(3),
    confirm=96,
)
Answers = Callable[[str, int, wire.BrokerCommand], dict[str, Any] | None]


class FakeLink:
    """A session with a controller that says it leads; `answers` None: it never answers."""

    is_up = is_leader = True
    claim = 0
    address = "c"

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._waiting: asyncio.Future[wire.Answer] | None = None
        self.asked: list[tuple[str, int, str]] = []

    async def ask(self, *, session: str, sequence: int, command: wire.BrokerCommand) -> wire.Answer:
        self.asked.append((session, sequence, command.kind))
        result = self._answers(session, sequence, command)
        if result is None:
            self._waiting = asyncio.get_running_loop().create_future()
            return await self._waiting
        return wire.Answer(id=1, result=result)

    def give_up(self, reason: str) -> None:
        if self._waiting is not None:
            self._waiting.set_exception(PeerError(reason))


def some_links(*links: FakeLink, request_timeout_ms: int = 30) -> ControllerLinks:
    owner = ControllerLinks(
        controllers=(),
        secrets=ClusterSecrets(b""),
        identity=_nobody,
        heartbeat=lambda: None,
        on_view=lambda view: None,
        on_security=lambda security: None,
        on_refused=lambda refused: None,
        on_time=lambda controller, unix_ms: None,
        on_hand_over=lambda order, reply: None,
        random=SeededRandom("links"),
        heartbeat_interval_ms=100,
        request_timeout_ms=request_timeout_ms,
    )
    owner._links.extend(links)  # type: ignore[arg-type]  # noqa: SLF001
    return owner


def _nobody() -> Identity:
    raise NotImplementedError


def _later_taken(reason: str, kind: str) -> Answers:
    """The first command of `kind` is refused for `reason`, all else is taken."""
    refusals = [{"ok": False, "reason": reason, "detail": ""}]

    def answer(session: str, sequence: int, command: wire.BrokerCommand) -> dict[str, Any]:
        return refusals.pop() if command.kind == kind and refusals else {"ok": True}

    return answer


async def test_a_command_that_came_too_late_is_asked_anew() -> None:
    link = FakeLink(_later_taken("DEADLINE_PASSED", "open_epoch"))

    result = await some_links(link).request(COMMAND)

    assert result["ok"]  # R6: else a master that is open would be replaced
    (_, first), (_, second) = [(s, n) for s, n, kind in link.asked if kind == "open_epoch"]
    sessions = {session for session, _, _ in link.asked}
    assert (first, second, len(sessions)) == (1, 1, 2)  # R38: under a fresh session


async def test_a_session_that_is_refused_does_not_lose_the_command() -> None:
    link = FakeLink(_later_taken("DEADLINE_PASSED", "open_session"))

    result = await some_links(link).request(COMMAND)

    assert result["ok"]


async def test_a_deposed_leader_that_is_cut_off_does_not_stop_commands() -> None:
    deposed = FakeLink(lambda session, sequence, command: None)
    present = FakeLink(lambda session, sequence, command: {"ok": True})

    async with asyncio.timeout(10):
        result = await some_links(deposed, present).request(COMMAND)

    assert result["ok"]
    assert len({session for session, _, _ in deposed.asked + present.asked}) == 1  # R7


async def test_a_command_moves_to_a_new_leader_without_waiting_for_the_old_one() -> None:
    old = FakeLink(lambda session, sequence, command: None)
    new = FakeLink(lambda session, sequence, command: {"ok": True})
    new.is_leader = False
    links = some_links(old, new, request_timeout_ms=3_600_000)

    async with asyncio.timeout(10):
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(links.request(COMMAND))
            while not old.asked:
                await pause(0)
            new.is_leader = True
            links.led_by(new)  # type: ignore[arg-type]
        result = asking.result()

    assert result["ok"]
    assert len({session for session, _, _ in old.asked + new.asked}) == 1  # R7
    assert len(old.asked) == 1


async def test_requests_leave_one_at_a_time() -> None:
    link = FakeLink(lambda session, sequence, command: {"ok": True})
    links = some_links(link)

    await asyncio.gather(*(links.request(COMMAND) for _ in range(3)))
    await pause(0)

    assert [sequence for _, sequence, _ in link.asked] == [0, 1, 2, 3]


async def test_changes_follow_the_newest_view_whoever_sent_it() -> None:
    """R38: of three controllers each tells what leads on from what it sent itself."""
    links, seen = some_links(), list[ClusterView]()
    links.on_view = seen.append
    one, two, three = (a_view(version=version, topics={"t": version}) for version in (1, 2, 3))

    links.viewed(one)
    links.changed(view_changes(one, two))
    links.changed(view_changes(one, two))  # of another controller, which is slower
    links.changed(view_changes(one, three))  # and then quicker

    assert seen == [one, two, three]


async def test_changes_that_follow_no_view_end_the_session() -> None:
    links, seen = some_links(), list[ClusterView]()
    links.on_view = seen.append
    one, two, three = (a_view(version=version, topics={"t": version}) for version in (1, 2, 3))

    for told in ((), (one,), (replace(two, cluster_id="other"),)):
        for view in told:
            links.viewed(view)
        with pytest.raises(PeerError):
            links.changed(view_changes(two, three))

    assert three not in seen


async def test_views_of_two_clusters_are_told_apart() -> None:
    """A store that is being recovered has sessions with controllers of both (R18)."""
    links, seen = some_links(), list[ClusterView]()
    links.on_view = seen.append
    one, two = (a_view(version=version, topics={"t": version}) for version in (1, 2))
    others = [replace(view, cluster_id="other", version=view.version + 8) for view in (one, two)]

    links.viewed(one)
    links.viewed(others[0])
    links.changed(view_changes(one, two))
    links.changed(view_changes(*others))

    assert seen == [one, others[0], two, others[1]]
