"""Real processes: messages that fail come again and die, once each, though masters are killed."""

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster, the_master

from paceline.admin.client import AdminClient
from paceline.admin.dead_letters import name_of
from paceline.cli.main import main
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer
from paceline.wire import properties as names

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

COUNT = 400
TIMES_MAX = 3
GROUP = "cooks"
SETTINGS = PushSettings(start="first", commit_interval_ms=100)
POLICY = {"type": "CUSTOMIZED", "next_ms": [300]}


class Kitchen:
    """What listeners saw. Each fifth message never works, the one after it not at once."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.is_repaired = False

    async def listen(self, message: ReceivedMessage) -> None:
        number = int(message.body)
        assert message.topic == "meals"
        self.calls[number] += 1
        if self.is_poison(number) and not self.is_repaired:
            raise ValueError(number)
        if number % 5 == 1 and message.reconsume_times < 2:
            raise RuntimeError(number)
        self.done[number] += 1

    @staticmethod
    def is_poison(number: int) -> bool:
        return number % 5 == 0


async def everything_in(cluster: RunningCluster, topic: str) -> list[ReceivedMessage]:
    async with PullConsumer(cluster.bootstrap) as reader:
        ranges = await reader.ranges(await reader.queues(topic))
        await reader.assign({name: found.start for name, found in ranges.items()})
        count = sum(found.end - found.start for found in ranges.values())
        messages: list[ReceivedMessage] = []
        while len(messages) < count:
            messages += await reader.poll(timeout_ms=5_000)
    return messages


def cli(cluster: RunningCluster, capsys: pytest.CaptureFixture[str], *words: str) -> list[Any]:
    capsys.readouterr()
    assert main(["dlq", *words, "--json", "--bootstrap", ",".join(cluster.bootstrap)]) == 0
    return [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_failed_messages_come_again_and_die_once_across_failovers(tmp_path: Path) -> None:
    kitchen = Kitchen()
    good = {number for number in range(COUNT) if not kitchen.is_poison(number)}
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("meals", queues=4)
            await admin.consumer_groups.create(
                GROUP, retry_max_times=TIMES_MAX, retry_policy=POLICY
            )
            async with (
                Producer(cluster.bootstrap) as producer,
                a_member(cluster, kitchen),
                a_member(cluster, kitchen),
            ):
                for first in range(0, COUNT, 100):
                    await producer.send_many(
                        [Message("meals", b"%d" % n) for n in range(first, first + 100)]
                    )
                    if first in (100, 200):
                        cluster.send_signal(await the_master(cluster), signal.SIGKILL)
                await eventually(
                    all_settled(admin, kitchen, good), within_ms=60_000, what="an end for each"
                )
            dead = await admin.dead_letters.all(GROUP, limit=COUNT)
            retries = await everything_in(cluster, f"%RETRY%{GROUP}")

            # Dead: the poison, once each, with all its attempts (S29).
            assert sorted(int(one.body) for one in dead) == sorted(set(range(COUNT)) - good)
            assert {one.reconsume_times for one in dead} == {TIMES_MAX}
            for letter in dead:
                assert kitchen.calls[int(letter.body)] >= TIMES_MAX + 1
                assert letter.properties[names.DLQ_ORIGIN_TOPIC] == "meals"
            # Sent back once each: a repeated request, or a second owner, makes no second retry.
            attempts = Counter(
                (one.properties[names.UNIQ_KEY], one.reconsume_times) for one in retries
            )
            assert set(attempts.values()) == {1}

            resent = await admin.dead_letters.resend(GROUP, map(name_of, dead), to="group")
            again = await admin.dead_letters.resend(GROUP, map(name_of, dead), to="group")
            assert [one.code for one in resent] == [None] * len(dead)
            assert [one.is_duplicate for one in again] == [True] * len(dead)
            assert [one.message_id for one in again] == [one.message_id for one in resent]
            kitchen.is_repaired = True
            async with a_member(cluster, kitchen):
                await eventually(lambda: is_true(len(kitchen.done) == COUNT), what="the rest")

    assert all(kitchen.done[int(letter.body)] >= 1 for letter in dead)


def a_member(cluster: RunningCluster, kitchen: Kitchen) -> PushConsumer:
    return PushConsumer(
        cluster.bootstrap,
        group=GROUP,
        topics=["meals"],
        listener=kitchen.listen,
        settings=SETTINGS,
    )


def all_settled(admin: AdminClient, kitchen: Kitchen, good: set[int]) -> Any:
    async def probe() -> bool:
        if not good <= set(kitchen.done):
            return False
        return len(await admin.dead_letters.all(GROUP, limit=COUNT)) >= COUNT - len(good)

    return probe


async def is_true(value: bool) -> bool:
    return value


async def test_dead_letters_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("meals", queues=1)
            await admin.consumer_groups.create(GROUP, retry_max_times=0)
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_many([Message("meals", b"%d" % (5 * n)) for n in range(3)])
        async with a_member(cluster, Kitchen()):

            async def are_dead() -> bool:
                found = await everything_in(cluster, f"%DLQ%{GROUP}")
                return len(found) == 3

            await eventually(are_dead, what="three dead letters")

        run = asyncio.to_thread
        listed = await run(cli, cluster, capsys, "list", GROUP)
        first = str(listed[0]["id"])
        [shown] = await run(cli, cluster, capsys, "show", GROUP, first)
        resent = await run(cli, cluster, capsys, "resend", GROUP, "--all")
        [again] = await run(cli, cluster, capsys, "resend", GROUP, first)
        purged = await run(cli, cluster, capsys, "purge", GROUP)
        left = await run(cli, cluster, capsys, "list", GROUP)
        kept = await run(cli, cluster, capsys, "list", GROUP, "--all")

    assert [row["body"] for row in listed] == ["0", "5", "10"]
    assert shown == listed[0]
    assert [row["topic"] for row in resent] == ["meals"] * 3
    assert (again["duplicate"], again["message_id"]) == (True, resent[0]["message_id"])
    assert purged == [{"group": GROUP, "purged": 3}]
    assert (left, kept) == ([], listed)


async def test_resent_letters_are_there_once_at_the_next_master(tmp_path: Path) -> None:
    """R34, S29: what was answered, what was under way, and both asked for again."""
    count = 60
    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("meals", queues=2)
            await admin.consumer_groups.create(GROUP, retry_max_times=0)
            async with Producer(cluster.bootstrap) as producer:
                await producer.send_many([Message("meals", b"%d" % (5 * n)) for n in range(count)])
            async with a_member(cluster, Kitchen()):

                async def are_dead() -> bool:
                    return len(await admin.dead_letters.all(GROUP, limit=count)) == count

                await eventually(are_dead, what="all dead")
            letters = [name_of(one) for one in await admin.dead_letters.all(GROUP, limit=count)]
            answered = await admin.dead_letters.resend(GROUP, letters[:20])
            master = await the_master(cluster)
            under_way = asyncio.gather(
                *(admin.dead_letters.resend(GROUP, [letter]) for letter in letters[20:])
            )
            cluster.send_signal(master, signal.SIGKILL)
            answered += [row for [row] in await under_way]
            again = await admin.dead_letters.resend(GROUP, letters)
            stored = await everything_in(cluster, "meals")

    assert [row.code for row in answered] == [None] * count
    assert {row.is_duplicate for row in again} == {True}
    assert [row.message_id for row in again] == [row.message_id for row in answered]
    bodies = Counter(int(message.body) for message in stored)
    assert bodies == {5 * n: 2 for n in range(count)}, "the first one and one that was resent"
