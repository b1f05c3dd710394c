"""Each repair of the library has a test; those marked "without" show the fault when it is out."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from tests.support.raft.single import (
    C2,
    C3,
    Single,
    command,
    commands,
    no_op,
    snapshot_at,
    snapshot_chunk,
)

from paceline.errors import CorruptLogError
from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.runtime import SeededRandom
from paceline_controller.raft.library import RaftInvariantError
from paceline_controller.raft.overrides import SafeNode
from paceline_controller.raft.peers.frames import Message
from paceline_controller.raft.settings import RaftSettings


@pytest.fixture
def own_tail() -> Single:
    """A deposed leader: entries 2..5 of term 1 that nobody else has, none committed."""
    single = Single()
    single.append([no_op(2, 1), *commands(3, 5, term=1, prefix="ghost")], term=1, previous=(1, 0))
    return single


# -- F1 --------------------------------------------------------------------------------------------


def _receive_first_part_of_snapshot(single: Single) -> None:
    content = snapshot_at(40, term=2, applied=["real"])
    single.receive(C2, snapshot_chunk(content, 0, 10, term=2, commit=44))


def test_a_part_of_a_snapshot_commits_no_entry_of_a_deposed_leader(own_tail: Single) -> None:
    _receive_first_part_of_snapshot(own_tail)

    assert own_tail.applied == []
    assert own_tail.core.commit_index == 1


def test_without_the_clamp_a_deposed_leader_applies_what_exists_nowhere(
    own_tail: Single, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SafeNode, "_without_commit", lambda _, message: message)

    _receive_first_part_of_snapshot(own_tail)

    assert own_tail.applied == ["ghost3", "ghost4", "ghost5"]


# -- snapshots -------------------------------------------------------------------------------------


def test_a_whole_snapshot_replaces_machine_and_log_and_is_acknowledged(own_tail: Single) -> None:
    content = snapshot_at(40, term=2, applied=["real"])
    half = len(content) // 2

    own_tail.receive(C2, snapshot_chunk(content, 0, half, term=2, commit=44))
    answers = own_tail.receive(C2, snapshot_chunk(content, half, half + 1, term=2, commit=44))

    assert own_tail.applied == ["real"]
    assert own_tail.log_indexes() == [(39, 2), (40, 2)]
    assert [(a["next_node_idx"], a["success"]) for a in answers] == [(41, True)]
    assert own_tail.core.commit_index == own_tail.core.applied_index == 40


def test_a_snapshot_that_this_node_has_passed_changes_nothing() -> None:
    single = Single()
    single.append([no_op(2, 1), *commands(3, 9, term=1)], term=1, previous=(1, 0), commit=9)
    content = snapshot_at(5, term=1, applied=["x3", "x4", "x5"])

    answers = single.receive(C2, snapshot_chunk(content, 0, len(content), term=1, commit=9))

    assert single.restored == []
    assert single.log_indexes()[-1] == (9, 1)
    assert answers[0]["next_node_idx"] == 6  # what was matched, not the whole log


def test_a_snapshot_inside_our_log_keeps_the_acknowledged_entries_behind_it() -> None:
    single = Single()
    single.append([no_op(2, 1), *commands(3, 9, term=1)], term=1, previous=(1, 0), commit=3)
    content = snapshot_at(6, term=1, applied=["x3", "x4", "x5", "x6"])

    single.receive(C2, snapshot_chunk(content, 0, len(content), term=1, commit=9))

    assert single.applied == ["x3", "x4", "x5", "x6"]
    assert single.log_indexes()[-1] == (9, 1)
    assert single.core.applied_index == 6


def test_a_lost_chunk_discards_the_transfer() -> None:
    single = Single()
    content = snapshot_at(40, term=2, applied=["real"])

    single.receive(C2, snapshot_chunk(content, 0, 10, term=2, commit=44))
    answers = single.receive(C2, snapshot_chunk(content, 20, 999, term=2, commit=44))

    assert answers == []
    assert single.restored == []


def test_a_damaged_snapshot_of_a_leader_stops_the_node() -> None:
    single = Single()
    content = bytearray(snapshot_at(40, term=2, applied=["real"]))
    content[-3] ^= 1

    with pytest.raises(CorruptLogError):
        single.receive(C2, snapshot_chunk(bytes(content), 0, len(content), term=2, commit=44))


# -- F2: compaction --------------------------------------------------------------------------------

SMALL = RaftSettings(compact_after_entries=50_000, retain_entries=2)


def _compacting(disk: MemoryDisk, settings: RaftSettings = SMALL) -> Single:
    single = Single(disk, settings=settings)
    entries = [no_op(2, 1), *commands(3, 30, term=1)]
    single.append(entries, term=1, previous=(1, 0), commit=20)
    return single


@pytest.mark.parametrize("keep_page_cache", [True, False])
def test_a_kill_at_any_operation_of_a_compaction_loses_no_entry(*, keep_page_cache: bool) -> None:
    for fuse in range(16):
        disk = MemoryDisk()
        single = _compacting(disk)
        disk.fuse = fuse
        with contextlib.suppress(PowerLost):
            asyncio.run(single.core.compact())
        disk.crash(SeededRandom(f"compaction {fuse}"), keep_page_cache=keep_page_cache)

        found = Single(disk, settings=SMALL)
        assert found.log_indexes()[-1] == (30, 1)
        assert found.applied[: len(single.applied)] == single.applied[: len(found.applied)]
        assert found.core.applied_index <= 20
        found.append([], term=1, previous=(30, 1), commit=30)
        assert found.applied == [f"x{index}" for index in range(3, 31)]


def test_a_compacted_journal_starts_from_its_snapshot() -> None:
    disk = MemoryDisk()
    single = _compacting(disk)

    asyncio.run(single.core.compact())

    assert single.core.journal.first_index == 17  # two retained before entry 19
    found = Single(disk, settings=SMALL)
    assert found.applied == single.applied
    assert found.restored == [20]


def test_a_long_log_asks_for_one_snapshot_and_blocks_for_none() -> None:
    disk = MemoryDisk()
    single = _compacting(disk, replace(SMALL, compact_after_entries=10))
    disk.sync_delay_ms = 1.0
    stood: list[float] = []
    disk.on_blocked = stood.append

    for _ in range(3):
        single.tick()
    wanted = single.snapshots_wanted
    asyncio.run(single.core.compact())

    assert (wanted, stood) == (1, [])
    assert single.core.journal.first_index == 17


@pytest.mark.parametrize("operation", ["sync", "sync_folder"])
def test_a_snapshot_installed_during_a_compaction_stays(operation: str) -> None:
    disk = MemoryDisk()
    single = _compacting(disk)
    content = snapshot_at(40, term=2, applied=["real"])

    def install(called: str, _path: str) -> None:
        if called == operation:
            disk.observer = None
            single.receive(C2, snapshot_chunk(content, 0, len(content), term=2, commit=40))

    disk.observer = install
    asyncio.run(single.core.compact())
    assert single.core._snapshots._content == content  # what others would be sent
    disk.crash(SeededRandom("during"), keep_page_cache=False, survival=0)

    found = Single(disk, settings=SMALL)
    assert found.log_indexes() == [(39, 2), (40, 2)]
    assert found.applied == ["real"]


def test_a_journal_without_its_snapshot_is_refused() -> None:
    disk = MemoryDisk()
    single = Single(disk, settings=replace(SMALL, segment_bytes=300))
    single.append([no_op(2, 1)], term=1, previous=(1, 0))
    for index in range(3, 31):
        single.append(commands(index, index, term=1), term=1, previous=(index - 1, 1), commit=20)
    asyncio.run(single.core.compact())
    assert single.core.journal.segments_count > 1
    disk.unlink("/raft/snapshot")

    with pytest.raises(CorruptLogError, match=r"journal from \d+ without a snapshot"):
        Single(disk)


def test_a_whole_journal_needs_no_snapshot() -> None:
    """Compaction has dropped no segment yet: the snapshot said nothing that the log does not."""
    disk = MemoryDisk()
    single = _compacting(disk)
    asyncio.run(single.core.compact())
    disk.unlink("/raft/snapshot")

    found = Single(disk, settings=SMALL)
    found.append([], term=1, previous=(30, 1), commit=20)

    assert found.applied == single.applied


def test_a_damaged_snapshot_refuses_to_start() -> None:
    disk = MemoryDisk()
    asyncio.run(_compacting(disk).core.compact())
    disk.flip_bit("/raft/snapshot", 60)

    with pytest.raises(CorruptLogError, match="checksum"):
        Single(disk)


@pytest.mark.parametrize("keep_page_cache", [True, False])
def test_a_kill_at_any_operation_of_an_installation_leaves_a_node_that_starts(
    *, keep_page_cache: bool
) -> None:
    content = snapshot_at(40, term=2, applied=["real"])
    for fuse in range(16):
        disk = MemoryDisk()
        single = Single(disk)
        single.append([no_op(2, 1), *commands(3, 5, term=1)], term=1, previous=(1, 0), commit=3)
        disk.fuse = fuse
        with contextlib.suppress(PowerLost):
            single.receive(C2, snapshot_chunk(content, 0, len(content), term=2, commit=44))
        disk.crash(SeededRandom(f"install {fuse}"), keep_page_cache=keep_page_cache)

        found = Single(disk)
        assert found.log_indexes()[-1] in ((5, 1), (40, 2))
        assert found.applied in (["x3"], [], ["real"])


# -- the log ---------------------------------------------------------------------------------------


def test_a_late_append_erases_nothing_and_acknowledges_only_what_it_names() -> None:
    single = Single()
    entries = [no_op(2, 1), *commands(3, 9, term=1)]
    single.append(entries, term=1, previous=(1, 0))

    answers = single.append(entries[:2], term=1, previous=(1, 0))

    assert single.log_indexes()[-1] == (9, 1)
    assert [(a["next_node_idx"], a["success"]) for a in answers] == [(4, True)]


def test_without_the_override_a_late_append_erases_acknowledged_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SafeNode, "_without_known_entries", lambda _, message: message)
    single = Single()
    entries = [no_op(2, 1), *commands(3, 9, term=1)]
    single.append(entries, term=1, previous=(1, 0))

    single.append(entries[:2], term=1, previous=(1, 0))

    assert single.log_indexes()[-1] == (3, 1)


def test_a_late_append_commits_nothing_beyond_its_own_entries() -> None:
    """Behind them may stand entries of an older leader that were never compared."""
    single = Single()
    single.append([no_op(2, 1), *commands(3, 9, term=1)], term=1, previous=(1, 0))

    single.append([], term=2, previous=(2, 1), commit=9)

    assert single.core.commit_index == 2
    assert single.applied == []


def test_a_conflict_truncates_from_the_first_different_entry() -> None:
    single = Single()
    single.append([no_op(2, 1), *commands(3, 9, term=1)], term=1, previous=(1, 0), commit=4)

    single.append(
        [command("x5", 5, 1), no_op(6, 2), command("new", 7, 2)], term=2, previous=(4, 1), commit=7
    )

    assert single.log_indexes()[3:] == [(4, 1), (5, 1), (6, 2), (7, 2)]
    assert single.applied == ["x3", "x4", "x5", "new"]


def test_a_leader_that_contradicts_a_committed_entry_stops_the_node() -> None:
    single = Single()
    single.append([no_op(2, 1), *commands(3, 9, term=1)], term=1, previous=(1, 0), commit=9)

    with pytest.raises(RaftInvariantError, match="entry 5 contradicts"):
        single.append([no_op(5, 2)], term=2, previous=(4, 1))

    assert single.log_indexes()[-1] == (9, 1)


def test_a_conflict_goes_back_a_whole_term_at_once() -> None:
    single = Single()
    single.append([no_op(2, 1), no_op(3, 2), *commands(4, 90, term=2)], term=2, previous=(1, 0))

    answers = single.append([], term=4, previous=(88, 3))

    assert [(a["next_node_idx"], a["reset"]) for a in answers] == [(3, True)]


def test_an_entry_of_another_type_is_never_applied() -> None:
    single = Single()

    with pytest.raises(RaftInvariantError, match="unknown type '02'"):
        single.core._node._SyncObj__doApplyCommand(b"\x02cos\nsystem\n")


# -- answers and leadership ------------------------------------------------------------------------


def test_an_answer_of_an_older_term_does_not_count() -> None:
    single = Single()
    single.become_leader()
    index = single.core.append(b'"mine"')

    single.acknowledge(C2, index, term=single.core.term - 1)
    assert single.applied == []

    single.acknowledge(C2, index)
    assert single.applied == ["mine"]


def test_without_the_check_an_answer_of_an_older_term_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        SafeNode,
        "_take_answer",
        lambda self, node, message: self._library_receives(node, message),
    )
    single = Single()
    single.become_leader()
    index = single.core.append(b'"mine"')

    single.acknowledge(C2, index, term=0)

    assert single.applied == ["mine"]


def test_an_acknowledgement_of_entries_that_do_not_exist_stops_the_leader() -> None:
    single = Single()
    single.become_leader()

    with pytest.raises(RaftInvariantError, match="do not exist"):
        single.acknowledge(C2, 99)


def test_a_leader_that_lost_what_it_sent_hears_of_it_after_its_restart() -> None:
    """It ended before its own journal was synced; a follower's sync took longer."""
    single = Single()
    single.become_leader()
    single.auto_sync = False
    index = single.core.append(b'"mine"')
    single.disk.crash(SeededRandom("restart"), keep_page_cache=False, survival=0.0)
    again = Single(single.disk)
    assert again.core.term == single.core.term
    assert again.log_indexes()[-1][0] < index

    again.acknowledge(C2, index)
    assert again.applied == []


def test_a_second_leader_in_one_term_stops_the_node() -> None:
    single = Single()
    single.become_leader()

    with pytest.raises(RaftInvariantError, match="two leaders"):
        single.append([], term=single.core.term, previous=(1, 0))


def test_an_exception_of_the_machine_leaves_the_tick() -> None:
    """F4, F5: the shell stops the node; the library alone would apply it again for ever."""
    single = Single()

    def fail(payload: bytes, index: int) -> None:
        raise ZeroDivisionError

    single.core._node._apply = fail

    with pytest.raises(ZeroDivisionError):
        single.append([no_op(2, 1), command("bad", 3, 1)], term=1, previous=(1, 0), commit=3)


def test_a_leader_that_nobody_answers_steps_down_and_forwards_nothing() -> None:
    single = Single()
    single.become_leader()

    single.pass_time(900)

    assert not single.core.is_leading
    assert single.core.leader is None
    assert "apply_command" not in single.kinds()


# -- F3: durable before it leaves ------------------------------------------------------------------


def test_an_acknowledgement_leaves_only_after_the_sync() -> None:
    single = Single(auto_sync=False)

    single.append([no_op(2, 1), command("x", 3, 1)], term=1, previous=(1, 0))
    assert single.sent == []
    single.sync()

    assert single.kinds() == ["next_node_idx"]
    single.disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)
    assert Single(single.disk).log_indexes()[-1] == (3, 1)


def test_a_vote_leaves_only_after_it_is_durable() -> None:
    single = Single(auto_sync=False)
    request: Message = {
        "type": "request_vote",
        "term": 7,
        "last_log_index": 1,
        "last_log_term": 0,
        "transfer": False,
    }

    single.receive(C3, request)
    assert single.sent == []
    single.sync()

    assert single.kinds() == ["response_vote"]
    single.disk.crash(SeededRandom("1"), keep_page_cache=False, survival=0)
    found = Single(single.disk)
    assert (found.core.term, found.core.journal.getVotedForNodeId()) == (7, "c3")
    assert "response_vote" not in [m["type"] for m in found.receive(C2, request)]


def test_a_leader_counts_answers_only_as_far_as_its_own_copy_is_durable() -> None:
    single = Single()
    single.become_leader()
    single.acknowledge(C2, 2)
    single.auto_sync = False
    single.core.append(b'"mine"')
    single.core.append(b'"more"')

    assert [e[1] for _, m in single.sent for e in m.get("entries", ()) if e[1] > 2] == [3, 3, 4, 4]
    single.acknowledge(C2, 4)
    single.acknowledge(C3, 3)
    assert single.core.commit_index == 2
    single.sync()
    single.tick()

    assert single.core.commit_index == 4
    assert single.applied == ["mine", "more"]


def test_answers_that_came_early_count_in_their_term_only() -> None:
    single = Single()
    single.become_leader()
    single.acknowledge(C2, 2)
    single.auto_sync = False
    single.core.append(b'"mine"')
    single.acknowledge(C2, 3)
    single.auto_sync = True
    single.receive(C3, {"type": "newer_term", "term": single.core.term + 1})
    single.pass_time(1_000)
    single.become_leader()

    assert single.core.term == 3
    assert single.core.followers()[C2].matched == 0
    assert single.core.commit_index == 2


def test_messages_held_for_a_sync_go_after_a_snapshot_is_installed() -> None:
    """A new base makes the journal durable by itself; nothing would ask for a sync again."""
    single = Single(auto_sync=False, settings=SMALL)
    entries = [no_op(2, 1), *commands(3, 30, term=1)]
    single.append(entries, term=1, previous=(1, 0), commit=20)
    assert single.sent == []

    content = snapshot_at(40, term=1, applied=["real"])
    single.receive(C2, snapshot_chunk(content, 0, len(content), term=1, commit=40))

    assert [m["next_node_idx"] for _, m in single.sent] == [31, 41]
