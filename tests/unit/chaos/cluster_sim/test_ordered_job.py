"""The beds' ordered consumer."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import OffsetOutOfRangeError
from paceline_chaos.cluster_sim.jobs import consuming
from paceline_chaos.history.model import Queue


@pytest.mark.parametrize(("details", "goes_on_at"), [({"start": 241}, 241), ({"start": 3}, None)])
def test_one_that_retention_has_overtaken_goes_on_at_the_first_kept_message(
    monkeypatch: pytest.MonkeyPatch, details: dict[str, Any], goes_on_at: int | None
) -> None:
    async def refused(*_: object) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError("deleted", **details)

    monkeypatch.setattr(consuming, "pull_http", refused)
    monkeypatch.setattr(consuming, "_master", lambda *_: "127.0.0.1:1")
    around: Any = SimpleNamespace(alias="c", random=random.Random(1))
    job, nobody = consuming.OrderedConsumer(around), SimpleNamespace()
    queue = Queue("orders", "g1", 0)

    found = asyncio.run(job._work(nobody, nobody, queue, 5, 136))  # type: ignore[arg-type]

    assert found == goes_on_at
