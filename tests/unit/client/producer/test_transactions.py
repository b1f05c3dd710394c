"""The transaction producer: when the local transaction runs, and how its end travels (R34)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import Fault

from paceline.errors import (
    BadRequestError,
    ConfigError,
    NotYetAvailableError,
    OutcomeUnknownError,
    PacelineError,
    TransactionEndedError,
)
from paceline.message import Message
from paceline.platform.runtime import pause
from paceline.producer.settings import ProducerSettings
from paceline.producer.transaction import HalfMessage, TransactionProducer, TransactionState
from paceline.records.decode import BatchView
from paceline.records.header import Kind
from paceline.wire.message_ids import OffsetMessageId, make_handle

COMMIT, ROLLBACK, UNKNOWN = TransactionState
QUICK = ProducerSettings(delivery_timeout_ms=1_500, request_timeout_ms=500)


@asynccontextmanager
async def producing(**arguments: Any) -> AsyncIterator[tuple[FakeCluster, TransactionProducer]]:
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 1)
        arguments.setdefault("settings", QUICK)
        async with TransactionProducer(cluster.controller, group="payers", **arguments) as producer:
            yield cluster, producer


def the_batch(cluster: FakeCluster) -> BatchView:
    """The only one that was sent."""
    [stored] = cluster.logs["g1"].queues[1, 0]
    return BatchView(stored.data)


def told(half: HalfMessage) -> TransactionState:
    assert isinstance(half.arg, TransactionState)
    return half.arg


async def later(half: HalfMessage) -> TransactionState:
    await pause(1)
    return told(half)


def a_question(unique_key: str = "k", **more: Any) -> dict[str, Any]:
    """What a broker asks."""
    return {
        "transaction_id": make_handle("tx", OffsetMessageId("g1", 96, 0)),
        "unique_key": unique_key,
        "topic": "t",
        "queue": 0,
        "store_unix_ms": 1,
        "born_unix_ms": 1,
        "body": "a",
        "key": None,
        "tag": None,
        "properties": {},
        "checks": 1,
        **more,
    }


async def until(is_true: Any) -> None:
    async with asyncio.timeout(5):
        while not is_true():
            await pause(1)


@pytest.mark.parametrize("execute", [told, later])
@pytest.mark.parametrize(
    ("state", "ended"), [(COMMIT, "COMMITTED"), (ROLLBACK, "ROLLED_BACK"), (UNKNOWN, None)]
)
async def test_what_the_local_transaction_says_is_what_the_broker_is_told(
    execute: Any, state: TransactionState, ended: str | None
) -> None:
    async with producing(execute=execute) as (cluster, producer):
        result = await producer.send_in_transaction(Message("t", b"a", key="k", tag="x"), state)

        known = cluster.group_calls.ended
        assert known.get(result.transaction_id) == ended
        assert (result.state, result.is_ended) == (state, ended is not None)
        view = the_batch(cluster)
        header = view.header
        assert header.kind == Kind.HALF
        assert view.properties() == [{"PGROUP": "payers"}]
        assert (view.keys(), view.tags()) == (["k"], ["x"])
        producer_id = f"{header.producer_id:016x}"
        assert result.unique_key == f"{producer_id}:0:1:0:0"


async def test_a_local_transaction_that_raises_is_unknown_and_not_hidden() -> None:
    def execute(half: HalfMessage) -> TransactionState:
        raise ValueError("no money")

    async with producing(execute=execute) as (cluster, producer):
        result = await producer.send_in_transaction(Message("t", b"a"))

        assert (result.state, str(result.error)) == (UNKNOWN, "no money")
        assert cluster.group_calls.ended == {}


async def test_a_half_of_unknown_fate_runs_nothing_and_is_rolled_back_when_asked() -> None:
    ran: list[HalfMessage] = []
    asked: list[HalfMessage] = []

    def execute(half: HalfMessage) -> TransactionState:
        ran.append(half)
        return COMMIT

    def check(half: HalfMessage) -> TransactionState:
        asked.append(half)
        return COMMIT

    async with producing(execute=execute, check=check) as (cluster, producer):
        cluster.fault = lambda broker, header: Fault(is_unknown=True)
        with pytest.raises(OutcomeUnknownError):
            await producer.send_in_transaction(Message("t", b"a"))
        [key] = producer._abandoned
        question = a_question(key)
        cluster.group_calls.ask_producers(question)
        await until(lambda: cluster.group_calls.ended)

        assert cluster.group_calls.ended == {question["transaction_id"]: "ROLLED_BACK"}
        assert (ran, asked) == ([], [])


async def test_of_a_half_of_unknown_fate_that_has_a_name_the_check_decides() -> None:
    """Whoever gave it the name sends it again under that name, and may have committed that one."""
    async with producing(check=lambda half: COMMIT) as (cluster, producer):
        cluster.fault = lambda broker, header: Fault(is_unknown=True)
        named = Message("t", b"a", properties={"UNIQ_KEY": "01ab"})
        with pytest.raises(OutcomeUnknownError):
            await producer.begin(named, is_library=True)
        question = a_question("01ab")
        cluster.group_calls.ask_producers(question)
        await until(lambda: cluster.group_calls.ended)

        assert cluster.group_calls.ended == {question["transaction_id"]: "COMMITTED"}


async def test_a_refused_half_runs_nothing() -> None:
    async with producing(execute=told) as (_, producer):
        with pytest.raises(BadRequestError, match="cannot be delayed"):
            await producer.send_in_transaction(Message("t", b"a", delay_ms=5), COMMIT)
        message = Message("t", b"a", properties={"PGROUP": "thieves"})
        with pytest.raises(BadRequestError, match="belongs to the system"):
            await producer.send_in_transaction(message, COMMIT)


async def test_without_a_local_transaction_there_is_only_begin() -> None:
    async with producing() as (cluster, producer):
        with pytest.raises(ConfigError, match="begin"):
            await producer.send_in_transaction(Message("t", b"a"))
        transaction = await producer.begin(Message("t", b"a"), check_immunity_s=60)
        await transaction.commit()
        await transaction.commit()
        with pytest.raises(TransactionEndedError) as caught:
            await transaction.rollback()

        assert caught.value.details["outcome"] == "COMMITTED"
        assert the_batch(cluster).properties()[0]["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "60"


async def test_ends_of_many_ride_in_few_calls() -> None:
    async with producing(execute=told) as (cluster, producer):
        await asyncio.gather(
            *(producer.send_in_transaction(Message("t", b"a"), COMMIT) for _ in range(500))
        )

        assert len(cluster.group_calls.ended) == 500
        assert cluster.group_calls.end_calls < 50


@pytest.mark.parametrize("error", [NotYetAvailableError("soon"), OutcomeUnknownError("a failover")])
async def test_an_end_is_repeated_until_it_is_definite(error: PacelineError) -> None:
    async with producing() as (cluster, producer):
        transaction = await producer.begin(Message("t", b"a"))
        cluster.group_calls.failures = [error, error]
        cluster.group_calls.put_off.add(transaction.transaction_id)

        await transaction.commit()

        assert cluster.group_calls.ended == {transaction.transaction_id: "COMMITTED"}
        assert cluster.group_calls.end_calls == 2


async def test_an_end_without_an_answer_in_time_is_unknown() -> None:
    async with producing() as (cluster, producer):
        transaction = await producer.begin(Message("t", b"a"))
        cluster.group_calls.failures = [NotYetAvailableError("soon")] * 1000

        with pytest.raises(OutcomeUnknownError, match="will ask a producer"):
            await transaction.commit()


async def test_a_forged_id_is_refused_at_once() -> None:
    async with producing() as (_, producer):
        with pytest.raises(BadRequestError):
            producer.end("tx.g1:60:0.00000000", is_commit=True)


async def test_a_producer_of_the_group_answers_what_another_one_left_open() -> None:
    asked: list[HalfMessage] = []

    async def check(half: HalfMessage) -> TransactionState:
        asked.append(half)
        return COMMIT

    async with producing(check=check) as (cluster, _):
        question = a_question(body_base64="/w==", key="order-1")
        del question["body"]
        cluster.group_calls.ask_producers(question)
        await until(lambda: cluster.group_calls.ended)

        assert cluster.group_calls.ended == {question["transaction_id"]: "COMMITTED"}
        [half] = asked
        assert (half.body, half.key, half.checks) == (b"\xff", "order-1", 1)


async def test_a_checker_that_does_not_know_or_fails_ends_nothing() -> None:
    failures: list[Any] = []
    asked: list[str] = []

    def check(half: HalfMessage) -> TransactionState:
        asked.append(half.unique_key)
        if half.unique_key == "bad":
            raise ValueError("database away")
        return UNKNOWN

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with producing(check=check) as (cluster, _):
        cluster.group_calls.ask_producers(a_question("bad"))
        cluster.group_calls.ask_producers(a_question("unsure"))
        await until(lambda: len(asked) == 2)
        await until(lambda: failures)

        assert [str(context["exception"]) for context in failures] == ["database away"]
        assert cluster.group_calls.ended == {}


async def test_a_transaction_that_runs_here_now_is_not_looked_up() -> None:
    running: list[HalfMessage] = []
    may_end = asyncio.Event()

    async def execute(half: HalfMessage) -> TransactionState:
        running.append(half)
        await may_end.wait()
        return COMMIT

    def check(half: HalfMessage) -> TransactionState:
        return ROLLBACK

    async with producing(execute=execute, check=check) as (cluster, producer):
        sending = asyncio.gather(producer.send_in_transaction(Message("t", b"a")))
        await until(lambda: running)
        mine = running[0]
        question = a_question(mine.unique_key, transaction_id=mine.transaction_id)
        cluster.group_calls.ask_producers(question)
        await until(lambda: not cluster.group_calls.questions)
        may_end.set()

        [result] = await sending
        assert result.is_ended
        assert cluster.group_calls.ended == {mine.transaction_id: "COMMITTED"}
