"""Damage of the log: it is found, served to nobody, and repaired from other members (R24).

Owned by the role. While the log is damaged this replica acknowledges nothing (its client is
stopped), reports itself unhealthy, so it is not elected, and does not lead; a master hands over
first. The repair dials the master of the present epoch, then the other members of its set: what
lies below a member's confirm may come from any of them, what must be cut only while a master is
there that sends it again. That master need not be open: where the set cannot do without this member
(R8) it opens only once this one acknowledges. Then the log is opened anew, the state is made anew,
and the role follows as after a start.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from paceline.errors import (
    CorruptLogError,
    DeadlineError,
    PeerError,
    StorageError,
    UnauthenticatedError,
)
from paceline.platform.address import parse_address
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.security.node_tls import Dial
from paceline.types import Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.cluster import GroupView, ReplicaView
from paceline.wire.messages import Nonce
from paceline_broker.config import BrokerConfig
from paceline_broker.integrity.repair_client import RepairConnection, Requester
from paceline_broker.integrity.repair_source import RepairSource
from paceline_broker.integrity.repair_wire import RepairHello
from paceline_broker.integrity.scrubber import Scrubber
from paceline_broker.log.recovery import Damage
from paceline_broker.log.repair import RangeRepairer, kept_aside
from paceline_broker.storage.store import StateLostError, Store

log = logging.getLogger("paceline.repair")

FETCH_BYTES = 256 * 1024
"""One answer; the next is asked for when it is written."""
RETRY_MS_MIN, RETRY_MS_MAX = 100, 1000
CLAIM_MS = 1500
"""A member that asked for a repair so lately is damaged; who is mended joins sooner."""


class RepairedRole(Protocol):
    """What the repair asks of the role."""

    @property
    def group_view(self) -> GroupView | None: ...

    @property
    def is_leading(self) -> bool: ...

    def log_damaged(self) -> None:
        """Stop acknowledging; as master have a successor elected, and lead no more in any case.

        `is_idle` says when the files may be touched.
        """
        ...

    @property
    def is_idle(self) -> bool:
        """Neither master nor connected to one: nobody appends, or makes or deletes segments."""
        ...

    def log_beyond_repair(self, reason: str) -> None:
        """Set the log aside and fetch all of it anew, once this replica is no member of the set."""
        ...

    def log_reopened(self) -> None:
        """The log is whole: make the state anew and take the newest view again. StorageError."""
        ...

    def replica_failed(self, error: StorageError) -> None: ...


class LogRepairer:
    """The scrubber and the repair of one broker, and what it gives to others."""

    def __init__(
        self,
        role: RepairedRole,
        *,
        store: Store,
        config: BrokerConfig,
        secrets: ClusterSecrets,
        dial: Dial,
        probe: Callable[[ReplicaView], Awaitable[bool]],
        clock: Clock,
        random: Random,
    ) -> None:
        """`probe`: whether that start of a replica is surely gone (R12)."""
        self._role = role
        self._store = store
        self._secrets = secrets
        self._dial = dial
        self._probe = probe
        self._clock = clock
        self._random = random
        self.scrubber = Scrubber(
            store,
            clock,
            folder=f"{config.data_dir}/log",
            interval_hours=config.scrub_interval_hours,
            bytes_per_s=config.scrub_bytes_per_s,
            on_damage=self.damaged,
        )
        self._quarantine = f"{config.data_dir}/quarantine"
        self.aside = kept_aside(store.disk, self._quarantine)
        """Bytes that were replaced so far, for whoever wants to know what the disk did."""
        self._wakeup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._claims: dict[tuple[ReplicaId, Incarnation], int] = {}
        self.damages_count = 0 if store.log.damage is None else 1
        """Places found since this process started: by its start, readers or the scrubber."""
        self.repaired_count = 0
        self.repaired_bytes = 0
        self.source = RepairSource(
            store=store,
            is_master=lambda: role.is_leading,
            claimed=self._claimed,
            doubted=self.scrubber.look_at,
        )
        """What this broker gives to members whose log is damaged, master or not."""

    def start(self) -> None:
        self._tasks = [
            spawn(self.scrubber.run(), name="scrubber"),
            spawn(self._run(), name="log-repair"),
        ]

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks)

    def status(self) -> dict[str, Any]:
        """JSON values for `/v1/status`."""
        damage, counts = self._store.log.damage, self.scrubber.counts
        return {
            "damage": None
            if damage is None
            else {"position": damage.position, "end": damage.mark, "reason": damage.reason},
            "damages_found": self.damages_count,
            "repairs": self.repaired_count,
            "repaired_bytes": self.repaired_bytes,
            "quarantine_files": self.aside.files_count,
            "quarantine_bytes": self.aside.size_bytes,
            "scrub_passes": counts.passes,
            "scrub_position": counts.position,
            "scrubbed_bytes": counts.bytes,
            "side_files_replaced": counts.side_files,
        }

    @property
    def damage(self) -> Damage | None:
        return self._store.log.damage

    def damaged(self, position: PhysicalOffset, reason: str) -> None:
        """No whole batch stands at `position`, where one was durable."""
        commit_log = self._store.log
        if commit_log.failure is not None or position >= commit_log.flushed:
            return  # opened damaged already; or never durable, so no damage
        before = commit_log.damage
        try:
            commit_log.note_damage(position, reason)
        except StorageError as error:
            self._role.replica_failed(error)
            return
        if before is None or not before.covers(position, position + 1):
            self.damages_count += 1
        log.error("log_damaged", extra={"position": int(position), "fault": reason})
        self._role.log_damaged()
        self.wake()

    def is_damage(self, error: StorageError) -> bool:
        """Whether a fold failed because of bytes that changed; they are noted then."""
        commit_log = self._store.log
        position = self._store.projections.position
        if not isinstance(error, CorruptLogError) or commit_log.failure is not None:
            return False
        if commit_log.damage is None and self._store.is_intact_at(position):
            return False
        self.damaged(position, error.message)
        return commit_log.damage is not None

    def wake(self) -> None:
        """Something that the repair waits for may have come."""
        self._wakeup.set()

    def _claimed(self, replica: ReplicaId, incarnation: Incarnation) -> None:
        self._claims[replica, incarnation] = self._clock.monotonic_ms()

    def probe(self, replica: ReplicaId, incarnation: Incarnation) -> Awaitable[bool]:
        """Whether nobody needs to wait for that member: it is gone (R12), or damaged (R24)."""
        group = self._role.group_view
        view = None if group is None else group.replicas.get(replica)
        if view is None or view.incarnation != incarnation:
            return _always(view is not None)  # another start has registered: this one is gone
        claimed_ms = self._claims.get((replica, incarnation))
        if claimed_ms is not None and self._clock.monotonic_ms() - claimed_ms <= CLAIM_MS:
            return _always(True)
        return self._probe(view)

    # -- the repair -------------------------------------------------------------------------------

    async def _run(self) -> None:
        wait_ms = RETRY_MS_MIN
        while True:
            if self._store.log.damage is None:
                wait_ms = RETRY_MS_MIN
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            try:
                for source in self._sources():
                    if await self._repair_from(source):
                        break
            except StorageError as error:
                self._role.replica_failed(error)
                if not isinstance(error, StateLostError):
                    return
            if self._store.log.damage is not None:
                await pause(wait_ms * self._random.uniform(0.5, 1.0))
                wait_ms = min(2 * wait_ms, RETRY_MS_MAX)

    def _sources(self) -> list[ReplicaView]:
        """Members of the present epoch, its master first."""
        group, known = self._role.group_view, self._store.identity.identity
        is_present = group is not None and group.master_epoch == self._store.identity.epoch
        if group is None or not is_present or not self._role.is_idle or known.cluster_id is None:
            return []
        members = group.sync_state_set - {known.replica_id}
        return [
            group.replicas[member]
            for member in sorted(members, key=lambda member: (member != group.master, member))
            if member in group.replicas
        ]

    async def _repair_from(self, source: ReplicaView) -> bool:
        """One attempt with one member; True if the log is whole after it."""
        identity = self._store.identity
        damage, known, epoch = self._store.log.damage, identity.identity, identity.epoch
        assert damage is not None
        assert known.cluster_id is not None
        assert known.replica_id is not None
        host, port = parse_address(source.replication_address)
        hello = RepairHello(
            cluster_id=known.cluster_id,
            group=known.group,
            replica_id=known.replica_id,
            incarnation=known.incarnation,
            nonce=Nonce.fresh(self._random),
        )
        requester = Requester(hello=hello, epoch=epoch, secrets=self._secrets)
        try:
            connection = await RepairConnection.open(
                requester, host, port, dial=self._dial, at=damage.position
            )
        except (PeerError, DeadlineError, UnauthenticatedError, OSError) as error:
            log.info("repair_refused", extra={"of": source.replica_id, "why": str(error)})
            return False
        try:
            return await self._mend(connection, epoch)
        except (PeerError, DeadlineError, CorruptLogError, OSError) as error:
            log.warning("repair_interrupted", extra={"of": source.replica_id, "why": str(error)})
            return False
        finally:
            connection.close()

    def _may_go_on(self, epoch: MasterEpoch) -> bool:
        """Asked after every wait: the role may have changed (R2)."""
        return self._store.identity.epoch == epoch and self._role.is_idle

    async def _mend(self, connection: RepairConnection, epoch: MasterEpoch) -> bool:
        offer, commit_log = connection.offer, self._store.log
        if not self._may_go_on(epoch) or commit_log.damage is None:
            return False
        planned = commit_log.damage
        # What this replica itself knows as confirmed it may not cut (R16).
        own_confirm = commit_log.checkpointed.confirm if offer.is_master else 0
        mender = commit_log.begin_repair(self._quarantine)
        try:
            while not mender.is_done:
                is_bad = mender.scan(offer.epochs)
                if is_bad and mender.position >= max(connection.confirm, own_confirm):
                    return offer.is_master and self._cut(mender)
                if is_bad and offer.is_master and mender.position < offer.start:
                    self._role.log_beyond_repair(
                        f"what is damaged at {mender.position} is deleted everywhere else: its"
                        f" master's log begins at {offer.start}"
                    )
                    return False
                if is_bad:
                    data = await connection.fetch(mender.position, FETCH_BYTES)
                    limit = max(connection.confirm, own_confirm)
                    data = data[: max(0, limit - mender.position)]  # a boundary: whole batches
                    if not data:
                        raise PeerError(f"{mender.position} is not to be had there")
                else:
                    await pause(0)
                if not self._may_go_on(epoch):
                    return False
                if is_bad:
                    mender.fill(data, offer.epochs)
            await self._sync(mender)
            if not self._may_go_on(epoch) or commit_log.damage != planned:
                return False
            mender.finish()
        finally:
            mender.close()
            self.aside = kept_aside(self._store.disk, self._quarantine)
        self._done(mender)
        return True

    async def _sync(self, mender: RangeRepairer) -> None:
        """Off the loop, so that the step that follows finds little to do."""
        for file in mender.files():
            await self._store.disk.sync(file)

    def _cut(self, mender: RangeRepairer) -> bool:
        log.warning("log_cut_for_repair", extra={"to": int(mender.position)})
        mender.cut()
        self._done(mender)
        return True

    def _done(self, mender: RangeRepairer) -> None:
        self.repaired_count += 1
        self.repaired_bytes += mender.mended_bytes
        self._store.reopen()
        log.warning("log_repaired", extra={"bytes": mender.mended_bytes})
        if self._store.log.damage is None:  # else the next attempt goes on with what is left
            self._role.log_reopened()


async def _always(answer: bool) -> bool:
    return answer
