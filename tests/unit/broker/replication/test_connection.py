"""Master and replicas over real sockets: handshake, pushes, catch-up, acknowledgements, ends."""

import asyncio
from copy import copy
from dataclasses import replace

import pytest
from tests.support.replication.builders import a_view
from tests.support.replication.nodes import (
    UNIX_MS,
    Group,
    ReplicaNode,
    a_batch,
    a_log,
    append,
    append_start,
    content,
    eventually,
)

from paceline.errors import (
    DeadlineError,
    FlushReplicaTimeoutError,
    NotMasterError,
    OutcomeUnknownError,
    PacelineError,
)
from paceline.platform.secret import ClusterSecrets
from paceline.records.header import HEADER_BYTES, stamp
from paceline.types import MasterEpoch, PhysicalOffset
from paceline.wire.seal import RECORD_HEAD_BYTES
from paceline_broker.replication.frames import FRAME_HEADER_BYTES, encode_frame_header
from paceline_broker.replication.master.ports import TermSettings
from paceline_broker.replication.master.server import STRANGERS_MAX
from paceline_broker.replication.messages import MAGIC

FAST = TermSettings(tick_ms=20, heartbeat_ms=40, replica_idle_ms_max=300)


class Answer:
    """The callback of a waiter."""

    def __init__(self) -> None:
        self.is_called = False
        self.error: PacelineError | None = None

    def __call__(self, error: PacelineError | None) -> None:
        assert not self.is_called
        self.is_called = True
        self.error = error


async def test_what_the_master_writes_is_on_every_replica_and_confirmed() -> None:
    async with Group() as group:
        term = await group.form()
        answer = Answer()

        end = group.master.send(b"one", b"two", b"three")
        term.wait_confirmed(end, answer, timeout_ms=3000)

        assert not answer.is_called
        await eventually(lambda: answer.is_called)
        assert answer.error is None
        assert term.confirm == end
        await eventually(group.is_equal)  # confirm reaches idle replicas too


async def test_with_memory_durability_nothing_needs_to_be_flushed() -> None:
    async with Group() as group:
        for replica in group.replicas:
            replica.flushes = False
        term = await group.form(a_view(durability="memory"))

        end = group.master.send(b"one")

        await eventually(lambda: term.confirm == end)


async def test_replica_that_does_not_flush_holds_confirm_back() -> None:
    """R11."""
    async with Group() as group:
        term = await group.form()
        group.replicas[0].flushes = False
        answer = Answer()

        term.wait_confirmed(group.master.send(b"one"), answer, timeout_ms=100)

        await eventually(lambda: answer.is_called)
        assert isinstance(answer.error, FlushReplicaTimeoutError)


async def test_answers_of_a_weaker_group_leave_before_confirm_and_its_work_still_waits() -> None:
    """R37 for the answers; R6 and R30 know of confirm only."""
    weak = replace(a_view().settings, all_ack_in_sync_state_set=False, in_sync_replicas=2)
    async with Group() as group:
        term = await group.form(a_view(settings=weak))
        await eventually(lambda: term.is_open)
        group.replicas[0].flushes = False
        early, confirmed = Answer(), Answer()

        end = group.master.send(b"one")
        term.wait_held(end, early, timeout_ms=3000)
        term.wait_confirmed(end, confirmed, timeout_ms=3000)

        await eventually(lambda: early.is_called)
        assert early.error is None
        assert term.confirm < end
        assert not confirmed.is_called
        assert term.waiting_count == 1


async def test_early_answers_too_have_a_deadline_and_an_end() -> None:
    weak = replace(a_view().settings, all_ack_in_sync_state_set=False, in_sync_replicas=3)
    async with Group() as group:
        term = await group.form(a_view(settings=weak))
        await eventually(lambda: term.is_open)
        group.replicas[0].flushes = False
        late, unknown = Answer(), Answer()

        term.wait_held(group.master.send(b"one"), late, timeout_ms=100)
        await eventually(lambda: late.is_called)
        assert isinstance(late.error, FlushReplicaTimeoutError)
        assert term.waiting_count == 1  # the record is still not confirmed (R6)
        term.wait_held(group.master.send(b"two"), unknown, timeout_ms=9000)
        term.end("the test ends it")

        assert isinstance(unknown.error, OutcomeUnknownError)


async def test_replica_that_comes_late_catches_up_from_the_log() -> None:
    async with Group() as group:
        late = group.replicas.pop()
        term = await group.form(a_view(sync_state_set=frozenset({1, 2})))
        for number in range(300):  # 300 kB in 5 segments, several frames
            group.master.send(bytes([number % 256]) * 1000)
        group.replicas.append(late)
        late.follow(group.master.port)

        await eventually(lambda: bool(group.master.proposals))
        group.master.send(b"live")

        assert group.master.proposals[0].sync_state_set == {1, 2, 3}
        assert term.can_accept()
        await eventually(group.is_equal)


async def test_window_bounds_what_is_sent_without_acknowledgement() -> None:
    async with Group() as group:
        settings = TermSettings(
            tick_ms=20, heartbeat_ms=40, window_bytes=4096, catch_up_frame_bytes=2048
        )
        await group.form(settings=settings)

        for number in range(100):
            group.master.send(bytes([number]) * 1000)

        await eventually(group.is_equal)


async def test_batch_larger_than_every_buffer_arrives() -> None:
    async with Group() as group:
        await group.form()

        group.master.send(bytes(3 * 1024 * 1024), b"after")

        await eventually(group.is_equal)


async def test_diverging_tail_is_cut_before_the_replica_counts() -> None:
    replica = ReplicaNode(2, log=a_log())
    append_start(replica.log, 3)
    parting = replica.log.end
    append_start(replica.log, 4)
    append(replica.log, a_batch(b"never confirmed"), 4)
    replica.log.flush_now()
    async with Group(replicas=()) as group:
        append_start(group.master.log, 3)
        append(group.master.log, a_batch(b"of epoch 3"), 3)
        group.master.log.flush_now()
        group.replicas.append(replica)

        await group.form(a_view(epoch=5, sync_state_set=frozenset({1, 2})))

        await eventually(group.is_equal)
        assert replica.truncations == [parting]


@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_what_a_member_knows_as_confirmed_is_not_cut(is_confirmed: bool) -> None:
    """R16: by a master that lacks it, and is an old copy; or that has confirmed other records."""
    replica = ReplicaNode(2)
    append_start(replica.log, 3)
    append_start(replica.log, 4)
    replica.log.flush_now()
    replica.log.set_confirm(replica.log.end)
    before = content(replica.log)
    async with Group(replicas=()) as group:
        append_start(group.master.log, 3)
        for number in range(9):
            append(group.master.log, a_batch(bytes([number]) * 100), 3)
        group.master.log.flush_now()
        if is_confirmed:
            group.master.log.set_confirm(group.master.log.end)
        group.replicas.append(replica)
        group.master.lead(a_view(epoch=5, sync_state_set=frozenset({1, 2})))
        replica.follow(group.master.port, epoch=5)

        if is_confirmed:
            await eventually(lambda: replica.stop_reason is not None)
        else:
            await eventually(lambda: group.master.fence is not None)
            assert replica.stop_reason is None

        assert content(replica.log) == before


async def test_replica_of_a_higher_epoch_fences_the_master() -> None:
    """R5."""
    async with Group() as group:
        term = await group.form()
        waiting = Answer()
        await group.replicas[0].client.stop()  # type: ignore[union-attr]
        term.wait_confirmed(group.master.send(b"in doubt"), waiting, timeout_ms=9000)

        group.replicas[0].follow(group.master.port, epoch=4)

        await eventually(lambda: group.master.fence is not None)
        assert isinstance(waiting.error, OutcomeUnknownError)
        assert term.has_ended
        assert not term.can_accept()


async def test_replica_without_the_secret_is_refused_and_so_is_such_a_master() -> None:
    async with Group(replicas=(2,)) as group:
        group.master.lead(a_view())
        stranger = group.replicas[0]
        stranger.follow(
            group.master.port, secrets=ClusterSecrets(b"another secret of 32 bytes......")
        )

        with pytest.raises(TimeoutError):
            await eventually(lambda: stranger.log.end > 0, seconds=0.3)


OLD, NEW = b"the old secret of 32 bytes......", b"the new secret of 32 bytes......"
ROTATION = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]


@pytest.mark.parametrize("is_master_first", [True, False], ids=["master first", "replica first"])
@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_new_secret_comes_in_three_steps_and_all_know_each_other(
    step: int, is_master_first: bool
) -> None:
    """Each step is done at one node before the other."""
    master, replica = ROTATION[step], ROTATION[step + 1]
    if is_master_first:
        master, replica = replica, master
    async with Group(replicas=(2,), secrets=ClusterSecrets(*master)) as group:
        group.master.lead(a_view(sync_state_set=frozenset({1, 2})))
        group.replicas[0].follow(group.master.port, secrets=ClusterSecrets(*replica))
        await eventually(lambda: group.master.is_opened)
        group.master.send(b"one")
        await eventually(group.is_equal)


async def test_broker_that_is_not_master_refuses_and_is_tried_again() -> None:
    async with Group() as group:
        for replica in group.replicas:
            replica.follow(group.master.port)
        with pytest.raises(TimeoutError):
            await eventually(lambda: group.master.is_opened, seconds=0.1)

        group.master.lead(a_view())

        await eventually(lambda: group.master.is_opened)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        MAGIC.to_bytes(4, "little") + b"\xff\xff\xff\x7f",
        MAGIC.to_bytes(4, "little") + b"\x04\x00\x00\x00null",
        MAGIC.to_bytes(4, "little") + b"\x02\x00\x00\x00{}",
    ],
)
async def test_strangers_are_turned_away_and_harm_nobody(garbage: bytes) -> None:
    async with Group() as group:
        await group.form()
        reader, writer = await asyncio.open_connection("127.0.0.1", group.master.port)
        writer.write(garbage)

        async with asyncio.timeout(5):
            answer = await reader.read(100_000)

        assert b"refused" in answer
        writer.close()
        group.master.send(b"one")
        await eventually(group.is_equal)


async def test_new_connection_of_a_replica_replaces_the_old_one() -> None:
    """R10."""
    async with Group() as group:
        term = await group.form()
        old = group.replicas[0]
        twin = ReplicaNode(2)
        group.replicas.append(twin)

        twin.follow(group.master.port)
        await eventually(lambda: twin.client is not None and twin.client.is_connected)

        assert term.status()["connections"] == 2
        await old.client.stop()  # type: ignore[union-attr]


async def test_read_round_waits_for_every_other_member() -> None:
    """R4."""
    async with Group() as group:
        term = await group.form()
        async with asyncio.timeout(5):
            await asyncio.gather(*(term.read_round() for _ in range(20)))

        await group.replicas[0].client.stop()  # type: ignore[union-attr]
        waiting = asyncio.ensure_future(term.read_round())  # noqa: TID251
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.2)
        group.master.server.end_term("stepping down")

        with pytest.raises(NotMasterError):
            await waiting


async def test_read_round_ends_with_its_deadline() -> None:
    async with Group(replicas=(2,)) as group:
        settings = TermSettings(tick_ms=20, heartbeat_ms=40, read_round_timeout_ms=100)
        term = group.master.lead(a_view(), settings=settings)

        with pytest.raises(DeadlineError):
            await term.read_round()


async def test_lost_member_is_probed_and_a_smaller_set_proposed() -> None:
    """R12."""
    async with Group() as group:
        term = await group.form()
        lost = group.replicas.pop()
        group.master.gone.add(lost.replica)
        await lost.client.stop()  # type: ignore[union-attr]

        await eventually(lambda: bool(group.master.proposals))
        end = group.master.send(b"one")
        term.committed(a_view(sync_state_set=frozenset({1, 2}), set_epoch=6))

        assert group.master.proposals[0].sync_state_set == {1, 2}
        await eventually(lambda: term.confirm == end)


@pytest.mark.parametrize(
    ("bad", "is_sealed"),
    [(bad, sealed) for bad in ("batch", "epoch", "header", "tag") for sealed in (True, False)]
    + [("part", True)],
)
async def test_what_came_before_a_bad_frame_in_one_read_is_noted_as_written(
    bad: str, is_sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it waits for the disk until something else is written."""
    async with Group(replicas=(2,)) as group:
        term = await group.form(a_view(sync_state_set=frozenset({1, 2})))
        (replica,) = group.replicas
        assert replica.client is not None
        link = replica.client._link
        assert link is not None
        written: list[int] = []
        monkeypatch.setattr(replica, "wrote", lambda: written.append(replica.log.written))
        good = a_frame(replica.log.end, epoch=term.epoch)
        spoiled = bytearray(
            a_frame(
                PhysicalOffset(replica.log.end + len(good) - FRAME_HEADER_BYTES),
                epoch=term.epoch - (bad == "epoch"),
            )
        )
        if bad == "batch":
            spoiled[-1] ^= 1
        elif bad == "header":
            spoiled[:4] = b"\xff" * 4
        elif bad == "part":
            del spoiled[-1]  # a record holds whole frames
        end = replica.log.end + len(good) - FRAME_HEADER_BYTES
        assert link._seals is not None
        sender = copy(link._seals.incoming)  # as the master's own is at this moment
        if is_sealed:
            good = bytes(sender.record([good]))
            spoiled = sender.record([spoiled])
        else:
            link._seals = None
        if bad == "tag":
            spoiled[RECORD_HEAD_BYTES - 1] ^= 1  # without seals: in the header
        both = good + spoiled

        link.get_buffer(-1)[: len(both)] = both
        link.buffer_updated(len(both))

        assert link._transport is None, "the connection goes on"
        assert (replica.log.end, written) == (end, [end])


def a_frame(position: PhysicalOffset, *, epoch: int) -> bytes:
    """One batch as a master pushes it."""
    batch = a_batch(b"pushed")
    header = stamp(
        batch,
        physical_offset=position,
        base_queue_offset=0,
        store_unix_ms=UNIX_MS,
        master_epoch=epoch,
    )
    frame = encode_frame_header(
        body_bytes=len(batch),
        epoch=MasterEpoch(epoch),
        position=position,
        confirm=position,
        round=99,
    )
    return frame + header + batch[HEADER_BYTES:]


async def test_silent_connection_is_closed() -> None:
    async with Group(replicas=(2,)) as group:
        term = group.master.lead(a_view(sync_state_set=frozenset({1, 2})), settings=FAST)
        group.replicas[0].follow(group.master.port)
        await eventually(lambda: group.master.is_opened)
        link = group.replicas[0].client._link  # type: ignore[union-attr]
        assert link is not None
        assert link._transport is not None

        link._transport.pause_reading()

        await eventually(lambda: bool(group.master.probed))
        assert term.epoch == 3


async def test_end_of_a_term_answers_every_waiter_unknown() -> None:
    async with Group(replicas=()) as group:
        term = group.master.lead(a_view())
        answer = Answer()
        term.wait_confirmed(PhysicalOffset(group.master.log.end), answer, timeout_ms=9000)

        group.master.server.end_term("demoted")

        assert isinstance(answer.error, OutcomeUnknownError)
        late = Answer()
        term.wait_confirmed(PhysicalOffset(group.master.log.end), late, timeout_ms=9000)
        assert isinstance(late.error, OutcomeUnknownError)


async def test_master_whose_disk_failed_answers_unknown_and_closes() -> None:
    """R22."""
    async with Group() as group:
        term = await group.form()

        term.fail("fsync failed")

        assert group.master.fence == "fsync failed"
        await eventually(lambda: not any(r.client.is_connected for r in group.replicas if r.client))


async def test_strangers_keep_no_replica_out() -> None:
    async with Group(replicas=(2, 3)) as group:
        term = group.master.lead(a_view())
        port = group.master.port
        strangers = [
            (await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(STRANGERS_MAX * 2)
        ]

        for replica in group.replicas:
            replica.follow(port)

        end = group.master.send(b"one")
        await eventually(lambda: term.confirm == end)
        assert group.master.server.strangers.displaced >= STRANGERS_MAX
        assert group.master.server.strangers.count <= STRANGERS_MAX
        for writer in strangers:
            writer.transport.abort()
        await eventually(lambda: group.master.server.strangers.count == 0)
        assert group.master.server.proven_count == 2


async def test_places_of_strangers_are_not_for_the_proven() -> None:
    async with Group(replicas=(2, 3)) as group:
        term = await group.form()

        assert group.master.server.strangers.count == 0
        assert group.master.server.proven_count == 2
        group.master.server.end_term("demoted")
        await eventually(lambda: group.master.server.proven_count == 0)
        assert term.has_ended
