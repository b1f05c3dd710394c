"""Allocation strategies: each queue has one owner, and little moves when members come and go."""

from collections.abc import Callable

import pytest

from paceline.consumer.group.allocation import (
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    Allocation,
    allocate_averagely,
    allocate_averagely_by_circle,
    room_in_name,
)
from paceline.errors import ConfigError
from paceline.platform.runtime import SeededRandom
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId

COMPLETE: dict[str, Allocation] = {
    "averagely": allocate_averagely,
    "by-circle": allocate_averagely_by_circle,
    "consistent-hash": AllocateConsistentHash(),
    "machine-room": AllocateByMachineRoom({"east", "west", ""}),
    "nearby": AllocateMachineRoomNearby(room_in_name),
    "nearby-by-circle": AllocateMachineRoomNearby(
        room_in_name, within=allocate_averagely_by_circle
    ),
}


def drawn(seed: int) -> tuple[list[QueueKey], list[str]]:
    """Queues over some broker groups, and members, of three rooms or of none."""
    random = SeededRandom(f"allocation-{seed}")
    groups = ["east@g1", "west@g2", "north@g3", "g4"][: int(random.uniform(1, 5))]
    queues = [
        QueueKey(TopicId(1), GroupName(group), QueueId(queue))
        for group in sorted(groups)
        for queue in range(int(random.uniform(0, 9)))
    ]
    rooms = ["east@", "west@", ""]
    members = sorted(
        f"{rooms[int(random.uniform(0, 3))]}c{number}"
        for number in range(int(random.uniform(1, 8)))
    )
    return queues, members


@pytest.mark.parametrize("strategy", COMPLETE)
@pytest.mark.parametrize("seed", range(50))
def test_every_queue_has_exactly_one_owner(strategy: str, seed: int) -> None:
    queues, members = drawn(seed)
    allocate = COMPLETE[strategy]

    shares = [allocate(queues, members, member) for member in members]

    wanted = queues
    if strategy == "machine-room":
        wanted = [queue for queue in queues if not queue.group.startswith("north@")]
    assert sorted(queue for share in shares for queue in share) == sorted(wanted)
    assert shares == [allocate(queues, members, member) for member in members]


@pytest.mark.parametrize("allocate", [allocate_averagely, allocate_averagely_by_circle])
@pytest.mark.parametrize("seed", range(20))
def test_average_shares_differ_by_one_at_most(allocate: Allocation, seed: int) -> None:
    queues, members = drawn(seed)

    sizes = [len(allocate(queues, members, member)) for member in members]

    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_a_consistent_hash_moves_only_the_queues_of_who_left(seed: int) -> None:
    queues, members = drawn(seed)
    members = [*members, "zz"]
    allocate = AllocateConsistentHash()
    before = {member: set(allocate(queues, members, member)) for member in members}

    left = [member for member in members if member != "zz"]
    after = {member: set(allocate(queues, left, member)) for member in left}

    for member in left:
        assert before[member] <= after[member]
    moved = set().union(*(after[member] - before[member] for member in left))
    assert moved == before["zz"]


def test_more_virtual_nodes_are_more_even() -> None:
    queues = [QueueKey(TopicId(1), GroupName("g1"), QueueId(queue)) for queue in range(1000)]
    members = ["a", "b", "c", "d"]

    def largest(nodes: int) -> int:
        allocate = AllocateConsistentHash(virtual_nodes=nodes)
        return max(len(allocate(queues, members, member)) for member in members)

    assert largest(500) < largest(1)
    with pytest.raises(ConfigError):
        AllocateConsistentHash(virtual_nodes=0)


def test_queues_go_to_members_of_their_room_and_lonely_ones_to_all() -> None:
    queues = [
        QueueKey(TopicId(1), GroupName(group), QueueId(queue))
        for group in ("east@g1", "north@g3", "west@g2")
        for queue in range(2)
    ]
    members = ["east@a", "east@b", "west@c"]
    allocate = AllocateMachineRoomNearby(room_in_name)

    def rooms(member: str) -> list[str]:
        return [queue.group for queue in allocate(queues, members, member)]

    assert rooms("east@a") == ["east@g1", "north@g3"]
    assert rooms("east@b") == ["east@g1", "north@g3"]
    assert rooms("west@c") == ["west@g2", "west@g2"]


def test_rooms_may_be_told_by_the_application() -> None:
    queues = [QueueKey(TopicId(1), GroupName(group), QueueId(0)) for group in ("g1", "g2")]
    room: Callable[[GroupName], str] = {
        GroupName("g1"): "here",
        GroupName("g2"): "there",
    }.__getitem__

    assert AllocateByMachineRoom({"there"}, room_of_group=room)(queues, ["a"], "a") == queues[1:]
    nearby = AllocateMachineRoomNearby(lambda client_id: "here", room_of_group=room)
    assert nearby(queues, ["a"], "a") == queues


def test_by_config_gives_what_is_named_and_is_there() -> None:
    queues = [QueueKey(TopicId(1), GroupName("g1"), QueueId(queue)) for queue in range(3)]

    allocate = AllocateByConfig([("g1", 2), ("g1", 7)])

    assert allocate(queues, ["a", "b"], "b") == queues[2:]
