"""The role: views in, mastership or following out, whatever happens in between."""

from dataclasses import replace

from tests.support.broker.brokers import DATA, Broker, a_group, eventually, tell

from paceline.errors import OutcomeUnknownError, PacelineError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom, pause
from paceline.types import PhysicalOffset
from paceline.wire import session as wire
from paceline_broker.log.layout import segment_name
from paceline_broker.ports import RoleState

ALONE = frozenset({1})


async def test_the_view_that_shows_our_registration_is_taken_when_the_answer_comes() -> None:
    broker = Broker()
    async with broker.running(is_registered=False):
        tell(a_group(broker, sync_state_set=ALONE, minimum=1), 7, broker)
        assert broker.role.view is None  # whose cluster that is it does not know yet

        broker.register()

        await eventually(lambda: broker.role.state is RoleState.MASTER)


async def test_a_view_from_before_its_registration_gives_a_start_no_role() -> None:
    disk = MemoryDisk()
    broker = Broker(disk=disk)
    async with broker.running():
        old = a_group(broker, sync_state_set=ALONE, minimum=1)
    disk.crash(SeededRandom("kill"), keep_page_cache=True)

    again = Broker(disk=disk)
    async with again.running(is_registered=False):
        tell(old, 7, again)  # a newer epoch, and ourselves as its master, in our last start
        await pause(1)
        assert (again.role.epoch, again.role.state) == (0, RoleState.STARTING)

        again.register()

        await pause(1)
        assert (again.role.epoch, again.role.state) == (0, RoleState.STARTING)


async def test_a_stale_incarnation_may_still_be_raised_and_registered() -> None:
    broker = Broker()
    broker.identity.join_cluster(cluster_id="c", replica_id=broker.number)
    async with broker.running(is_registered=False):
        tell(a_group(incarnations={1: 9}, master=None), 7, broker)  # a restored folder
        await pause(1)
        assert broker.fatal is None


async def test_another_start_on_record_ends_a_registered_process() -> None:
    broker = Broker()
    async with broker.running():
        tell(a_group(incarnations={1: 2}, master=None), 7, broker)

        await eventually(lambda: broker.fatal is not None)


async def test_a_term_ends_for_everybody_although_its_last_write_fails() -> None:
    broker = Broker()
    async with broker.running():
        tell(a_group(broker, minimum=2), 1, broker)
        await eventually(lambda: broker.role.state is RoleState.MASTER)
        term, heard = broker.mastership.term, list[PacelineError | None]()
        broker.disk.fail_next("writev")

        tell(a_group(broker, epoch=4, master=2), 2, broker)
        end = broker.send()  # in the same turn: the view is taken before it is written
        broker.mastership.wait_confirmed(end, heard.append, timeout_ms=60_000)

        await eventually(lambda: broker.role.state is RoleState.FENCED)
        assert term.has_ended  # R2: nothing of the old epoch stands when the next is adopted
        assert broker.server.term is None
        assert isinstance(heard[0], OutcomeUnknownError)


async def test_a_master_that_cannot_fold_its_log_again_is_read_by_nobody() -> None:
    """R24: of its state there is what lies before the damage: queues would seem to end there."""
    broker = Broker()
    async with broker.running():
        tell(a_group(broker, sync_state_set=ALONE, minimum=1), 1, broker)
        await eventually(lambda: bool(broker.role.status()["is_open"]))
        broker.send()
        await eventually(lambda: broker.store.log.confirm == broker.store.log.end)
        assert broker.role.reader.is_readable
        broker.disk.flip_bit(f"{DATA}/log/{segment_name(PhysicalOffset(0))}", 40)

        tell(a_group(broker, epoch=4, master=2), 2, broker)

        await eventually(lambda: broker.role.state is RoleState.FENCED)
        assert not broker.role.is_healthy()
        assert not broker.role.reader.is_readable


async def test_a_store_that_must_not_lead_is_fenced_in_the_epoch_it_was_elected_in() -> None:
    broker = Broker()
    async with broker.running():
        tell(a_group(broker, minimum=2), 1, broker)
        await eventually(lambda: broker.role.state is RoleState.MASTER)
        broker.role.mastership_fenced(broker.mastership, "a stale copy", is_lossy=True)

        tell(a_group(broker, epoch=4), 2, broker)  # it was decided before the news was heard

        await eventually(lambda: broker.role.epoch == 4)
        assert broker.role.mastership is None  # R16
        heartbeat = broker.role.heartbeat()
        assert heartbeat is not None
        assert (heartbeat.role, heartbeat.is_healthy) == (wire.Role.FENCED, False)


async def test_a_replica_whose_fsync_failed_says_nothing_more() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running(), replica.running():
        pair = a_group(master, replica, sync_state_set=frozenset({1, 2}))
        tell(pair, 1, master, replica)
        await eventually(lambda: bool(master.role.status()["is_open"]))
        replica.disk.fail_next("sync")

        end = master.send()

        await eventually(lambda: not replica.role.is_healthy())
        # R22: not even an echo of a round. The loop tells of the end one turn after the abort.
        await eventually(lambda: not replica.role.status()["is_connected"])
        assert master.store.log.confirm < end


async def test_a_restarted_replica_of_an_idle_group_may_be_read() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running():
        async with replica.running():
            pair = a_group(master, replica, sync_state_set=frozenset({1, 2}))
            tell(pair, 1, master, replica)
            await eventually(lambda: replica.store.log.confirm == master.store.log.end > 0)
        replica.store.close(clean=True)

        again = Broker(2, disk=replica.disk)
        async with again.running():
            assert again.store.log.confirm == master.store.log.end
            assert not again.role.reader.is_readable
            tell(a_group(master, again, sync_state_set=frozenset({1, 2})), 2, master, again)

            await eventually(lambda: again.role.reader.is_readable)  # R3: a frame has told it


async def test_suspicion_lasts_until_the_epochs_start_is_on_the_disk() -> None:
    master, replica = Broker(1), Broker(2)
    _make_suspect(replica)
    async with master.running(), replica.running():
        tell(a_group(master, replica, sync_state_set=frozenset({1, 2})), 1, master)
        await eventually(lambda: master.role.state is RoleState.MASTER)
        replica.disk.sync_delay_ms = 50

        tell(a_group(master, replica, sync_state_set=frozenset({1, 2})), 1, replica)

        log = replica.store.log
        await eventually(lambda: bool(replica.role.status()["is_connected"]))
        tell(a_group(master, replica, sync_state_set=frozenset({1, 2})), 2, replica)
        await eventually(lambda: not log.checkpointed.is_suspect)
        assert log.flushed > 0  # R23: connected and a member is not enough
        assert log.last_epoch == replica.role.epoch


async def test_an_epochs_start_from_before_the_cut_settles_no_suspicion() -> None:
    master, replica = Broker(1), Broker(2)
    async with master.running():
        async with replica.running():
            pair = a_group(master, replica, sync_state_set=frozenset({1, 2}))
            tell(pair, 1, master, replica)
            await eventually(lambda: bool(master.role.status()["is_open"]))
            start_end = replica.store.log.end
            master.send()
            await eventually(lambda: replica.store.log.confirm > start_end)
        replica.store.log.truncate_to(start_end, allow_below_confirm=True)  # as a flip makes it
        replica.store.close(clean=True)

    again = Broker(2, disk=replica.disk)
    _make_suspect(again)
    async with again.running():
        vacated = a_group(master, again, master=None, sync_state_set=frozenset({1, 2}))
        tell(vacated, 2, again)
        await eventually(lambda: again.role.view is not None)
        await pause(1)

        log = again.store.log
        assert log.epochs.start_of(again.role.epoch) is not None
        assert log.checkpointed.is_suspect  # R23: what was confirmed later in this epoch is gone


def _make_suspect(broker: Broker) -> None:
    log = broker.store.log
    log.checkpoint_saved(replace(log.checkpointed, is_suspect=True))


async def test_master_that_stops_does_not_fold_its_log_again() -> None:
    """R2, R28: it takes no other role, so nobody reads what was not confirmed; and the fold would
    take the CPU that its successor needs."""
    broker = Broker()
    async with broker.running():
        tell(a_group(broker, sync_state_set=ALONE, minimum=1), 1, broker)
        await eventually(lambda: broker.role.mastership is not None and broker.mastership.is_open)
        before = broker.role.projections
        broker.role.is_stopping = True

        tell(a_group(broker, sync_state_set=frozenset({1, 2}), master=2, epoch=4), 2, broker)
        await eventually(lambda: broker.role.state is RoleState.FENCED)

        assert broker.role.mastership is None
        assert broker.role.projections is before
        assert not broker.role.reader.is_readable
        assert broker.role.status()["following"] is None
