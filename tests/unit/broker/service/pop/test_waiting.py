"""Receives of many groups that wait at one queue."""

import asyncio
from collections.abc import Iterable

import pytest
from tests.support.service.fakes import Bench, until
from tests.support.service.receipts import receive, send

from paceline_broker.service.pop import pop
from paceline_broker.service.pop.waiting import WaitingReceives

GROUPS = [f"g{number}" for number in range(10)]


async def wait(bench: Bench) -> "list[asyncio.Task[list[list[int]]]]":
    """A receive of each group, that waits."""

    async def rows(group: str) -> list[list[int]]:
        answer = await receive(bench, group=group, wait_ms=20_000)
        return [[*row[2:], answer["position"]] for row in answer["messages"]]

    loop = asyncio.get_running_loop()
    waiting = [loop.create_task(rows(group)) for group in GROUPS]
    await until(lambda: bench.service.receipts.waiting_count == len(GROUPS))
    return waiting


def is_empty(waiting: WaitingReceives) -> bool:
    return not (waiting or waiting._at or waiting._groups_at or waiting._keys_of)


async def test_a_message_is_given_to_all_groups_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pop, "_SERVED_MAX", 3)
    bench = Bench()
    waiting = await wait(bench)

    send(bench, 1)
    answers = await asyncio.gather(*waiting)

    assert [rows[0][:3] for rows in answers] == [[0, 1, 1]] * len(GROUPS)
    assert len({rows[0][3] for rows in answers}) == 4
    assert is_empty(bench.service.receipts._waiting)
    await bench.service.close()


async def test_a_turn_looks_at_those_whom_it_serves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands that wait for one message each turn looked at all, when something falls due."""
    monkeypatch.setattr(pop, "_SERVED_MAX", 3)
    bench = Bench()
    waiting = await wait(bench)
    receipts, armed = bench.service.receipts, []
    arm = receipts._arm

    def count(groups: Iterable[str]) -> None:
        armed.append(sorted(groups))
        arm(groups)

    monkeypatch.setattr(receipts, "_arm", count)
    send(bench, 1)
    await asyncio.gather(*waiting)

    assert [len(groups) for groups in armed] == [3, 3, 3, 1]
    await bench.service.close()


async def test_what_waits_is_forgotten_with_its_asker() -> None:
    bench = Bench()
    waiting = await wait(bench)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)

    assert is_empty(bench.service.receipts._waiting)
    await bench.service.close()
