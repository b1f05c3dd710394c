"""When a group needs its operator."""

from collections.abc import Collection

import pytest

from paceline.types import GroupName, Incarnation, ReplicaId, SetEpoch
from paceline.wire.cluster import GroupSettings
from paceline_chaos.stuck import why_operator
from paceline_controller.state.model import Group, Replica


def group(members: int, *, suspects: Collection[int] = (), lost: Collection[int] = ()) -> Group:
    """With the replicas 1, 2 ... as members."""
    made = Group(group=GroupName("g1"), settings=GroupSettings())
    for number in range(1, members + 1):
        made.replicas[ReplicaId(number)] = Replica(
            replica_id=ReplicaId(number),
            store_id=f"{number:032}",
            incarnation=Incarnation(1),
            client_address="127.0.0.1:1",
            replication_address="127.0.0.1:2",
            is_learner=False,
            is_empty=False,
            is_suspect=number in suspects,
            is_lost=number in lost,
            end=0,
            view_version=1,
        )
    made.sync_state_set = set(made.replicas)
    made.set_epoch = SetEpoch(1)
    return made


@pytest.mark.parametrize(
    ("suspects", "lost", "present", "reason"),
    [
        ((), (), (1, 2, 3), None),
        ((), (), (3,), None),
        ((2, 3), (), (1, 2, 3), None),  # all report, so a suspect may be elected
        ((2, 3), (), (2, 3), "suspect"),
        ((2, 3), (), (2, 3, 4), "suspect"),  # 4 is what came of another disk of 1
        ((2,), (), (2, 3), None),
        ((), (), (), "lost"),
        ((), (1, 2, 3), (1, 2, 3), "lost"),
        ((2,), (3,), (2, 3), "suspect"),
    ],
)
def test_a_group_waits_if_nobody_may_be_elected(
    suspects: Collection[int], lost: Collection[int], present: Collection[int], reason: str | None
) -> None:
    found = why_operator(
        group(3, suspects=suspects, lost=lost), present={ReplicaId(number) for number in present}
    )

    assert found == reason


def test_the_last_member_of_a_set_below_min_waits_if_it_is_suspect() -> None:
    assert why_operator(group(1, suspects=(1,)), present={ReplicaId(1)}) == "suspect"
    assert why_operator(group(1), present={ReplicaId(1)}) is None


def test_a_group_without_members_has_not_begun() -> None:
    assert why_operator(group(0), present=()) is None
