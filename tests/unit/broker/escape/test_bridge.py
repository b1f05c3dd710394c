"""R36: an acting master sends what is due to another group, at least once, marked, never early."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.escape.scene import OTHER, RETRY, TOPICS, a_scene
from tests.support.service.fakes import GROUP, until

from paceline.errors import BadRequestError
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import BatchHeader, Cause, Kind, pack_source
from paceline.types import ReplicaId, TopicName
from paceline.wire import properties as names
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.escape import bridge
from paceline_broker.escape.bridge import PART_MESSAGES, REFUSED_MS
from paceline_broker.escape.held import SHELF_MS, Held
from paceline_broker.escape.notes_file import NotesFile
from paceline_broker.replication.master import server
from paceline_broker.service.escape import intake
from paceline_broker.service.escape.intake import check_escaped
from paceline_broker.service.escape.notes import SentNote

RETRY_ID = list(TOPICS).index(RETRY) + 1
HERE_ONLY_ID = list(TOPICS).index("here-only") + 1
SEALED_ID = list(TOPICS).index("sealed") + 1


async def test_what_is_due_goes_to_the_other_group_once_with_its_source() -> None:
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.delay(now + 5, now + 7, now + 900_000, queue_id=3)
        [source] = [v.header for v in scene.here.log.views() if v.header.kind == Kind.DELAY]
        end = scene.here.log.end
        scene.here.role.become_acting(7)
        scene.here.clock.advance(10)
        async with scene.running():
            await scene.until_noted(2)

        assert sorted(scene.bodies()) == [b"due %d" % (now + 5), b"due %d" % (now + 7)]
        [batch] = scene.escaped()
        header = batch.header
        assert (header.kind, header.topic_id, header.queue_id) == (Kind.NORMAL, 1, 1)
        assert not header.is_derived  # it closes nothing in the log that takes it
        place = f"{GROUP}:{source.physical_offset:x}"
        assert [row[names.ESCAPED_FROM] for row in batch.properties()] == [
            f"{place}:0",
            f"{place}:1",
        ]
        assert [row[names.TIMER_OUT_MS] for row in batch.properties()] == [
            str(now + 5),
            str(now + 7),
        ]
        assert scene.there.role.projections.queue_end(1 << 16 | 1) == 2
        assert scene.here.log.end == end  # an acting master appends nothing
        assert scene.bridge.lateness.delivered == 2


async def test_nothing_is_sent_early_or_by_a_clock_that_most_controllers_do_not_share() -> None:
    """R29: also not while nobody says: who is cut off from the controllers may act beyond his
    time."""
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.delay(now + 1000)
        scene.here.role.become_acting(7)
        async with scene.running():
            scene.here.clock.advance(999)
            scene.bridge.poke()
            await until(lambda: scene.bridge._turns > 3)
            assert scene.connected == 0
            scene.here.clock.advance(1)
            for trust in (ClockTrust.UNKNOWN, ClockTrust.DIFFERS):
                scene.here.trust = trust
                for _ in range(3):
                    scene.bridge._turn()
                assert scene.connected == 0
            scene.here.trust = ClockTrust.AGREES
            await scene.until_noted(1)


async def test_retried_messages_go_with_what_their_retry_says() -> None:
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        retry = encode_batch(
            [b"again"],
            properties=[{names.RECONSUME_TIMES: "3", names.RETRY_TOPIC: "orders", "mine": "x"}],
            born_unix_ms=now,
            due_unix_ms=[now],
            sources=[pack_source(0, 0)],
            topic_id=RETRY_ID,
            queue_id=0,
            kind=Kind.DELAY,
            flags=Cause.RETRIED,
        )
        scene.here.append_derived(retry)
        await scene.act(1)

        [batch] = scene.escaped()
        assert (batch.header.topic_id, batch.header.queue_id) == (RETRY_ID, 0)
        [row] = batch.properties()
        assert (row[names.RECONSUME_TIMES], row[names.RETRY_TOPIC], row["mine"]) == (
            "3",
            "orders",
            "x",
        )


async def test_what_no_other_group_takes_stays_for_the_next_master() -> None:
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        for topic_id in (HERE_ONLY_ID, SEALED_ID, 1):
            scene.here.service.routes.sendable[topic_id] = scene.here.service.routes.sendable[1]
            scene.delay(now, topic_id=topic_id)
        scene.here.role.become_acting(7)
        async with scene.running():
            await scene.until_noted(1)
            assert [view.header.topic_id for view in scene.escaped()] == [1]
            await until(lambda: sum(map(len, scene.bridge._asleep.values())) == 2)

            # As soon as the other group has a queue for one of them, it goes as well.
            view = scene.view(version=3)
            here_only = view.topics[TopicName("here-only")]
            queues = {**here_only.queues, OTHER: 1}
            given = replace(here_only, queues=queues, write_queues=queues)
            view = replace(view, topics={**view.topics, TopicName("here-only"): given})
            scene.there.service.view_changed(view)
            scene.here.service.view_changed(view)
            await scene.until_noted(2)
            assert [v.header.topic_id for v in scene.escaped()] == [1, HERE_ONLY_ID]
            assert list(scene.bridge._asleep) == [SEALED_ID]


async def test_what_no_group_takes_holds_back_nothing_however_much_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge, "BACKLOG_MAX", 4)
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.here.service.routes.sendable[HERE_ONLY_ID] = scene.here.service.routes.sendable[1]
        scene.delay(*range(now - 100, now), topic_id=HERE_ONLY_ID)
        scene.delay(now)
        scene.here.role.become_acting(7)
        for _ in range(60):
            scene.here.clock.advance(50)
            scene.bridge._turn()
        assert scene.bridge.is_busy  # the last one is on its way
        async with scene.running():
            await scene.until_noted(1)
        assert scene.bodies() == [b"due %d" % now]


async def test_a_group_that_has_an_acting_master_itself_is_not_chosen() -> None:
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        view = scene.view(version=3)
        acting = replace(view.groups[OTHER], master=None, acting=ReplicaId(1))
        groups = {**view.groups, OTHER: acting}
        scene.here.service.view_changed(replace(view, groups=groups))
        scene.here.role.become_acting(7)
        async with scene.running():
            await until(lambda: scene.bridge._turns > 2)
            assert scene.connected == 0


@pytest.mark.parametrize("is_stored", [True, False])
async def test_what_got_no_answer_is_sent_again_with_the_same_mark(is_stored: bool) -> None:
    """The other group may have it twice then, and both name the same source."""
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        if is_stored:
            scene.there.log.is_automatic = False
        else:
            scene.there.role.writer().is_open = False
        scene.here.role.become_acting(7)
        async with scene.running():
            if is_stored:
                await until(lambda: len(scene.escaped()) == 1)
                scene.there.role.writer().fence()  # outcome unknown
                await until(lambda: scene.bridge.unknown == 1)
            else:
                await until(lambda: scene.bridge.refused == 1)
            assert len(scene.kept.notes) == 0
            scene.there.log.is_automatic = True
            scene.there.role.writer().is_open = True
            scene.here.clock.advance(10_000)
            await scene.until_noted(1)
        marks = {row[names.ESCAPED_FROM] for row in scene.properties()}
        assert (len(scene.bodies()), len(marks)) == (2 if is_stored else 1, 1)


async def test_a_refused_message_holds_back_none_of_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for the next master, the others of its batch go without it."""

    def check(batch: bytes, *groups: Any) -> BatchHeader:
        if any(body == b"due %d" % poison for body in BatchView(batch).bodies()):
            raise BadRequestError("not this one")
        return check_escaped(batch, *groups)

    monkeypatch.setattr(intake, "check_escaped", check)
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        poison = now - 5
        scene.delay(*range(now - 10, now))
        await scene.act(9)
        assert len(scene.bodies()) == 9
        assert b"due %d" % poison not in scene.bodies()


async def test_many_refused_messages_are_few_at_a_time_and_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poisons = 40
    looked: list[int] = []

    def check(batch: bytes, *groups: Any) -> BatchHeader:
        if any(int(body[4:]) < now for body in BatchView(batch).bodies()):
            raise BadRequestError("not this one")
        return check_escaped(batch, *groups)

    monkeypatch.setattr(intake, "check_escaped", check)
    monkeypatch.setattr(bridge, "BACKLOG_MAX", 8)
    monkeypatch.setattr(bridge, "ALONE_MAX", 4)
    monkeypatch.setattr(bridge, "PART_MESSAGES", 4)
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.delay(*range(now - poisons, now), now + REFUSED_MS)
        part = scene.bridge._part

        def looking(*arguments: Any) -> Any:
            looked.append(len(scene.bridge._backlog))
            return part(*arguments)

        monkeypatch.setattr(scene.bridge, "_part", looking)
        scene.here.role.become_acting(7)
        async with scene.running():
            await until(lambda: len(scene.bridge._held) == poisons)
            looked.clear()
            scene.here.clock.advance(REFUSED_MS + SHELF_MS)
            await scene.until_noted(1)
            assert scene.bodies() == [b"due %d" % (now + REFUSED_MS)]
            await until(lambda: len(scene.bridge._held) == poisons and not scene.bridge.is_busy)
            assert not scene.bridge._alone
        assert max(looked) <= 8


def test_held_messages_come_back_in_order_as_there_is_room() -> None:
    held = Held()
    for source in range(5):
        held.add(source, 1_000 + source * SHELF_MS // 2)

    assert held.take(999, 9) == []
    assert held.take(1_100, 2) == [0, 1]
    assert held.take(1_100, 0) == held.take(1_100, -1) == []
    assert held.take(1_200, 9) == [2, 3, 4]
    held.add(7, 9_000)
    assert (len(held), held.take(9_000, 1), len(held)) == (1, [7], 0)


async def test_a_backlog_goes_in_parts_and_each_message_once() -> None:
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        count = 2 * PART_MESSAGES + 10
        for at in range(0, count, 100):
            scene.delay(*range(now - count + at, now - count + min(count, at + 100)))
        await scene.act(count)
        assert sorted(scene.bodies()) == sorted(b"due %d" % (now - count + n) for n in range(count))


async def test_a_connection_that_was_closed_for_idleness_is_no_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "IDLE_S_MAX", 0.05)
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.delay(now, now + 6000)
        scene.here.role.become_acting(7)
        async with scene.running():
            await scene.until_noted(1)
            await until(lambda: not scene.server._links)
            scene.here.clock.advance(6000)
            scene.bridge.poke()
            await scene.until_noted(2)
        assert (scene.bridge.unknown, scene.connected) == (0, 2)


async def test_a_second_appointment_sends_nothing_that_is_noted() -> None:
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.delay(now, now + 1)
        await scene.act(1)
        scene.restart()
        assert len(scene.kept.notes) == 1
        scene.here.role.become_acting(8)
        scene.here.clock.advance(1)
        async with scene.running():
            await scene.until_noted(2)
        assert scene.bodies() == [b"due %d" % now, b"due %d" % (now + 1)]


async def test_nothing_is_begun_once_the_appointment_has_ended() -> None:
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        scene.here.role.become_acting(7).has_ended = True
        scene.bridge._turn()
        assert not scene.bridge.is_busy


async def test_a_torn_file_keeps_what_is_whole() -> None:
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.here.role.become_acting(7)
        notes = [(n << 16, now, 1 << 16, 1) for n in range(3)]
        for row in notes:
            scene.kept.add([SentNote(*row)])
            await scene.kept.save()
        path = "/data/acting-escaped.bin"
        file = scene.disk.open(path)
        scene.disk.truncate(file, scene.disk.size(file) - 5)
        file.close()
        again = NotesFile(scene.disk, "/data")
        assert again.notes.first(9) == [SentNote(*row) for row in notes[:2]]
        again.add([SentNote(*notes[2])])
        await again.save()
        assert len(NotesFile(scene.disk, "/data").notes) == 3
        await again.settle(3)
        assert len(NotesFile(scene.disk, "/data").notes) == 0
