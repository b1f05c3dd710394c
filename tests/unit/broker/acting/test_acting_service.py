"""R36, what clients get of an acting master: marked reads, soft offsets and locks, refusals."""

import asyncio
from typing import Any

import pytest
from tests.support.http.door import a_batch
from tests.support.service.fakes import GROUP, Bench, a_view, until
from tests.support.service.group_records import with_group
from tests.support.service.receipts import receive
from tests.support.service.send import Answers

from paceline.errors import (
    LockFencedError,
    NoMasterError,
    NotMasterError,
    NotYetAvailableError,
    OffsetMovedBackError,
    OutcomeUnknownError,
    ReceiptsOpenError,
)
from paceline.platform.telemetry import Metrics
from paceline.types import QueueOffset
from paceline.wire.http import PullRequest
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.service.counters import register

QUEUE = {"topic": "orders", "queue": 0}
LEASE_MS = 60_000
NAME = "paceline_acting_since_unix_seconds"


def an_acting_bench(count: int = 10) -> Bench:
    """It has `count` confirmed messages of queue 0 and acts in epoch 5."""
    bench = Bench()
    bench.service.sender.send(a_batch(*[b"x"] * count), Answers(), 0)
    bench.writer.confirm_all()
    bench.role.become_acting(5)
    bench.service.role_changed()
    return bench


async def asked(bench: Bench, name: str, **fields: Any) -> dict[str, Any]:
    return await bench.call(name, **fields)


async def test_answers_say_that_they_may_be_stale() -> None:
    bench = an_acting_bench()

    for answer in (
        await asked(bench, "ends", queues=[QUEUE]),
        await asked(bench, "offsets", group="g"),
        await asked(bench, "lag", group="g"),
        await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 3}]),
    ):
        assert (answer["acting"], answer["maybe_stale"], answer["epoch"]) == (True, True, 5)


async def test_a_masters_answers_say_nothing_of_that() -> None:
    bench = Bench()

    assert "acting" not in await asked(bench, "ends", queues=[QUEUE])


async def test_messages_are_served_up_to_the_own_confirm_and_marked() -> None:
    bench = an_acting_bench()
    topic = bench.service.routes.topic_named("orders")
    messages = bench.service.messages

    answer = await messages.pull(topic, 0, PullRequest(offset=QueueOffset(4)))
    beyond = await messages.pull(topic, 0, PullRequest(offset=QueueOffset(10)))

    assert len(answer["messages"]) == 6
    assert (answer["acting"], answer["end"]) == (True, 10)
    assert beyond["messages"] == []
    with pytest.raises(NotYetAvailableError):  # R3: ahead of this broker is not out of range
        await messages.pull(topic, 0, PullRequest(offset=QueueOffset(11)))


async def test_no_commit_passes_over_what_a_receiver_works_on() -> None:
    """R29, R36: as a master refuses it; the receiver's group would never be given it again."""
    bench = Bench()
    bench.service.sender.send(a_batch(*[b"x"] * 10), Answers(), 0)
    bench.writer.confirm_all()
    answer = await receive(bench, max_messages=2)
    bench.role.become_acting(5)
    bench.service.role_changed()
    late = {**QUEUE, "offset": 1}

    with pytest.raises(ReceiptsOpenError):
        await asked(bench, "commit", group="g", offsets=[late])

    assert bench.service.offsets._acting.merged("g", {}) == {}
    bench.clock.advance(answer["invisible_until_unix_ms"] - bench.clock.unix_ms())
    assert "acting" in await asked(bench, "commit", group="g", offsets=[late])


async def test_nothing_is_stored_and_the_refusal_says_why() -> None:
    bench = an_acting_bench()
    batches, answers = len(bench.log.batches), Answers()

    bench.service.sender.send(a_batch(b"x"), answers, 1)
    with pytest.raises(NoMasterError, match="nothing was stored") as refused:
        bench.role.writer()

    assert isinstance(answers.answers[0][1], NoMasterError)
    assert refused.value.is_definite
    assert len(bench.log.batches) == batches


async def test_another_replica_names_the_acting_one() -> None:
    bench = Bench()
    bench.role.become_replica()

    with pytest.raises(NotMasterError) as refused:
        await asked(bench, "ends", queues=[QUEUE])

    assert "acting" not in refused.value.details
    assert GROUP in a_view().groups


async def test_offsets_are_served_back_and_outlive_the_process() -> None:
    bench = an_acting_bench()

    await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 8}])

    [row] = (await asked(bench, "offsets", group="g"))["offsets"]
    assert row["offset"] == 8
    [lag] = (await asked(bench, "lag", group="g"))["queues"]
    assert lag["lag"] == 2
    assert OffsetsFile(bench.disk, "/data").offsets.rows("g")[1 << 16].offset == 8


async def test_what_a_master_says_is_its_projections_alone() -> None:
    bench = an_acting_bench()
    await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 8}])

    bench.role.begin_epoch(6)

    assert (await asked(bench, "offsets", group="g"))["offsets"] == []


async def test_an_offset_below_what_is_known_is_refused() -> None:
    bench = an_acting_bench()
    await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 8}])

    with pytest.raises(OffsetMovedBackError):
        await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 7}])


async def test_a_group_that_was_made_again_begins_anew_also_here() -> None:
    """R35."""
    bench = Bench()
    bench.service.view_changed(with_group(2, topic_id=2))
    bench.service.sender.send(a_batch(*[b"x"] * 10), Answers(), 0)
    bench.writer.confirm_all()
    await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 6}])
    bench.role.become_acting(5)
    bench.service.role_changed()
    await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 8}])

    bench.service.view_changed(with_group(3, topic_id=3))
    [row] = (await asked(bench, "offsets", group="g", queues=[QUEUE]))["offsets"]
    assert row["offset"] is None
    await asked(bench, "commit", group="g", offsets=[{**QUEUE, "offset": 1}])

    [row] = (await asked(bench, "offsets", group="g", queues=[QUEUE]))["offsets"]
    assert row["offset"] == 1
    await bench.service.close()


async def test_a_reset_needs_a_master() -> None:
    bench = an_acting_bench()

    with pytest.raises(NoMasterError):
        await asked(bench, "commit", group="g", reset=True, offsets=[{**QUEUE, "offset": 0}])


async def test_a_commit_whose_appointment_ended_meanwhile_is_not_called_done() -> None:
    bench = an_acting_bench()
    acting = bench.role.acting
    assert acting is not None
    offsets = [{**QUEUE, "offset": 8}]
    asking = asyncio.gather(bench.call("commit", group="g", offsets=offsets))
    await asyncio.wait([asking], timeout=0)

    await acting.end("a higher epoch")

    with pytest.raises(OutcomeUnknownError):
        await asking


async def test_locks_are_had_after_one_lease_and_commits_need_their_token() -> None:
    bench = an_acting_bench()
    acting = bench.role.acting
    assert acting is not None
    acting.start()
    try:
        lock = {"group": "g", "client_id": "c", "queues": [QUEUE]}
        with pytest.raises(NotYetAvailableError):
            await asked(bench, "lock", **lock)
        bench.clock.advance(LEASE_MS)
        with pytest.raises(NotYetAvailableError):
            await asked(bench, "lock", **lock)
        await until(lambda: bool(bench.role.asked))

        [row] = (await asked(bench, "lock", **lock))["queues"]
        assert row["token"][0] == 5
        assert row["expires_unix_ms"] == bench.clock.unix_ms() + LEASE_MS
        commit = {**QUEUE, "offset": 3}
        with pytest.raises(LockFencedError):
            await asked(bench, "commit", group="g", offsets=[{**commit, "token": [1, 1]}])
        with pytest.raises(LockFencedError):
            await asked(bench, "commit", group="g", offsets=[commit])
        await asked(bench, "commit", group="g", offsets=[{**commit, "token": row["token"]}])
        kept = bench.kept.offsets.rows("g")[1 << 16]
        assert kept.token is None  # the next master does not know it; it was checked here
        await asked(
            bench, "unlock", group="g", client_id="c", queues=[{**QUEUE, "token": row["token"]}]
        )
    finally:
        await acting.end("test")


async def test_offsets_committed_under_an_older_token_outlive_the_opening_of_locks() -> None:
    """The next master fences that token; what was in order is not to be refused for it."""
    bench = an_acting_bench()
    lock = {"group": "g", "client_id": "c", "queues": [QUEUE]}
    old = {**QUEUE, "offset": 4, "token": [1, 77]}
    await asked(bench, "commit", group="g", offsets=[old])
    assert bench.kept.offsets.rows("g")[1 << 16].token == (1, 77)
    with pytest.raises(NotYetAvailableError):
        await asked(bench, "lock", **lock)
    assert bench.kept.offsets.rows("g")[1 << 16].token is not None  # not yet: no lease has passed
    bench.clock.advance(LEASE_MS)

    with pytest.raises(NotYetAvailableError):
        await asked(bench, "lock", **lock)

    assert OffsetsFile(bench.disk, "/data").offsets.rows("g")[1 << 16].token is None
    await asked(bench, "commit", group="g", offsets=[{**old, "offset": 5}])
    assert bench.kept.offsets.rows("g")[1 << 16].token is None


async def test_no_lock_without_the_controllers_word() -> None:
    bench = an_acting_bench()
    bench.role.answer = {"ok": False, "reason": "NOT_ACTING"}
    acting = bench.role.acting
    assert acting is not None
    acting.start()
    try:
        bench.clock.advance(LEASE_MS)
        lock = {"group": "g", "client_id": "c", "queues": [QUEUE]}
        with pytest.raises(NotYetAvailableError):
            await asked(bench, "lock", **lock)
        await until(lambda: bool(bench.role.asked))
        with pytest.raises(NotYetAvailableError):
            await asked(bench, "lock", **lock)
    finally:
        await acting.end("test")


async def test_members_are_kept_with_generations_of_the_acting_epoch() -> None:
    bench = an_acting_bench()
    bench.clock.advance(2000)

    answer = await asked(
        bench, "heartbeat", group="g", client_id="c", topics=["orders"], owned=[], generation=0
    )

    assert [member["client_id"] for member in answer["members"]] == ["c"]
    assert answer["generation"] >> 32 == 5


async def test_the_metric_says_since_when() -> None:
    bench = Bench()
    metrics = Metrics(cluster="c", node_type="b", node_id="1")
    register(metrics, bench.service.counters, bench.role, bench.service.routes)

    def said() -> float:
        text = metrics.exposition()[0].decode()
        [line] = [row for row in text.splitlines() if row.startswith(NAME)]
        return float(line.rpartition(" ")[2])

    assert said() == 0
    bench.role.become_acting(5)
    assert said() == bench.clock.unix_ms() / 1000
