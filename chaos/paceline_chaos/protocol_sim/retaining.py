"""Retention in the bed (R14, R26): the product's own cleaner decides, a step of the walk carries it
out, as `flusher.py` does between flushes."""

from typing import cast

from paceline.errors import StorageError
from paceline.platform.address import Address
from paceline_broker.config import BrokerConfig
from paceline_broker.controllers.clock_skew import ClockSkew, ClockTrust
from paceline_broker.log.flusher import Flusher
from paceline_broker.ports import Role
from paceline_broker.retention.cleaner import Cleaner
from paceline_broker.role.role import BrokerRole
from paceline_broker.service.settings import ServiceSettings
from paceline_chaos.protocol_sim.controllers import GROUP
from paceline_chaos.protocol_sim.process import Process
from paceline_chaos.protocol_sim.turns import finish_now

_SKEW_MS_MAX = 5_000


class WalkedFlusher(Flusher):
    """Flushes are steps of the walk, nobody needs to be poked; what is let go, goes at once."""

    def __init__(self, node: Process, folder: str) -> None:
        self._node = node
        self._log = node.store.log
        self._disk = node.disk
        self._folder = folder

    def poke(self) -> None:
        return

    def keep_up(self) -> None:
        start = self._log.start
        if self._log.drop_wanted is None or self._log.failure is not None:
            return
        try:
            finish_now(self._save_checkpoint())
        except StorageError as error:  # as `_keep`: not fatal by itself
            self._node.world.note(f"{self._node.name} lets nothing go: {error.message}")
        if self._log.start > start:
            self._node.world.coverage.saw("log_starts_moved")


class _BedClocks(ClockSkew):
    """The controllers' wall clock is right, and every broker knows by how much its own is not."""

    def __init__(self, node: Process) -> None:
        self._node = node

    def trust(self, *, own_unix_ms: int, now_ms: int) -> ClockTrust:
        skew_ms = abs(self._node.clock.offset_ms)
        return ClockTrust.AGREES if skew_ms <= _SKEW_MS_MAX else ClockTrust.DIFFERS


def make_cleaner(node: Process, role: Role, flusher: Flusher) -> Cleaner:
    """The cleaner of one process; it gives up by size alone, logs of a minute are never old."""
    config = BrokerConfig(
        group=GROUP,
        data_dir="data",
        secret_file="",
        controllers=("c1:1",),
        listen=Address("127.0.0.1", 1),
        replication_listen=Address("127.0.0.1", 2),
        log_size_bytes_max=node.world.log_bytes_max,
    )
    return Cleaner(
        role=cast(BrokerRole, role),  # `clean` asks for no more than what the service sees
        store=node.store,
        flusher=flusher,
        clock=node.clock,
        clocks=_BedClocks(node),
        config=config,
        service=ServiceSettings(),
        routes=node.service.routes,
    )
