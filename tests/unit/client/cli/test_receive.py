"""`paceline receive`, `ack` and `change-invisible` against the real door of a broker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.client.simple import lead, send
from tests.support.http.door import a_door
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.wire.receipts import format_handle, parse_handle

GROUP = ("--group", "workers")


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A broker with one message in topic "orders"."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        async with a_door() as door:
            address = lead(door)
            send(door, b"x")
            yield address

    with beside(serve()) as served:
        yield served


def receive(bootstrap: str) -> list[dict[str, Any]]:
    outcome = run_command(
        "receive", "orders", *GROUP, "--wait-ms", "0", "--json", bootstrap=bootstrap
    )
    assert outcome.exit_code == 0, outcome.stderr
    return [orjson.loads(line) for line in outcome.stdout.splitlines()]


def change(bootstrap: str, handle: str, invisible_ms: int, *options: str) -> Outcome:
    asked = ("change-invisible", handle, *GROUP, "--invisible-ms", str(invisible_ms), *options)
    return run_command(*asked, bootstrap=bootstrap)


def test_a_changed_time_gives_a_new_handle_and_voids_the_old_one(bootstrap: str) -> None:
    [message] = receive(bootstrap)

    longer = change(bootstrap, message["handle"], 120_000, "--json")
    assert longer.exit_code == 0, longer.stderr
    changed = orjson.loads(longer.stdout)
    assert changed["invisible_until_unix_ms"] == message["invisible_until_unix_ms"] + 60_000
    assert run_command("ack", message["handle"], *GROUP, bootstrap=bootstrap).exit_code == 1
    assert receive(bootstrap) == []

    given_back = change(bootstrap, changed["handle"], 0)
    assert (given_back.exit_code, len(given_back.stdout.split())) == (0, 1)
    [again] = receive(bootstrap)
    assert again["attempt"] == 2
    assert run_command("ack", again["handle"], *GROUP, bootstrap=bootstrap).exit_code == 0


@pytest.mark.parametrize(
    ("handle", "invisible_ms", "why"),
    [("made-up", 20_000, "no receipt handle of consumer group workers"), ("", 5, "10000")],
)
def test_a_wrong_handle_or_time_is_refused_and_changes_nothing(
    bootstrap: str, handle: str, invisible_ms: int, why: str
) -> None:
    [message] = receive(bootstrap)

    outcome = change(bootstrap, handle or message["handle"], invisible_ms)

    assert outcome.exit_code == 2
    assert why in outcome.stderr
    assert run_command("ack", message["handle"], *GROUP, bootstrap=bootstrap).exit_code == 0


def test_a_receipt_of_a_topic_that_is_gone_is_not_said_to_have_expired(bootstrap: str) -> None:
    """Its handle is whole: only the broker knows that there is nothing behind it."""
    receipt = parse_handle(receive(bootstrap)[0]["handle"], "workers")
    gone = format_handle(receipt._replace(topic_id=77), "workers")
    acked = run_command("ack", gone, *GROUP, bootstrap=bootstrap)
    changed = change(bootstrap, gone, 0)

    for outcome in (acked, changed):
        assert (outcome.exit_code, outcome.stdout) == (2, "")
        assert outcome.stderr.startswith("paceline: no message is to be had by this receipt: its")
