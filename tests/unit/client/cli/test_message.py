"""`paceline message show|find|track` against the real door of a broker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.client.pins import a_master
from tests.support.http.door import a_batch
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupView

BATCH = "application/vnd.paceline.batch"


class Reader:
    """Runs `paceline message ...`; queue g1/0 of `orders` has three messages, two of key "k"."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str, of: str = "message") -> Outcome:
        return run_command(of, *arguments, bootstrap=self._bootstrap)

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        outcome = self(*arguments, "--json")
        assert outcome.exit_code == 0, outcome.stderr
        return [orjson.loads(line) for line in outcome.stdout.splitlines()]


@pytest.fixture
def messages() -> Iterator[Reader]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Reader]:
        async with a_master() as (cluster, door, _):
            batch = a_batch(b"one", b"t\x1bwo", b"three", keys=["k", None, "k"])
            path = "/v1/topics/orders/queues/0/batches"
            status, _ = await door.ask("POST", path, data=batch, headers={"Content-Type": BATCH})
            assert status == 200
            audit = ConsumerGroupView(group=ConsumerGroupName("audit"))
            cluster.publish(consumer_groups={audit.group: audit})
            cluster.add_topic("%DLQ%audit", 1)
            yield Reader(cluster.controller)

    with beside(serve()) as served:
        yield served


def test_messages_of_a_key_are_found_and_shown(messages: Reader) -> None:
    rows = messages.json("find", "orders", "--key", "k")
    table = messages("find", "orders", "--key", "k")
    [again] = messages.json("show", rows[1]["message_id"])
    shown = messages("show", rows[1]["message_id"])

    assert [row["body"] for row in rows] == ["one", "three"]
    assert rows[0].keys() == {
        "topic", "group", "queue", "offset", "message_id", "unique_key", "key", "tag", "properties",
        "body", "born_unix_ms", "store_unix_ms", "cause",
    }  # fmt: skip
    lines = table.stdout.splitlines()
    assert lines[0].split()[:3] == ["ID", "QUEUE", "OFFSET"]
    assert [line.split()[-1] for line in lines[1:]] == ["one", "three"]
    assert again == rows[1]
    assert "body: three" in shown.stdout.splitlines()


def test_a_message_is_found_by_time_and_unique_key_and_escapes_are_shown(messages: Reader) -> None:
    rows = messages.json("find", "orders", "--from", "1970-01-01", "--to", "2200-01-01T00:00:00Z")
    [one] = messages.json("find", "orders", "--unique-key", rows[1]["unique_key"])
    shown = messages("show", one["message_id"])

    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert one["offset"] == 1
    assert "body: t\\x1bwo" in shown.stdout
    assert messages("find", "orders", "--to", "5").stderr == "no such message\n"
    assert len(messages.json("find", "orders", "--limit", "2")) == 2


def test_groups_are_told_by_whether_they_are_past_it(messages: Reader) -> None:
    [row] = messages.json("find", "orders", "--limit", "1")
    nobody = messages("track", row["message_id"])
    reset = messages("reset", "audit", "orders", "--to", "1", of="group")
    [tracked] = messages.json("track", row["message_id"])
    table = messages("track", row["message_id"])

    assert nobody.stderr == "no consumer group has committed on its queue\n"
    assert reset.exit_code == 0, reset.stderr
    assert tracked == {"group": "audit", "offset": 1, "is_done": True, "status": "CONSUMED"}
    assert table.stdout.splitlines()[1].split() == ["audit", "CONSUMED", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nonsense"), "a message id reads GROUP:POSITION:NUMBER"),
        (("show", "g1:fffff8:0"), "no message g1:fffff8:0: it was deleted"),
        (("track", "g9:1:0"), "there is no broker group g9; there is g1"),
        (("find", "nothing"), "topic nothing does not exist"),
        (("find", "orders", "--from", "yesterday"), "--from 'yesterday' is no time"),
    ],
)
def test_what_is_wrong_is_said(
    messages: Reader, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.net.master_http._BEHIND_MS", 20)
    outcome = messages(*arguments)

    assert outcome.exit_code != 0
    assert said in outcome.stderr


@pytest.mark.parametrize("what", ["show", "resend"])
def test_dead_letters_of_no_broker_group_are_denied(
    messages: Reader, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.net.master_http._BEHIND_MS", 20)

    outcome = messages(what, "audit", "g9/0/0", of="dlq")

    assert outcome.exit_code == 1
    assert outcome.stderr == "paceline: there is no broker group g9; there is g1\n"


@pytest.mark.parametrize(
    "arguments",
    [("list", "typo"), ("show", "typo", "g1/0/0"), ("resend", "typo", "g1/0/0"), ("purge", "typo")],
)
def test_dead_letters_of_a_misspelt_group_are_denied(
    messages: Reader, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.admin.dead_letters._BEHIND_MS", 20)

    outcome = messages(*arguments, "--json", of="dlq")

    assert (outcome.exit_code, outcome.stdout) == (1, "")
    problem = orjson.loads(outcome.stderr)
    assert problem["code"] == "GROUP_NOT_FOUND"
    assert problem["detail"] == (
        "consumer group typo is not on record, so it has no dead letters; `paceline group list`"
        " shows those that are"
    )
