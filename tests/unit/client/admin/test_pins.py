"""Pins (R26) by the admin client: at the masters of broker groups, through failovers."""

import asyncio

import pytest
from tests.support.client.pins import a_master
from tests.support.http.http import send

from paceline import QueueName
from paceline.errors import (
    BadNameError,
    BadRequestError,
    DeadlineError,
    GroupNotFoundError,
    OffsetOutOfRangeError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.types import GroupName, QueueId, TopicName

G1 = GroupName("g1")


def queue(number: int, topic: str = "orders", group: str = "g1") -> QueueName:
    return QueueName(TopicName(topic), GroupName(group), QueueId(number))


async def test_pins_are_added_listed_and_removed() -> None:
    async with a_master() as (_, door, admin):
        for body in "abc":
            await send(door, body)

        added = await admin.pins.add("job-1", lease_ms=60_000, queues={queue(0): 1, queue(1): None})
        whole = await admin.pins.add("backup", lease_ms=1_000)
        listed = await admin.pins.all()

        stored = door.role.projections.consume_queues.get(1 << 16)
        assert stored is not None
        assert added[G1].position == stored.position_of(1)
        assert listed == {G1: listed[G1]}
        assert listed[G1].pins == (whole[G1], added[G1])
        assert await admin.pins.remove("job-1") == {G1}
        assert await admin.pins.remove("job-1") == frozenset()
        assert [pin.owner for pin in (await admin.pins.all("g1"))[G1].pins] == ["backup"]


async def test_what_cannot_be_pinned_is_refused_by_name() -> None:
    async with a_master() as (_, door, admin):
        await send(door, "a")

        async def refusal(error: type[Exception], match: str, **arguments: object) -> None:
            given: dict[str, object] = {"owner": "job", "lease_ms": 60_000, **arguments}
            with pytest.raises(error, match=match):
                await admin.pins.add(given.pop("owner"), **given)  # type: ignore[arg-type]

        await refusal(BadNameError, "owner must be", owner="a/b")
        await refusal(BadRequestError, "lease_ms must be .* 604800000", lease_ms=604_800_001)
        await refusal(BadRequestError, "lease_ms must be .* 1000", lease_ms=999)
        await refusal(GroupNotFoundError, "no broker group g7; there is g1", group="g7")
        await refusal(TopicNotFoundError, "nothing does not exist", queues={queue(0, "nothing"): 0})
        await refusal(QueueNotFoundError, "no queue g1/2; group g1 has 2", queues={queue(2): 0})
        await refusal(OffsetOutOfRangeError, "group g1: offset 9 .* end, 1", queues={queue(0): 9})
        with pytest.raises(GroupNotFoundError):
            await admin.pins.all("g7")
        assert (await admin.pins.all())[G1].pins == ()


async def test_a_pin_finds_the_new_master() -> None:
    async with a_master() as (cluster, door, admin):
        door.role.become_replica()
        async with asyncio.TaskGroup() as tasks:
            pending = tasks.create_task(admin.pins.add("job", lease_ms=60_000))
            while door.service.counters.errors.get("NOT_MASTER", 0) < 2:
                await asyncio.wait({pending}, timeout=0.01)
            door.role.begin_epoch(2)

        assert pending.result()[G1].owner == "job"


async def test_a_group_without_a_master_is_named_and_so_is_what_was_pinned() -> None:
    async with a_master(groups=2) as (cluster, door, admin):
        cluster.elect("g2", None)

        with pytest.raises(DeadlineError, match=r"group g2: .* no master; pinned already in g1"):
            await admin.pins.add("job", lease_ms=60_000)

        assert door.role.projections.pins.get("job") is not None
