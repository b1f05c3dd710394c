"""Names of consumer groups that nobody has registered leave nothing behind at a broker."""

from typing import Any

import pytest
from tests.support.service.fakes import Bench, replayed

from paceline.errors import GroupNotFoundError

QUEUE = {"topic": "orders", "queue": 0}
CALLS: dict[str, dict[str, Any]] = {
    "commit": {"offsets": [{**QUEUE, "offset": 0}]},
    "lock": {"client_id": "c", "queues": [QUEUE]},
    "receive": {"client_id": "c", "topics": ["orders"]},
    "heartbeat": {"client_id": "c", "topics": ["orders"], "owned": [], "generation": 0},
    "reset": {"topic": "orders", "to": "first", "new": True},
    "clone_offsets": {"topic": "orders", "source": "other"},
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_group_that_is_not_on_record_is_refused_and_nothing_is_kept(name: str) -> None:
    bench = Bench(auto_create_subscription_group=False)
    before, end = replayed(bench), bench.writer.end

    with pytest.raises(GroupNotFoundError):
        await bench.call(name, group="made-up", **CALLS[name])

    assert bench.writer.end == end
    assert replayed(bench) == before
    assert (await bench.call("members", group="made-up"))["members"] == []


@pytest.mark.parametrize("name", CALLS)
async def test_where_groups_make_themselves_the_group_is_on_record_first(name: str) -> None:
    bench = Bench()

    await bench.call(name, group="new", **CALLS[name])

    assert "new" in bench.service.routes.consumer_groups
