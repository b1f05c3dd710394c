"""INV-10: whatever is applied, machines stay equal, nothing raises, and the invariants hold."""

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.controller.builders import START_MS

from paceline.types import ReplicaId
from paceline_controller.state import Machine
from paceline_controller.state.recovery import VERSIONS_SKIPPED

small = st.integers(min_value=0, max_value=4)
flags = st.booleans()
groups = st.sampled_from(["g1", "g2"])
clusters = st.sampled_from([None, "x", "old", "older"])
pairs = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 3)).map(list), max_size=4, unique_by=lambda p: p[0]
)
GROUP_SETTINGS = {
    "total_replicas": 3,
    "min_in_sync_replicas": 2,
    "durability": "fsync",
    "all_ack_in_sync_state_set": True,
    "in_sync_replicas": 1,
    "enable_auto_in_sync_replicas": False,
}


def record(kind: str, **members: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(kind), **members})


of_master = {
    "group": groups,
    "master": st.integers(1, 4),
    "master_incarnation": st.integers(1, 3),
    "master_epoch": st.integers(1, 4),
    "confirm": st.integers(0, 9),
}
kinds = st.one_of(
    record("open_session"),
    record(
        "lead",
        controller_id=st.sampled_from(["c1", "c2"]),
        term=small,
        cluster_id=st.just("x"),
        cluster_name=st.just("n"),
    ),
    record(
        "register_replica",
        group=groups,
        store_id=st.sampled_from(["a", "b", "c", "d"]),
        replica_id=st.none() | st.integers(1, 4),
        incarnation=st.integers(1, 4),
        client_address=st.just("h:1"),
        replication_address=st.just("h:2"),
        end=st.integers(0, 9),
        confirm=st.integers(0, 9),
        last_epoch=small,
        is_learner=flags,
        is_empty=flags,
        is_unclean=flags,
        is_suspect=flags,
        defaults=st.just(GROUP_SETTINGS),
        cluster_id=clusters,
    ),
    record(
        "present_store",
        group=groups,
        cluster_id=clusters.filter(bool),
        store_id=st.sampled_from(["a", "b", "c", "d"]),
        replica_id=st.integers(1, 4),
        incarnation=st.integers(2, 4),
        client_address=st.just("h:1"),
        replication_address=st.just("h:2"),
        epoch=small,
        last_epoch=small,
        start=st.just(0),
        end=st.integers(0, 9),
        confirm=st.integers(0, 9),
        topics=st.sampled_from([[], [["t", 1, 2]], [["u", 1, 2], ["t", 2, 1]]]),
        topic_id_max=small,
        is_learner=flags,
        is_unclean=flags,
        is_suspect=flags,
        is_damaged=flags,
        leases_ms=st.integers(1, 9),
    ),
    record(
        "recover_group",
        group=groups,
        store_id=st.sampled_from(["a", "b", "c", "d"]),
        gives_up_missing=flags,
        defaults=st.just(GROUP_SETTINGS),
    ),
    record("forget_store", store_id=st.sampled_from(["a", "b", "c", "d"])),
    record(
        "elect_master",
        group=groups,
        term=small,
        master_epoch=small,
        set_epoch=small,
        members=pairs,
        winner=st.integers(1, 4),
        position=st.integers(0, 9),
        floor=st.integers(0, 9),
        without=st.lists(st.integers(1, 4), max_size=3),
        is_first=flags,
        is_unclean=flags,
        have_all_reported=flags,
        reason=st.just("r"),
    ),
    record(
        "appoint_acting",
        group=groups,
        term=small,
        master_epoch=small,
        set_epoch=small,
        members=pairs,
        acting=st.integers(1, 4),
        incarnation=st.integers(1, 3),
        reason=st.just("r"),
    ),
    record(
        "open_acting_locks",
        group=groups,
        replica_id=st.integers(1, 4),
        incarnation=st.integers(1, 3),
        master_epoch=st.integers(1, 4),
        leases_ms=st.integers(1, 9),
    ),
    record("alter_sync_state_set", **of_master, set_epoch=small, members=pairs),
    record("open_epoch", **of_master),
    record("raise_confirm_floor", **of_master),
    record(
        "create_topic",
        topic=st.sampled_from(["t", "u", "bad name"]),
        queues=st.dictionaries(groups, small, max_size=2),
    ),
    record(
        "create_static_topic",
        topic=st.sampled_from(["t", "u"]),
        logical_queues=small,
        groups=st.lists(groups, max_size=2),
        perm=st.just(6),
        message_type=st.sampled_from(["NORMAL", "MIXED"]),
        attributes=st.just({}),
    ),
    record(
        "grow_static_topic",
        topic=st.sampled_from(["t", "u"]),
        topic_id=st.integers(1, 9),
        logical_queues=small,
        groups=st.lists(groups, max_size=2),
    ),
    record(
        "remap_queue",
        topic=st.sampled_from(["t", "u"]),
        topic_id=st.integers(1, 9),
        logical_queue=small,
        group=groups,
        generation=small,
    ),
    record(
        "queue_sealed",
        **of_master,
        topic_id=st.integers(1, 9),
        logical_queue=small,
        generation=small,
        end=st.integers(0, 9),
    ),
    record("delete_topic", topic=st.sampled_from(["t", "u"])),
    record("set_group_settings", group=groups, settings=st.just(GROUP_SETTINGS)),
    record("set_write_permission", group=groups, is_writable=st.booleans()),
    record("remove_replica", group=groups, replica_id=st.integers(1, 4)),
    record("tick", alive=st.lists(st.sampled_from(["s1", "s2"]), max_size=2)),
)
envelopes = st.fixed_dictionaries(
    {
        "session": st.sampled_from(["s1", "s2"]),
        "sequence": st.integers(0, 60),
        "at": st.integers(START_MS, START_MS + 2_000_000),
    }
)


def assemble(command: dict[str, Any], envelope: dict[str, Any]) -> dict[str, Any]:
    return {**command, **envelope, "deadline": envelope["at"] + 3000}


commands = st.builds(assemble, kinds, envelopes)
OPENINGS = [
    {
        "kind": "open_session",
        "session": session,
        "sequence": 0,
        "at": START_MS,
        "deadline": START_MS + 3000,
    }
    for session in ("s1", "s2")
]


@settings(max_examples=150, deadline=None)
@given(st.lists(commands, min_size=10, max_size=60))
def test_machines_that_apply_the_same_stay_equal(history: list[dict[str, Any]]) -> None:
    one, other = Machine(), Machine()

    for index, command in enumerate([*OPENINGS, *history]):
        version = one.version
        epochs = numbers_of(one)
        text = orjson.dumps(command)
        assert one.apply(orjson.loads(text), index=index) == other.apply(
            orjson.loads(text), index=index
        )
        if index % 7 == 0:  # a node that restarts from its snapshot is no different
            restored = Machine()
            restored.restore(other.snapshot())
            other = restored
        check(one, version, epochs)

    assert one.digest() == other.digest()


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_anything_is_a_result(document: Any) -> None:
    result, events = Machine().apply(document, index=1)

    assert result["ok"] is False
    assert events == []


def numbers_of(machine: Machine) -> dict[str, tuple[int, int, int]]:
    return {
        name: (group.master_epoch, group.set_epoch, group.next_replica_id)
        for name, group in machine.groups.items()
    }


def check(machine: Machine, version: int, before: dict[str, tuple[int, int, int]]) -> None:
    """What must hold after every command, however odd."""
    assert machine.version in (version, version + 1, version + 1 + VERSIONS_SKIPPED)  # R38
    after = numbers_of(machine)
    for name, old in before.items():
        assert all(new >= was for new, was in zip(after[name], old, strict=True)), name  # INV-4
    for group in machine.groups.values():
        assert group.sync_state_set <= set(group.replicas)
        assert (group.master_epoch == 0) == (not group.sync_state_set)  # R9: never to empty
        if group.master is not None:
            assert group.master in group.sync_state_set  # INV-5
            recorded = group.replicas[ReplicaId(group.master)].incarnation
            assert group.master_incarnation == recorded  # R1: a restart vacates
        if group.acting is not None:  # R36: no member, of this start, and only without a master
            assert group.master is None
            assert group.acting not in group.sync_state_set
            recorded = group.replicas[group.acting].incarnation
            assert group.acting_incarnation == recorded
