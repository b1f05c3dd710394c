"""Random commands of the controllers' state machine, most of which fit no state."""

from typing import Any

from hypothesis import strategies as st
from tests.support.controller.builders import START_MS

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
        topics_to_come=st.integers(0, 2),
        topic_id_max=small,
        is_learner=flags,
        is_unclean=flags,
        is_suspect=flags,
        is_damaged=flags,
        leases_ms=st.integers(1, 9),
    ),
    record(
        "present_topics",
        group=groups,
        store_id=st.sampled_from(["a", "b", "c", "d"]),
        incarnation=st.integers(2, 4),
        first=st.integers(0, 2),
        topics=st.sampled_from([[], [["v", 3, 2]], [["u", 1, 2]]]),
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
    record("remove_group", group=groups, is_forced=flags),
    record(
        "alter_topic",
        topic=st.sampled_from(["t", "u"]),
        topic_id=st.integers(1, 9),
        write_queues=st.dictionaries(groups, small, max_size=2),
        attributes=st.dictionaries(st.just("a"), st.sampled_from(["1", "2"]), max_size=1),
    ),
    record("ensure_topic", topic=st.sampled_from(["t", "v"]), queues=st.integers(1, 4)),
    record(
        "put_consumer_group",
        group=st.sampled_from(["c", "d"]),
        settings=st.fixed_dictionaries({"retry_queue_nums": st.integers(1, 3)}),
        is_new=flags,
    ),
    record("ensure_consumer_group", group=st.sampled_from(["c", "e"])),
    record("delete_consumer_group", group=st.sampled_from(["c", "d"])),
    record(
        "set_controllers",
        generation=st.integers(1, 3),
        addresses=st.lists(st.sampled_from(["h:1", "h:2"]), min_size=1, max_size=2),
    ),
    record("set_security_mode", mode=st.sampled_from(["off", "dry-run"])),
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
