"""Pure: the master's side of replication in one epoch: confirm, rounds, the sync state set.

It owns: which replica counts and up to where (R10), confirm (R8, R11), the one set change in flight
(R7, INV-6), who has fallen behind in the master's own running time (R12), read rounds (R4), and
whether a send may be appended at all (R8). It is told everything by events and answers with what to
do; it knows no sockets, files, clocks or controllers. One instance serves one (epoch, incarnation)
and is thrown away with it (R1); after `fence` it stays silent for ever. Owner: the term.
"""

from collections.abc import Mapping
from typing import assert_never

from paceline.types import Incarnation, PhysicalOffset, ReplicaId, SetEpoch
from paceline.wire.cluster import GroupView, ReplicaView
from paceline_broker.replication.handshake import ConnectionId, Welcome
from paceline_broker.replication.master.events import (
    NOTHING,
    AlterSyncStateSet,
    Appended,
    Failed,
    Flushed,
    GroupCommitted,
    MasterEvent,
    MasterReady,
    MasterSettings,
    MemberRefused,
    ProposalRefused,
    ProposalUnknown,
    Ran,
    ReplicaAcked,
    ReplicaIntroduced,
    ReplicaLeft,
    RoundRequested,
)
from paceline_broker.replication.master.facts import MasterFacts
from paceline_broker.replication.master.join_gate import Approach, may_join, near_ones
from paceline_broker.replication.master.lag import Paces
from paceline_broker.replication.master.peer import (
    Peer,
    divergence_of,
    outdated,
    refusal_of,
    why_lossy,
)
from paceline_broker.replication.master.relaxed_acks import EarlyAnswers
from paceline_broker.replication.messages import Refused


class MasterReplication:
    """Mastership of one (group, epoch, incarnation). Only `step` changes it."""

    def __init__(
        self,
        *,
        replica_id: ReplicaId,
        incarnation: Incarnation,
        view: GroupView,
        epoch_start_end: PhysicalOffset,
        end: PhysicalOffset,
        flushed: PhysicalOffset,
        known_confirm: PhysicalOffset,
        settings: MasterSettings,
    ) -> None:
        """`view` elects this replica; `epoch_start_end` is the end of the epoch's start record.

        `known_confirm` is the durable lower bound of confirm; all positions are as they stand now.
        """
        assert view.master == replica_id, (view.master, replica_id)  # INV-4
        assert view.master_incarnation == incarnation, (view.master_incarnation, incarnation)
        assert known_confirm <= end, (known_confirm, end)  # INV-2
        assert epoch_start_end <= end, (epoch_start_end, end)
        self.replica_id = replica_id
        self.incarnation = incarnation
        self.epoch = view.master_epoch
        self.confirm = known_confirm
        self.is_open = False
        self._start_end = epoch_start_end
        self._end = end
        self._flushed = flushed
        self._counts_flushed = view.settings.durability == "fsync"
        self._min = view.settings.required_in_sync_replicas
        self._is_unclean = view.is_unclean
        self._fenced: str | None = None
        # The sync state set
        self._set = view.sync_state_set
        self._set_epoch = view.set_epoch
        self._replicas: dict[ReplicaId, ReplicaView] = dict(view.replicas)
        self._proposal: AlterSyncStateSet | None = None
        self._is_unsent = False
        self._sequence = 0
        self._others: tuple[ReplicaId, ...] = ()
        # Replicas
        self._peers: dict[ConnectionId, Peer] = {}
        self._live: dict[ReplicaId, Peer] = {}
        self.paces = Paces(settings)
        self._approach = Approach()
        # Rounds
        self._round_sent = 0
        self._round_wanted = 0
        self._round_confirmed = 0
        self._acknowledging = 0
        self._is_accepting = False
        self._early = EarlyAnswers.of(view.settings)
        self._set_changed()

    # -- queries

    @property
    def sync_state_set(self) -> frozenset[ReplicaId]:
        """As committed last."""
        return self._set

    @property
    def _own(self) -> PhysicalOffset:
        """The master's own position: what counts for confirm (R11)."""
        return self._flushed if self._counts_flushed else self._end

    @property
    def fenced(self) -> str | None:
        """Why this mastership has ended, or None."""
        return self._fenced

    @property
    def round_wanted(self) -> int:
        """The round a read waits for that was just requested."""
        return self._round_wanted

    def can_accept(self) -> bool:
        """Whether enough members acknowledge now for a send to be appended (R8)."""
        return self._is_accepting

    def facts(self) -> MasterFacts:
        """For people: what the rules look at, in this step."""
        return MasterFacts(
            replica_id=self.replica_id,
            start_end=self._start_end,
            end=self._end,
            own=self._own,
            confirm=self.confirm,
            sync_state_set=self._set,
            set_epoch=self._set_epoch,
            minimum=self._min,
            acknowledging=self._acknowledging,
            others=self._others,
            proposal=self._proposal,
            replicas=self._replicas,
            peers=self._live,
            paces=self.paces,
        )

    def next_round(self) -> int:
        """The round number for a frame that leaves now; calls begin the round requested."""
        self._round_sent = self._round_wanted
        return self._round_sent

    # -- step

    def step(self, event: MasterEvent) -> MasterReady:
        """Take one event; what is to be done is in the answer, nothing else happens."""
        if self._fenced is not None:
            return NOTHING
        match event:
            case ReplicaAcked():  # first: the only one on the path of every batch, besides Appended
                return self._on_acked(event)
            case Appended(end):
                assert end >= self._end, (end, self._end)
                self._end = end
                return NOTHING if self._counts_flushed else self._advanced()
            case Flushed(flushed):
                assert self._flushed <= flushed <= self._end, (self._flushed, flushed, self._end)
                self._flushed = flushed
                return self._advanced() if self._counts_flushed else NOTHING
            case RoundRequested():
                return self._on_round_requested()
            case ReplicaIntroduced():
                return self._on_introduced(event)
            case ReplicaLeft(connection):
                return self._on_left(connection)
            case MemberRefused(replica, incarnation):
                return self._on_refused(replica, incarnation)
            case GroupCommitted(view):
                return self._on_committed(view)
            case ProposalRefused(sequence, set_epoch):
                return self._on_proposal_refused(sequence, set_epoch)
            case ProposalUnknown(sequence):
                if self._proposal is not None and self._proposal.sequence == sequence:
                    self._is_unsent = True  # again with the next tick, byte for byte (R7)
                return NOTHING
            case Ran(elapsed_ms):
                return self._on_ran(elapsed_ms)
            case Failed(reason):
                return self._fence(reason)
            case _:
                assert_never(event)

    # -- replicas

    def _on_introduced(self, event: ReplicaIntroduced) -> MasterReady:
        connection, introduction, start, epochs = event
        replica = introduction.replica_id
        epoch_seen = max(introduction.epoch, introduction.epochs.last_epoch)
        if epoch_seen > self.epoch:  # R5
            return self._fence(f"replica {replica} knows of epoch {epoch_seen}")
        lossy = why_lossy(event, end=self._end, confirm=self.confirm, members=self._set)  # R16
        if lossy is not None and not self._is_unclean:
            return self._fence(lossy, is_lossy=True)
        refused = refusal_of(introduction, self.replica_id, self.epoch, self._replicas)
        truncate_to = divergence_of(event, end=self._end)
        installs = truncate_to is None or truncate_to < start  # R14
        if refused is None and installs and replica in self._set:  # R5
            refused = Refused(code="NO_COMMON_EPOCH", detail=f"the log here begins at {start}")
        if refused is not None:
            return MasterReady(refuse=(connection, refused))
        truncate_to = start if truncate_to is None else max(truncate_to, start)
        close = self._drop_connections_of(replica)
        self._peers[connection] = Peer(view=self._replicas[replica], truncate_to=truncate_to)
        welcome = Welcome(
            epoch=self.epoch,
            truncate_to=truncate_to,
            is_unclean=self._is_unclean,
            end=self._end,
            epochs=epochs,
        )
        return MasterReady(welcome=(connection, welcome), installs=installs, close=close)

    def _drop_connections_of(self, replica: ReplicaId) -> tuple[ConnectionId, ...]:
        """A replica never counts twice: whatever it had before ends now (R10)."""
        old = tuple(key for key, peer in self._peers.items() if peer.replica == replica)
        for connection in old:
            del self._peers[connection]
        if self._live.pop(replica, None) is not None:
            self._judge_accepting()
        return old

    def _on_acked(self, event: ReplicaAcked) -> MasterReady:
        peer = self._peers.get(event.connection)
        if peer is None:
            return NOTHING  # replaced or closed while it was on the way
        if not peer.can_say(event, epoch=self.epoch, end=self._end, round_sent=self._round_sent):
            return self._close(event.connection)  # R2
        peer.acknowledged(event, counts_flushed=self._counts_flushed)
        self.paces.of(peer.replica).has_room = event.has_room
        if not peer.is_joined:
            return self._on_joined(event.connection, peer)
        has_new_round = event.round != peer.round
        peer.round = event.round
        self.paces.acked(peer.replica, position=peer.position, own=self._own)
        if not self._is_accepting:
            self._judge_accepting()
        grown = NOTHING if peer.replica in self._set else self._try_grow(peer)
        if peer.replica not in self._others:
            return NOTHING
        ready = self._advanced()
        if grown is not NOTHING:
            ready = ready._replace(propose=grown.propose)
        return self._with_round(ready) if has_new_round else ready

    def _on_joined(self, connection: ConnectionId, peer: Peer) -> MasterReady:
        if peer.appended != peer.truncate_to:
            return self._close(connection)
        peer.is_joined = True
        self._live[peer.replica] = peer
        self.paces.joined(peer.replica, own=self._own)
        self._judge_accepting()
        return self._advanced()._replace(joined=connection)

    def _on_left(self, connection: ConnectionId) -> MasterReady:
        peer = self._peers.pop(connection, None)
        if peer is None:
            return NOTHING
        if self._live.get(peer.replica) is peer:
            del self._live[peer.replica]
            self._judge_accepting()
        if peer.replica in self._set:
            return MasterReady(probe=((peer.replica, peer.incarnation),))
        return NOTHING

    def _close(self, connection: ConnectionId) -> MasterReady:
        return self._on_left(connection)._replace(close=(connection,))

    def _on_refused(self, replica: ReplicaId, incarnation: Incarnation) -> MasterReady:
        view = self._replicas.get(replica)
        if view is None or view.incarnation != incarnation or replica in self._live:
            return NOTHING  # an older start of it, or it is back
        self.paces.of(replica).is_refused = True
        return self._try_shrink()

    # -- confirm

    def _advanced(self) -> MasterReady:
        ready = self._confirm_advanced()
        return ready if self._early is None else self._with_held(ready)

    def _confirm_advanced(self) -> MasterReady:
        """Move confirm to what every member of the set, or of both sets, has (INV-1, INV-6)."""
        if len(self._set) < self._min:  # R8
            return NOTHING
        position = self._own
        live = self._live
        for replica in self._others:
            peer = live.get(replica)
            if peer is None:  # without its one live connection confirm stands still (R10)
                return NOTHING
            if peer.position < position:
                position = peer.position
        if position <= self.confirm:
            return NOTHING
        assert position <= self._end, (position, self._end)  # INV-2
        self.confirm = position
        if not self.is_open and position >= self._start_end:
            self.is_open = True
            return MasterReady(confirm=position, opened=True)
        return MasterReady(confirm=position)

    def _with_held(self, ready: MasterReady) -> MasterReady:
        """R37, weaker than INV-1: how far answers may leave before confirm, in an open epoch."""
        if self._early is None or not self.is_open:
            return ready
        held = self._early.held(
            own=self._own,
            others=[peer.position for replica, peer in self._live.items() if replica in self._set],
            acknowledging=self._acknowledging,
        )
        return ready if held is None else ready._replace(held=held)

    # -- rounds

    def _on_round_requested(self) -> MasterReady:
        self._round_wanted = self._round_sent + 1
        if not self._others:
            # Nobody else can be elected without us in the set: the round is over as it begins.
            self._round_sent = self._round_wanted
        return self._with_round(NOTHING)

    def _with_round(self, ready: MasterReady) -> MasterReady:
        live = self._live
        confirmed = self._round_sent
        for replica in self._others:
            peer = live.get(replica)
            if peer is None:
                return ready
            if peer.round < confirmed:
                confirmed = peer.round
        if confirmed <= self._round_confirmed:
            return ready
        self._round_confirmed = confirmed
        return ready._replace(confirmed_round=confirmed)

    # -- the sync state set

    def _on_committed(self, view: GroupView) -> MasterReady:
        if view.master_epoch > self.epoch:
            return self._fence(f"epoch {view.master_epoch} was elected")
        if view.master_epoch < self.epoch:
            return NOTHING
        if (view.master, view.master_incarnation) != (self.replica_id, self.incarnation):
            return self._fence("mastership was vacated")  # R19
        close = self._take_registrations(view.replicas)
        if view.set_epoch > self._set_epoch:
            proposed = None if self._proposal is None else self._proposal.sync_state_set
            if view.sync_state_set != proposed:
                close += self._drop_removed(self._set - view.sync_state_set)
            self._set = view.sync_state_set
            self._set_epoch = view.set_epoch
            if self._proposal is not None:
                # Whatever was proposed on a lower set epoch is decided or refused for ever (R7).
                assert self._proposal.set_epoch < view.set_epoch
                self._proposal = None
            if self.replica_id not in self._set:
                return self._fence("this master is not in its sync state set")
        self._set_changed()
        ready = self._with_round(self._advanced())
        return ready._replace(close=close) if close else ready

    def _take_registrations(
        self, replicas: Mapping[ReplicaId, ReplicaView]
    ) -> tuple[ConnectionId, ...]:
        """Learn who is registered; connections of starts that are no longer so end (R9).

        Nothing is kept of a replica that was removed: it would be shown, and counted as lagging,
        for as long as the epoch lasts.
        """
        self._replicas = dict(replicas)
        self.paces.keep(self._replicas.keys())
        close = outdated(self._peers, self._replicas)
        for connection in close:
            peer = self._peers.pop(connection)
            if self._live.get(peer.replica) is peer:
                del self._live[peer.replica]
        return tuple(close)

    def _drop_removed(self, removed: frozenset[ReplicaId]) -> tuple[ConnectionId, ...]:
        """Members that the controllers took out, not we, start over with a handshake (R9).

        Another store or an old copy may have registered as one of them: what its former process
        still has under way must not earn it a place that the newcomer would inherit.
        """
        dropped = [self._drop_connections_of(replica) for replica in sorted(removed)]
        return tuple(connection for connections in dropped for connection in connections)

    def _on_proposal_refused(self, sequence: int, set_epoch: SetEpoch) -> MasterReady:
        proposal = self._proposal
        if proposal is None or proposal.sequence != sequence:
            return NOTHING
        if set_epoch > proposal.set_epoch:
            # The set moved: by somebody else, or by an earlier attempt of this very proposal. The
            # news of it resolves which; until then both sets must acknowledge (R7).
            return NOTHING
        if set_epoch < proposal.set_epoch:
            self._is_unsent = True  # refused without a look at the group: that resolves nothing
            return NOTHING
        self._proposal = None
        self._set_changed()
        return self._with_round(self._advanced())

    def _try_grow(self, peer: Peer) -> MasterReady:
        """Propose the replica as a member if it has earned it (R10)."""
        if (
            self._proposal is not None
            or peer.position < self.confirm
            or not may_join(peer, self.paces, start_end=self._start_end)
        ):
            return NOTHING
        return self._propose(self._set | {peer.replica}, "caught_up")

    def _try_shrink(self) -> MasterReady:
        if self._proposal is not None:
            return NOTHING
        lagging = {replica for replica in self._set if not self._is_keeping_up(replica)}
        smaller = self._set - lagging
        # Fewer than min would let nothing be confirmed, and one disk hold what was: they stay (R8).
        if not lagging or len(smaller) < self._min:
            return NOTHING
        for replica in lagging:
            self.paces.removed(replica)
        return self._propose(smaller, self.paces.why(lagging))

    def _is_keeping_up(self, replica: ReplicaId) -> bool:
        return replica == self.replica_id or self.paces.is_keeping_up(replica)

    def _propose(self, sync_state_set: frozenset[ReplicaId], reason: str) -> MasterReady:
        assert self.replica_id in sync_state_set
        assert self._proposal is None  # at most one change is in flight
        self._sequence += 1
        self._proposal = AlterSyncStateSet(
            sequence=self._sequence,
            master=self.replica_id,
            master_epoch=self.epoch,
            set_epoch=self._set_epoch,
            sync_state_set=sync_state_set,
            incarnations={
                replica: self._replicas[replica].incarnation for replica in sorted(sync_state_set)
            },
            confirm=self.confirm,
            reason=reason,
        )
        self._is_unsent = False
        self._approach.ended()
        self._set_changed()
        return MasterReady(propose=self._proposal)

    def _set_changed(self) -> None:
        """Work out who must acknowledge: the committed set, and the proposed one (R7, INV-6)."""
        required = self._set
        if self._proposal is not None:
            required = required | self._proposal.sync_state_set
        if self._approach.replica is not None:
            required = required | {self._approach.replica}
        self._others = tuple(sorted(required - {self.replica_id}))
        for replica in self._others:
            self.paces.of(replica)  # its clock starts
        self._judge_accepting()

    def _on_ran(self, elapsed_ms: int) -> MasterReady:
        self.paces.ran(elapsed_ms)
        outside = [peer for replica, peer in self._live.items() if replica not in self._set]
        near = near_ones(outside, self.paces, start_end=self._start_end)
        if self._approach.ran(elapsed_ms, near if self._proposal is None else []):
            self._set_changed()
        self._judge_accepting()
        absent = self.paces.to_probe(self._set - self._live.keys() - {self.replica_id})
        probe = tuple((replica, self._replicas[replica].incarnation) for replica in absent)
        propose = self._propose_again_or_anew().propose
        return self._with_round(self._advanced())._replace(propose=propose, probe=probe)

    def _propose_again_or_anew(self) -> MasterReady:
        if self._proposal is not None:
            if not self._is_unsent:
                return NOTHING
            self._is_unsent = False
            return MasterReady(propose=self._proposal)
        ready = self._try_shrink()
        for replica in sorted(self._live.keys() - self._set):
            if ready is NOTHING:
                ready = self._try_grow(self._live[replica])
        return ready

    def _judge_accepting(self) -> None:
        self._acknowledging = sum(
            replica == self.replica_id or (replica in self._live and self._is_keeping_up(replica))
            for replica in self._set
        )
        # R8; so the set is not smaller either.
        self._is_accepting = self._acknowledging >= self._min

    def _fence(self, reason: str, *, is_lossy: bool = False) -> MasterReady:
        self._fenced = reason
        self._is_accepting = False
        connections = tuple(self._peers)
        self._peers.clear()
        self._live.clear()
        return MasterReady(fence=reason, is_lossy=is_lossy, close=connections)
