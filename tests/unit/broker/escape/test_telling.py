"""R36: the next master skips what it is told of, and only that, by a record."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.support.escape.scene import SECRET, Scene, a_scene
from tests.support.service.fakes import GROUP, replayed, until

from paceline.platform.runtime import SeededRandom, cancel_and_wait, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.records.header import Cause, Kind
from paceline_broker.escape.session import EscapeSession
from paceline_broker.replication.master.server import ReplicationServer
from paceline_broker.service.escape.notes import SentNote
from paceline_broker.service.escape.wait import GRACE_MS, EscapeWait
from paceline_broker.service.escape.wire import EPOCHS_MAX, EscapeHello


def delivered(scene: Scene) -> list[bytes]:
    return [
        body
        for view in scene.here.log.views()
        if view.header.cause == Cause.DELAYED
        for body in view.bodies()
    ]


def turn(scene: Scene) -> int:
    waits_ms = scene.here.service.delivery.turn()
    scene.here.writer.confirm_all()
    return waits_ms


@asynccontextmanager
async def returned(scene: Scene, *, epoch: int = 8) -> AsyncIterator[None]:
    """The group has a master again (the same log here), and the broker that acted sees it."""
    start = int(scene.here.log.end)
    scene.here.role.begin_epoch(epoch)
    scene.here.log.epoch_starts[epoch] = start
    scene.here.log.is_automatic = True
    server = ReplicationServer(
        group=GROUP, secrets=ClusterSecrets(SECRET), random=SeededRandom("m")
    )
    server.serve(EscapeHello, partial(EscapeSession, scene.here.service.intake))
    port = await server.start("127.0.0.1", 0)
    view = scene.view(version=9, g1_port=port)
    scene.returned.group_view = view.groups[GROUP]
    try:
        yield
    finally:
        await server.stop()


async def test_what_was_sent_elsewhere_is_not_delivered_here_and_all_replicas_know() -> None:
    async with a_scene() as scene:
        now = scene.here.clock.unix_ms()
        scene.delay(now, now + 50_000)
        await scene.act(1)
        async with returned(scene):
            await scene.telling.tell()
            assert len(scene.kept.notes) == 0
            assert scene.here.service.intake.skipped == 1
            turn(scene)
            assert delivered(scene) == []
            scene.here.clock.advance(50_000)
            turn(scene)
            assert delivered(scene) == [b"due %d" % (now + 50_000)]
        assert replayed(scene.here) == scene.here.role.projections.snapshot()
        assert len(scene.here.role.projections.timers) == 0


async def test_many_appointments_are_told_of_in_parts() -> None:
    async with a_scene() as scene:
        scene.bridge.untold_epochs.update(range(2, 2 + 2 * EPOCHS_MAX + 1))
        async with returned(scene, epoch=200):
            await scene.telling.tell()
        assert not scene.bridge.untold_epochs


async def test_a_master_waits_for_what_an_acting_one_has_to_tell() -> None:
    """The gap between the epochs of its log says that there may be one."""
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        await scene.act(1, epoch=2)
        async with returned(scene, epoch=3):
            assert 0 < turn(scene) <= GRACE_MS
            assert delivered(scene) == []
            await scene.telling.tell()
            assert (
                scene.here.service.delivery._escape.rest_ms(
                    scene.here.writer.epoch, now_ms=scene.here.clock.monotonic_ms()
                )
                == 0
            )


async def test_after_the_grace_it_delivers_and_being_told_then_changes_nothing() -> None:
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        await scene.act(1)
        async with returned(scene):
            turn(scene)
            scene.here.clock.advance(GRACE_MS)
            turn(scene)
            assert len(delivered(scene)) == 1
            await scene.telling.tell()
            assert scene.here.service.intake.skipped == 0
            assert len(scene.kept.notes) == 0


async def test_a_restart_tells_what_the_file_has_and_twice_is_as_good_as_once() -> None:
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        await scene.act(1)
        [note] = scene.kept.notes.first(9)
        async with returned(scene):
            view = scene.returned.group_view
            scene.restart()
            scene.returned.group_view = view
            await scene.telling.tell()
            scene.kept.add([note])
            await scene.telling.tell()
            assert scene.here.service.intake.skipped == 1
            assert len(scene.kept.notes) == 0


async def test_who_acted_and_was_elected_tells_himself() -> None:
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        await scene.act(1)
        async with returned(scene):
            connected = scene.connected
            scene.returned.identity = scene.here.role.identity
            await scene.telling.tell()
            assert (scene.here.service.intake.skipped, scene.connected) == (1, connected)


async def test_it_is_told_again_until_the_master_is_open() -> None:
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        await scene.act(1)
        async with returned(scene):
            scene.here.writer.is_open = False
            task = spawn(scene.telling.run(), name="telling")
            await until(lambda: scene.connected > 3)
            assert len(scene.kept.notes) == 1
            scene.here.writer.is_open = True
            await until(lambda: len(scene.kept.notes) == 0)
            await cancel_and_wait(task)
            assert scene.here.service.intake.skipped == 1


@pytest.mark.parametrize(
    "change",
    [
        {"due_unix_ms": 5},
        {"key": 2 << 16},
        {"epoch": 6},
        {"origin": 1 << 40},
    ],
    ids=str,
)
async def test_a_note_of_another_message_skips_nothing(change: dict[str, int]) -> None:
    """After an unclean election another message may lie at the same place."""
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        await scene.act(1)
        [note] = scene.kept.notes.first(1)
        await scene.kept.settle(1)
        scene.kept.add([SentNote(**{**note._asdict(), **change})])
        async with returned(scene):
            await scene.telling.tell()
            assert scene.here.service.intake.skipped == 0
            assert len(scene.here.role.projections.timers) == 1


async def test_a_message_that_was_moved_meanwhile_is_found() -> None:
    """R26: retention has stored it again; a note names the place it had first."""
    async with a_scene() as scene:
        scene.delay(scene.here.clock.unix_ms())
        await scene.act(1)
        async with returned(scene):
            needs = scene.here.service.delivery.needs
            needs.append_again(scene.here.log.end)
            assert needs.turn(scene.here.writer, scene.here.role.projections, count_max=9)
            scene.here.writer.confirm_all()
            assert scene.here.log.views()[-1].header.kind == Kind.DELAY
            await scene.telling.tell()
            assert scene.here.service.intake.skipped == 1
            assert len(scene.here.role.projections.timers) == 0


# -- the wait -------------------------------------------------------------------------------------


def a_wait(*epochs: int, is_on: bool = True) -> EscapeWait:
    return EscapeWait(lambda: [{"epoch": epoch} for epoch in epochs], is_on=is_on)


@pytest.mark.parametrize(("epochs", "rest_ms"), [((3, 4), 0), ((4,), 0), ((1, 4), GRACE_MS)])
def test_only_a_gap_between_epochs_is_waited_for(epochs: tuple[int, ...], rest_ms: int) -> None:
    assert a_wait(*epochs).rest_ms(4, now_ms=10) == rest_ms  # type: ignore[arg-type]
    assert a_wait(*epochs, is_on=False).rest_ms(4, now_ms=10) == 0  # type: ignore[arg-type]


def test_what_was_told_before_anybody_asked_counts() -> None:
    wait = a_wait(1, 3)
    wait.told([2])
    assert wait.rest_ms(3, now_ms=10) == 0  # type: ignore[arg-type]


async def test_the_wait_counts_from_the_opening_also_if_nothing_waits_then() -> None:
    async with a_scene() as scene, returned(scene):
        turn(scene)
        scene.here.clock.advance(GRACE_MS)
        scene.delay(scene.here.clock.unix_ms())
        turn(scene)
        assert len(delivered(scene)) == 1


def test_it_ends_when_all_epochs_of_the_gap_were_told_of_or_time_is_up() -> None:
    wait = a_wait(1, 4)
    assert wait.rest_ms(4, now_ms=10) == GRACE_MS  # type: ignore[arg-type]
    wait.told([2])
    assert wait.rest_ms(4, now_ms=20) == GRACE_MS - 10  # type: ignore[arg-type]
    wait.told([3])
    assert wait.rest_ms(4, now_ms=20) == 0  # type: ignore[arg-type]
    wait = a_wait(1, 4)
    wait.rest_ms(4, now_ms=10)  # type: ignore[arg-type]
    assert wait.rest_ms(4, now_ms=10 + GRACE_MS) == 0  # type: ignore[arg-type]
