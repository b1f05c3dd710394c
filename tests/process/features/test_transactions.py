"""Transactions on real processes that are killed: nobody sees a half, everybody a commit, once.

Judged by what every queue holds in the end (S24, R34): what was told to be committed is there
exactly once, what was rolled back never was, and what nobody ended was decided by a check.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster, the_master
from tests.support.process.load import create_topic, pulled_everything

from paceline.errors import PacelineError, TransactionEndedError
from paceline.message import Message
from paceline.net.http import HttpClient
from paceline.producer.settings import ProducerSettings
from paceline.producer.transaction import HalfMessage, TransactionProducer, TransactionState

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

TOPIC = "payments"
COMMIT, ROLLBACK, UNKNOWN = TransactionState
PATIENT = ProducerSettings(delivery_timeout_ms=20_000)
WORKERS = 16
KILLS = 2
PER_KILL = 600

LEAVER = """
import asyncio, sys
from paceline import Message, TransactionProducer

async def main():
    async with TransactionProducer(sys.argv[1], group="payers") as producer:
        for number in range(20):
            message = Message("payments", b"left-%d" % number, key=str(number))
            await producer.begin(message, check_immunity_s=0 if number % 4 else 1)
        print("begun", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def bodies(cluster: RunningCluster) -> Counter[bytes]:
    """Every message of the topic, and how often it is there."""
    return Counter((await pulled_everything(cluster, TOPIC)).values())


async def open_count(cluster: RunningCluster) -> int:
    """Half messages that nobody has ended, as the master says."""
    http = HttpClient()
    try:
        master = cluster.node(await the_master(cluster))
        answer = await http.get(master["address"], "/v1/transactions", timeout_ms=3000)
        return int(answer["open"])
    finally:
        await http.close()


async def all_ended(cluster: RunningCluster) -> None:
    async def is_so() -> bool:
        return await open_count(cluster) == 0

    await eventually(is_so, within_ms=60_000, what="the end of all transactions")


async def test_a_half_is_ended_at_the_next_master_and_only_once(tmp_path: Path) -> None:
    """R34: state and outcomes came with the log."""
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        await create_topic(cluster, TOPIC)
        async with TransactionProducer(
            cluster.bootstrap, group="payers", settings=PATIENT
        ) as producer:
            begun = [
                await producer.begin(Message(TOPIC, b"%d" % number, key=str(number)))
                for number in range(40)
            ]
            await asyncio.gather(*(transaction.commit() for transaction in begun[:10]))
            assert sum((await bodies(cluster)).values()) == 10
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            await asyncio.gather(
                *(transaction.commit() for transaction in begun[:30]),
                *(transaction.rollback() for transaction in begun[30:]),
            )
            for transaction in begun[:30]:
                with pytest.raises(TransactionEndedError):
                    await transaction.rollback()
            for transaction in begun[30:]:
                with pytest.raises(TransactionEndedError):
                    await transaction.commit()

        assert await open_count(cluster) == 0
        assert await bodies(cluster) == {b"%d" % number: 1 for number in range(30)}


async def test_what_a_dead_producer_left_open_another_one_of_its_group_ends(
    tmp_path: Path,
) -> None:
    asked: list[HalfMessage] = []

    def check(half: HalfMessage) -> TransactionState:
        asked.append(half)
        return COMMIT if int(half.key or 0) % 2 else ROLLBACK

    with running_cluster(tmp_path / "data") as cluster:
        await create_topic(cluster, TOPIC)
        leaver = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            LEAVER,
            ",".join(cluster.bootstrap),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert leaver.stdout is not None
        assert await leaver.stdout.readline() == b"begun\n"
        leaver.kill()
        await leaver.wait()
        assert await bodies(cluster) == {}
        async with (
            TransactionProducer(cluster.bootstrap, group="others", check=lambda half: ROLLBACK),
            TransactionProducer(cluster.bootstrap, group="payers", check=check),
        ):
            await all_ended(cluster)

        expected = {b"left-%d" % number: 1 for number in range(20) if number % 2}
        assert await bodies(cluster) == expected
    assert {half.body for half in asked} == {b"left-%d" % number for number in range(20)}


async def test_kills_of_the_master_under_transactions_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    decided: dict[bytes, TransactionState] = {}
    """What the local transactions did: the application's own record."""
    told: dict[bytes, TransactionState] = {}
    """What the broker has confirmed."""

    def execute(half: HalfMessage) -> TransactionState:
        number = int(half.body)
        decided[half.body] = COMMIT if number % 3 else ROLLBACK
        return UNKNOWN if number % 10 == 0 else decided[half.body]

    def check(half: HalfMessage) -> TransactionState:
        return decided.get(half.body, ROLLBACK)

    numbers = iter(range(1_000_000))
    stop_at = [PER_KILL]

    async def work(producer: TransactionProducer) -> None:
        while len(decided) < stop_at[0]:
            body = b"%d" % next(numbers)
            try:
                result = await producer.send_in_transaction(
                    Message(TOPIC, body), check_immunity_s=2
                )
            except PacelineError:
                continue  # the half is not stored, or is rolled back when asked about
            if result.is_ended:
                told[body] = result.state

    with running_cluster(tmp_path / "data", restart=True) as cluster:
        await create_topic(cluster, TOPIC)
        async with TransactionProducer(
            cluster.bootstrap, group="payers", execute=execute, check=check, settings=PATIENT
        ) as producer:
            for _ in range(KILLS + 1):
                await asyncio.gather(*(work(producer) for _ in range(WORKERS)))
                stop_at[0] += PER_KILL
                cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            await all_ended(cluster)
        stored = await bodies(cluster)

    committed = {body for body, state in told.items() if state is COMMIT}
    rolled_back = {body for body, state in told.items() if state is ROLLBACK}
    assert len(committed) > PER_KILL
    assert set(stored.values()) == {1}, "a commit was carried out twice"
    assert committed <= stored.keys()
    assert not rolled_back & stored.keys()
    # What was not told was decided by a check, by the same record of the application.
    assert stored.keys() == {body for body, state in decided.items() if state is COMMIT}
