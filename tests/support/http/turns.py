"""Turns of the event loop, and how often something happens in each."""

import asyncio
from typing import Any

import pytest


async def turn() -> None:
    """One turn of the event loop."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future


def per_turn(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, until: int) -> list[int]:
    """Calls of `owner.name` in each turn from now on, until there were so many."""
    counts = [0]
    original, loop = getattr(owner, name), asyncio.get_running_loop()

    def counting(*arguments: Any, **named: Any) -> Any:
        counts[-1] += 1
        return original(*arguments, **named)

    def next_turn() -> None:
        counts.append(0)
        if sum(counts) < until:
            loop.call_soon(next_turn)

    monkeypatch.setattr(owner, name, counting)
    next_turn()
    return counts
