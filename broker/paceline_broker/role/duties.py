"""What a broker does by the clock, beside its role: registering, floors, checkpoints, disk health.

Owned by `app.py`'s one background task; reads the role, and tells it only how its disk does.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from paceline.errors import StorageError
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import pause
from paceline.wire.session import RegisterReplica
from paceline_broker.config import BrokerConfig
from paceline_broker.controllers.recovery_offer import RecoveryWait, refused
from paceline_broker.controllers.session import ControllerLinks
from paceline_broker.role.role import BrokerRole
from paceline_broker.storage.disk_health import DiskState, DiskWatch
from paceline_broker.storage.store import Store

log = logging.getLogger("paceline.duties")

TICK_MS = 100
FLOOR_INTERVAL_MS = 1000
"""The confirm floor is told each second when it moved (R16)."""
REGISTRATION_ATTEMPTS_MAX = 3


async def register(
    *,
    links: ControllerLinks,
    store: Store,
    config: BrokerConfig,
    boot_id: str,
    random: Random,
    client_address: str,
    replication_address: str,
) -> None:
    """Register this start of the store (R9); returns when the controllers have taken it.

    Waits for ever for a quorum, and for an operator if the controllers do not know the group (R18).
    Raises ConfigError with a sentence when they refuse: another cluster, records without a group,
    an identity that is not known.
    """
    identity = store.identity
    waiting = RecoveryWait(
        links,
        store,
        client_address=client_address,
        replication_address=replication_address,
        config=config,
    )
    attempts_count = 0
    while attempts_count < REGISTRATION_ATTEMPTS_MAX:
        known = identity.identity
        command = _registration(store, config, client_address, replication_address)
        result = await links.request(command)
        if result["ok"]:
            identity.join_cluster(
                cluster_id=result["cluster_id"],
                replica_id=result["replica_id"],
                replaces_cluster=result.get("replaces_cluster"),
            )
            log.info("registered", extra={"replica_id": result["replica_id"]})
            return
        if result.get("reason") == "RECOVERY_NEEDED" and known.cluster_id is not None:
            if known.incarnation == 1:  # the controllers name the one before as registered (R9)
                identity.begin_incarnation(group=known.group, boot_id=boot_id, random=random)
            await waiting.show(result["detail"])
            continue
        attempts_count += 1
        if result.get("reason") != "INCARNATION_STALE":
            break
        recorded = int(result.get("incarnation", 0))
        while identity.identity.incarnation <= recorded:
            identity.begin_incarnation(group=known.group, boot_id=boot_id, random=random)
    raise refused(result)


def _registration(
    store: Store, config: BrokerConfig, client_address: str, replication_address: str
) -> RegisterReplica:
    known, commit_log = store.identity.identity, store.log
    return RegisterReplica(
        group=known.group,
        store_id=known.store_id,
        replica_id=known.replica_id,
        incarnation=known.incarnation,
        client_address=client_address,
        replication_address=replication_address,
        end=commit_log.end,
        confirm=commit_log.confirm,
        last_epoch=commit_log.epochs.last_epoch,
        is_empty=commit_log.end == 0,
        is_unclean=known.is_unclean,
        is_suspect=store.is_suspect,  # R23, R24
        is_learner=config.is_learner,
        election_priority=config.election_priority,
    )


class Duties:
    """The periodic work of one broker. `run` ends only by cancellation."""

    def __init__(
        self,
        *,
        role: BrokerRole,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        clean: Callable[[], Coroutine[Any, Any, None]],
        deliver: Callable[[], Coroutine[Any, Any, None]],
        seal: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """What runs for ever: `clean` (cleaner.py), `deliver` (service/delays/delivery.py), `seal`
        (retention/queue_sealing.py)."""
        self._role = role
        self._clean = clean
        self._deliver = deliver
        self._seal = seal
        self._store = store
        self._config = config
        self._clock = clock
        now = clock.monotonic_ms()
        self._floor_ms = self._checkpoint_ms = now
        self._disk = DiskWatch(stall_ms=config.disk_stall_ms, tick_ms=TICK_MS, now_ms=now)

    async def run(self) -> None:
        # Apart, as a checkpoint waits for the disk: who watches the disk must not wait with it.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="duties-watch")
            group.create_task(self._keep_checkpoints(), name="duties-checkpoints")
            group.create_task(self._clean(), name="duties-cleaner")
            group.create_task(self._deliver(), name="duties-delivery")
            group.create_task(self._seal(), name="duties-sealing")

    async def _watch(self) -> None:
        while True:
            await pause(TICK_MS)
            now = self._clock.monotonic_ms()
            self._watch_disk(now)
            self._tell_floor(now)

    def _watch_disk(self, now: int) -> None:
        """A master whose disk stalls is replaced, if another's does better (R22): the controllers
        hear it at once."""
        commit_log = self._store.log
        state = DiskState(
            syncs_finished=self._role.flusher.syncs_finished,
            waiting_bytes=max(0, commit_log.written - commit_log.flushed),
        )
        before, self._role.disk = self._role.disk, self._disk.look(state, now)
        if self._role.disk.is_stalled != before.is_stalled:
            log.warning("disk_recovered" if before.is_stalled else "disk_stalled")
            self._role.tell_health()

    def _tell_floor(self, now: int) -> None:
        if now - self._floor_ms >= FLOOR_INTERVAL_MS:
            self._floor_ms = now
            self._role.tell_floor()

    async def _keep_checkpoints(self) -> None:
        interval_ms = self._config.checkpoint_interval_ms
        while True:
            due_ms = self._checkpoint_ms + interval_ms - self._clock.monotonic_ms()
            await pause(TICK_MS if self._store.is_checkpoint_pending else max(due_ms, TICK_MS))
            await self._checkpoint_if_due(self._clock.monotonic_ms())

    async def _checkpoint_if_due(self, now: int) -> None:
        if now - self._checkpoint_ms >= self._config.checkpoint_interval_ms:
            self._checkpoint_ms = now
            while self._store.prepare_checkpoint():
                await pause(0)
            self._store.begin_checkpoint()
        try:
            await self._store.finish_checkpoint()
        except StorageError as error:
            # Nothing is lost without it: the next start folds a longer part of the log.
            log.warning("checkpoint_failed", extra={"fault": error.message})
