"""A broker as master: the real mastership and term, with links that are queues.

Here is what `role.py` does around a mastership and `server.py` before it: beginning and ending it,
carrying its wishes to the controllers, handing connections to its term.
"""

from functools import partial
from typing import Any

from paceline.platform.ports import Buffer
from paceline.types import PhysicalOffset
from paceline.wire.cluster import GroupView
from paceline_broker.acting.withheld import WithheldWatch
from paceline_broker.replication.frames import Acknowledgement
from paceline_broker.replication.handshake import ConnectionId, Introduction, Welcome
from paceline_broker.replication.master.events import MasterSettings
from paceline_broker.replication.master.term import MasterTerm
from paceline_broker.replication.messages import Refused
from paceline_broker.role.mastership import Mastership
from paceline_broker.storage.confirmed_reader import StoreReader
from paceline_chaos.protocol_sim.controllers import GROUP
from paceline_chaos.protocol_sim.network import Closed, Connection, Message, WelcomeWith
from paceline_chaos.protocol_sim.process import Process
from paceline_chaos.protocol_sim.retaining import WalkedFlusher

REJOIN_BACKOFF_MS_MAX = 4000
"""The default, 30 s, is longer than L1 waits for the full set, and half of a run."""


class MasterLink:
    """A replica's connection as its master's term sees it; implements `ReplicaLink`."""

    def __init__(self, node: "Leading", connection: Connection[Any], term: MasterTerm) -> None:
        self._node = node
        self.pair = connection
        """Both ends of it."""
        self.term = term

    @property
    def connection(self) -> ConnectionId:
        return self.pair.connection

    def write(self, buffers: list[Buffer]) -> None:
        if self.pair.master.is_open:
            self.pair.send(self.pair.replica, b"".join(buffers))

    def send_welcome(self, welcome: Welcome, checkpoint: bytes | None) -> None:
        if self.pair.master.is_open:
            self.pair.send(self.pair.replica, WelcomeWith(welcome, checkpoint))

    def refuse(self, refused: Refused) -> None:
        if self.pair.master.is_open:
            self.pair.send(self.pair.replica, refused)
        self.close()

    def close(self) -> None:
        if self.pair.master.is_open:
            self.pair.close(self.pair.master)
            self._node.world.loop.call_soon(self.term.lost, self.connection)


class Leading(Process):
    """What a broker does while it leads, and how that begins and ends."""

    def clear(self) -> None:
        super().clear()
        self.links: dict[ConnectionId, MasterLink] = {}
        self.confirm_told = PhysicalOffset(0)
        self.reader: StoreReader
        self.flusher: WalkedFlusher

    def lead(self, group: GroupView) -> None:
        """The epoch was adopted durably (R2): the start record is appended in `Mastership`."""
        world = self.world
        world.judge.became_master(self.name, group.master_epoch, self.incarnation, self.log)
        world.coverage.saw("epochs")
        world.note(
            f"{self.name} leads epoch {group.master_epoch} from {self.log.end} "
            f"with {sorted(group.sync_state_set)}"
        )
        known = self.identity.identity
        assert known.replica_id is not None
        assert known.cluster_id is not None
        self.told_floor = 0
        self.confirm_told = self.log.confirm
        self.mastership = Mastership(
            owner=self,
            propose=self.ask_for_set,
            probe=partial(world.probe, self),
            store=self.store,
            flusher=self.flusher,
            view=group,
            cluster_id=known.cluster_id,
            group=GROUP,
            replica_id=known.replica_id,
            incarnation=known.incarnation,
            clock=self.clock,
            settings=MasterSettings(
                replica_lag_ms_max=world.lag_ms_max,
                rejoin_backoff_ms_max=REJOIN_BACKOFF_MS_MAX,
            ),
            unconfirmed_bytes_max=world.unconfirmed_bytes_max,
            withheld=WithheldWatch(),
        )
        self.mastership.term._settings = world.term_settings
        self.role_changed()
        self.mastership.term.begin()

    def role_changed(self) -> None:
        """The service looks again; `Node` has it."""

    def end_mastership(self, reason: str) -> None:
        """As `BrokerRole._end_mastership`."""
        mastership, self.mastership = self.mastership, None
        self.proposed.clear()
        self.asked = {key: asked for key, asked in self.asked.items() if asked[1] is None}
        if mastership is None:
            return
        self._end_term(mastership, reason)

    def _end_term(self, mastership: Mastership, reason: str) -> None:
        mastership.term.end(reason)
        for link in list(self.links.values()):
            link.close()
        self.links.clear()
        self.store.forget_pending_checkpoint()
        mastership.finish_writes()
        if self.log.failure is None:
            self.store.reload_projections()  # R28
        self.role_changed()

    # -- MastershipOwner

    def confirm_moved(self, confirm: PhysicalOffset) -> None:
        mastership = self.mastership
        if mastership is None:
            return
        before, self.confirm_told = self.confirm_told, self.log.confirm
        self.world.judge.master_confirmed(
            self.name,
            mastership.epoch,
            self.log,
            before,
            self.confirm_told,
            is_open=mastership.is_open,
        )
        if mastership.is_open:
            self.reader.is_readable = True
        self.reader.confirm_moved(confirm)

    def mastership_opened(self, mastership: Mastership) -> None:
        self.world.coverage.saw("epochs_opened")
        self.reader.is_readable = True
        self.world.judge.opened(self.name, mastership.epoch, self.log.confirm)
        self.tell_opened(mastership)
        self.role_changed()

    def mastership_fenced(self, mastership: Mastership, reason: str, *, is_lossy: bool) -> None:
        if self.mastership is not mastership:
            return
        self.world.note(f"{self.name} is fenced: {reason}")
        self.world.coverage.saw("fences")
        if is_lossy:
            self.exclusion.lossy(reason)
        self.end_mastership(reason)

    # -- replicas

    def from_replica(self, connection: Connection[Any], message: Message) -> None:
        """What a replica said on one of its connections to this process."""
        link = self.links.get(connection.connection)
        match message:
            case Introduction():
                if self.mastership is None:
                    refused = Refused(code="NOT_MASTER", detail="")
                    connection.send(connection.replica, refused)
                    connection.close(connection.master)
                    return
                link = MasterLink(self, connection, self.mastership.term)
                self.links[connection.connection] = link
                self.mastership.term.introduce(link, message)
            case Acknowledgement():
                if link is not None:
                    link.term.acknowledged(connection.connection, message)
            case Closed():
                connection.close(connection.master)
                if self.links.pop(connection.connection, None) is not None and link is not None:
                    link.term.lost(connection.connection)
            case _:
                raise AssertionError(message)

    async def watch_read(self, mastership: Mastership) -> None:
        """A question that must see everything acknowledged before it (R4)."""
        asked_at = len(self.world.judge.truth)
        await mastership.read_round()
        self.world.judge.read_answered(self.name, asked_at=asked_at, confirm=self.log.confirm)
