"""What each view asks of a broker, as one table: no clock, no disk, no network."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.replication.builders import a_view

from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire.cluster import ClusterView, GroupView
from paceline_broker.ports import RoleState
from paceline_broker.role.machine import (
    Begin,
    EpochAdopted,
    GroupChanged,
    Returned,
    RoleFacts,
    RoleMachine,
    RoleReady,
)

GROUP = GroupName("g1")
REPLICA_1 = {"replica_id": ReplicaId(1), "store_id": "store-1"}
REPLICA_2 = {"replica_id": ReplicaId(2), "store_id": "store-2"}
VACANT = a_view(epoch=3, master=None)
ACTING = replace(VACANT, acting=ReplicaId(2), acting_incarnation=Incarnation(1))
DAMAGED = RoleReady(leave="the log is damaged", is_fenced=True, needs_repair=True, is_present=True)


def facts(**changes: Any) -> RoleFacts:
    """Replica 2 in epoch 3, without a role."""
    return RoleFacts(
        **{
            **REPLICA_2,
            "incarnation": Incarnation(1),
            "epoch": MasterEpoch(3),
            "state": RoleState.FENCED,
            "is_leading": False,
            "following": None,
            "is_excluded": False,
            "may_return": False,
            "is_damaged": False,
            "is_stopping": False,
            **changes,
        }
    )


def step(kind: Any, group: GroupView, **changes: Any) -> RoleReady:
    return RoleMachine(GROUP).step(kind(group, facts(**changes)))


@pytest.mark.parametrize(
    ("kind", "group", "changes", "expected"),
    [
        pytest.param(
            GroupChanged, a_view(epoch=3), {}, RoleReady(begin=Begin.REPLICA, is_present=True),
            id="a master of this epoch is followed",
        ),
        pytest.param(
            GroupChanged, a_view(epoch=3), {"following": ReplicaId(1)}, RoleReady(is_present=True),
            id="nobody follows twice",
        ),
        pytest.param(
            GroupChanged, a_view(epoch=2), {}, RoleReady(), id="an older epoch asks for nothing"
        ),
        pytest.param(
            GroupChanged, a_view(epoch=4), {},
            RoleReady(leave="epoch 4 begins", adopt=MasterEpoch(4)),
            id="a new epoch is adopted before anything is done in it",
        ),
        pytest.param(
            EpochAdopted, a_view(epoch=3), REPLICA_1, RoleReady(begin=Begin.MASTER),
            id="the elected replica leads",
        ),
        pytest.param(
            GroupChanged, a_view(epoch=3), REPLICA_1, RoleReady(is_present=True),
            id="a mastership that ended does not come back in its epoch",
        ),
        pytest.param(
            EpochAdopted, a_view(epoch=3, incarnations={1: 2}), REPLICA_1 | {"incarnation": 3},
            RoleReady(is_present=True),
            id="the master is an earlier start of this replica",
        ),
        pytest.param(
            EpochAdopted, a_view(epoch=3), REPLICA_1 | {"is_excluded": True},
            RoleReady(is_fenced=True, needs_repair=True),
            id="an excluded store does not lead",
        ),
        pytest.param(
            EpochAdopted, a_view(epoch=3), REPLICA_1 | {"is_damaged": True},
            RoleReady(is_fenced=True, needs_repair=True),
            id="a damaged log does not lead",
        ),
        pytest.param(
            EpochAdopted, a_view(epoch=3), REPLICA_1 | {"is_stopping": True},
            RoleReady(is_fenced=True),
            id="a process that ends takes no role",
        ),
        pytest.param(
            EpochAdopted, ACTING, {}, RoleReady(begin=Begin.ACTING_MASTER),
            id="the appointed replica acts",
        ),
        pytest.param(
            EpochAdopted, ACTING, {"is_damaged": True},
            RoleReady(is_fenced=True, needs_repair=True),
            id="a damaged log does not act",
        ),
        pytest.param(
            GroupChanged, a_view(epoch=3), REPLICA_1 | {"is_leading": True},
            RoleReady(is_committed=True, is_present=True),
            id="a master hears of the committed set",
        ),
        pytest.param(
            GroupChanged, VACANT, REPLICA_1 | {"is_leading": True},
            RoleReady(leave="mastership was taken back", is_fenced=True, is_present=True),
            id="mastership is taken back",
        ),
        pytest.param(GroupChanged, a_view(epoch=3), {"is_damaged": True}, DAMAGED, id="damaged"),
        pytest.param(
            GroupChanged, a_view(epoch=3),
            {"is_damaged": True, "is_excluded": True, "may_return": True},
            RoleReady(leave="it comes back", returns=True),
            id="an excluded store that nobody counts on comes back",
        ),
        pytest.param(
            Returned, a_view(epoch=3), {}, RoleReady(begin=Begin.REPLICA, is_present=True),
            id="it follows then",
        ),
        pytest.param(
            Returned, a_view(epoch=3), {"is_excluded": True}, RoleReady(is_present=True),
            id="unless the view changed meanwhile",
        ),
        pytest.param(
            GroupChanged, a_view(epoch=3), {"is_excluded": True}, RoleReady(is_present=True),
            id="an excluded store does not follow",
        ),
        pytest.param(
            GroupChanged, a_view(epoch=9, incarnations={2: 1}), {"incarnation": 2}, RoleReady(),
            id="a view from before the registration of this start",
        ),
        pytest.param(
            GroupChanged, a_view(epoch=3), {"replica_id": None}, RoleReady(), id="not registered"
        ),
        pytest.param(
            GroupChanged, a_view(epoch=3),
            {"replica_id": ReplicaId(9), "state": RoleState.ACTING_MASTER},
            RoleReady(leave="this replica is not registered any more", is_fenced=True),
            id="an acting master was removed",
        ),
    ],
)  # fmt: skip
def test_what_a_view_asks_for(
    kind: Any, group: GroupView, changes: dict[str, Any], expected: RoleReady
) -> None:
    assert step(kind, group, **changes) == expected


@pytest.mark.parametrize("other", [{"incarnation": 1}, {"incarnation": 2, "store_id": "copy"}])
def test_another_start_of_the_same_replica_ends_this_one(other: dict[str, Any]) -> None:
    ready = step(GroupChanged, a_view(epoch=9, incarnations={2: 2}), **other)

    assert ready.fatal is not None
    assert "only one may run on a data folder" in ready.fatal
    assert ready.leave is not None
    assert ready.adopt is None


def test_the_master_does_not_change_within_an_epoch() -> None:
    with pytest.raises(AssertionError, match="within an epoch"):
        step(GroupChanged, a_view(epoch=3), following=ReplicaId(3))


def test_views_are_taken_in_order_of_their_version() -> None:
    machine = RoleMachine(GROUP)

    taken = [machine.take(a_cluster_view(version), "c") for version in (3, 2, 3, 4)]

    assert taken == [True, False, False, True]
    assert machine.view is not None
    assert machine.view.version == 4


def test_a_view_of_another_cluster_waits_for_the_answer_to_the_registration() -> None:
    machine = RoleMachine(GROUP)
    assert not machine.take(a_cluster_view(7), None)
    assert not machine.take(a_cluster_view(6), None)

    assert machine.registered("c")

    assert machine.group_view == VACANT
    assert machine.view is not None
    assert machine.view.version == 7
    assert not machine.take(a_cluster_view(8, cluster="other"), "c")


def a_cluster_view(version: int, *, cluster: str = "c") -> ClusterView:
    return ClusterView(cluster_id=cluster, version=version, groups={GROUP: VACANT})
