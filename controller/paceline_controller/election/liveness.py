"""Pure: who is alive, and when to elect (R6 R12 R15 R16 R19).

Door: `step(event, now_ms) -> Ready`. The shell feeds sessions, heartbeats, answers to probes, ends
of elections and a `Tick` every TICK_MS, and does what `Ready` says: probe ports, ask for reports,
propose elections. Groups are read from the state machine through `groups`.

A closed session is a hint: the port is probed at once, and only its refusal (or another start
behind it) makes the replica dead. Silence alone waits for heartbeat_timeout_ms, and a master is
silent only if no other controller hears it either: one link that is cut deposes nobody. All
deadlines begin anew when this node becomes leader and when its own loop has stalled: what it did
not hear then is its own fault, and what it reads then may be old news (R15).
"""

from collections.abc import Callable, Mapping
from typing import assert_never

from paceline.types import GroupName, Incarnation, ReplicaId
from paceline.wire.session import Heartbeat, Role
from paceline_controller.election.acting import Appointments, Proposal
from paceline_controller.election.contacts import (
    ASK_AGAIN_MS,
    ASK_AHEAD_MS,
    REPROBE_MS,
    Contact,
    HeardElsewhere,
    Inquiry,
    ProbeTarget,
    ReplicaKey,
    backoff_factor,
    is_expected,
)
from paceline_controller.election.election import (
    NoElection,
    ReplicaHealth,
    ReplicaStatus,
    choose,
    choose_first,
    choose_unclean,
    preferred_member,
)
from paceline_controller.election.group_watch import FAILURES, GroupWatch
from paceline_controller.election.liveness_events import (
    ElectionFinished,
    Heard,
    LeadershipChanged,
    LivenessEvent,
    LivenessSettings,
    OthersAsked,
    ProbeFinished,
    Ready,
    SessionClosed,
    StateChanged,
    Tick,
)
from paceline_controller.election.unclean import SETTLE_MS as UNCLEAN_SETTLE_MS
from paceline_controller.election.unclean import UncleanElections
from paceline_controller.state.commands import ElectMaster
from paceline_controller.state.model import Group

TICK_MS = 50
STALL_MS_MAX = 200
"""A gap between two ticks of more than TICK_MS + this is a stall of our own loop."""
RETRY_MS = 100
"""After an election that failed: the next one sees what made it fail."""
FIRST_WAIT_MS = 3000
"""How long a new group waits for all of its replicas before it begins with min of them."""
FENCED_AGAIN_MS = 1000
"""A master that fences each of its epochs at once is elected again only this often."""


class Liveness:
    """Owned by the supervisor's task on the event loop."""

    def __init__(
        self, groups: Callable[[], Mapping[GroupName, Group]], settings: LivenessSettings
    ) -> None:
        self._groups = groups
        self._settings = settings
        self._contacts: dict[ReplicaKey, Contact] = {}
        self._watches: dict[GroupName, GroupWatch] = {}
        self._unclean = UncleanElections(UNCLEAN_SETTLE_MS)
        self._appointments = Appointments(settings.acting_settle_ms)
        self._is_leader = False
        self._term = 0
        self._floor_ms = 0
        """No deadline counts time before this: begin of leadership, end of our last stall."""
        self._looked_ms: int | None = None
        self._restarts = 0

    @property
    def clock_restarts(self) -> int:
        """How often our own stall restarted the deadlines (a metric)."""
        return self._restarts

    def step(self, event: LivenessEvent, now_ms: int) -> Ready:
        self._notice_stall(now_ms)
        ready = Ready()
        match event:
            case Heard():
                self._on_heard(event, ready, now_ms)
            case SessionClosed():
                self._on_closed(event, ready, now_ms)
            case ProbeFinished():
                self._on_probed(event, now_ms)
            case OthersAsked():
                self._on_asked(event, now_ms)
            case LeadershipChanged():
                self._on_leadership(event, now_ms)
            case ElectionFinished():
                self._on_election_finished(event, now_ms)
            case StateChanged() | Tick():
                pass
            case _:
                assert_never(event)
        if self._is_leader:
            for group in self._concerned(event, now_ms):
                self._look(group, ready, now_ms)
        return ready

    def is_calm(self, group: Group, now_ms: int) -> bool:
        """Whether the last look found the group well, and its heartbeats are not late."""
        watch = self._watches.get(group.group)
        return watch is not None and now_ms < watch.calm_until_ms

    def belief(self, group: Group, replica_id: ReplicaId, now_ms: int) -> ReplicaHealth:
        """What this controller believes of a replica (on a follower: a hint)."""
        replica = group.replicas[replica_id]
        contact = self._contact(ReplicaKey(group.group, replica_id), replica.incarnation, now_ms)
        keys = (ReplicaKey(group.group, other) for other in group.sync_state_set - {replica_id})
        others = [self._contacts[key] for key in keys if key in self._contacts]
        return contact.belief(
            replica,
            others,
            floor_ms=self._floor_ms,
            now_ms=now_ms,
            timeout_ms=self._settings.heartbeat_timeout_ms,
        )

    def last_heard(
        self, group: GroupName, replica_id: ReplicaId, now_ms: int
    ) -> HeardElsewhere | None:
        """What this controller has heard itself, for another one that asks."""
        contact = self._contacts.get(ReplicaKey(group, replica_id))
        if contact is None or contact.report is None or contact.heard_ms < contact.elsewhere_ms:
            return None
        return HeardElsewhere(contact.report, now_ms - contact.heard_ms)

    def report(self, group: GroupName, replica_id: ReplicaId) -> Heartbeat | None:
        """The last heartbeat, for status pages."""
        contact = self._contacts.get(ReplicaKey(group, replica_id))
        return contact.report if contact is not None else None

    def decide_transfer(
        self,
        group: Group,
        now_ms: int,
        *,
        reason: str,
        leaving: ReplicaId | None = None,
        preferred: ReplicaId | None = None,
    ) -> ElectMaster | NoElection:
        """An election that a master (R20) or an operator asks for; the caller proposes it."""
        if not self._is_leader:
            return NoElection(reason="this controller does not lead")
        if group.master_epoch == 0:
            return NoElection(reason="the group has no sync state set yet")
        beliefs = self._beliefs(group, now_ms)
        if preferred is not None and (
            preferred not in group.sync_state_set
            or beliefs[preferred].standing is not ReplicaStatus.HEALTHY
        ):
            return NoElection(reason=f"replica {preferred} is not a healthy member")
        return choose(
            group, beliefs, term=self._term, reason=reason, leaving=leaving, preferred=preferred
        )

    def decide_unclean(
        self, group: Group, now_ms: int, *, winner: ReplicaId
    ) -> ElectMaster | NoElection:
        """The operator accepts the loss (R21)."""
        if not self._is_leader:
            return NoElection(reason="this controller does not lead")
        return choose_unclean(group, self._beliefs(group, now_ms), winner, term=self._term)

    # -- events -------------------------------------------------------------------------------

    def _on_heard(self, event: Heard, ready: Ready, now_ms: int) -> None:
        heartbeat = event.heartbeat
        contact = self._contact(
            ReplicaKey(event.group, heartbeat.replica_id), heartbeat.incarnation, now_ms
        )
        if heartbeat.incarnation != contact.incarnation:
            return  # an older start, whose last words arrive late
        contact.hear(heartbeat, now_ms=now_ms, pause_ms=self._clearly_ms)
        if self._is_leader and contact.stalled_ms == now_ms:
            ready.ask_reports.append(event.group)  # whether the others' disks do better
        contact.connections.add(event.connection)
        contact.is_gone = False

    def _on_closed(self, event: SessionClosed, ready: Ready, now_ms: int) -> None:
        for key, contact in self._contacts.items():
            if event.connection not in contact.connections:
                continue
            contact.connections.discard(event.connection)
            if self._is_leader and not contact.connections:
                contact.is_probing = False  # one under way began while the session still stood
                contact.probe_after_ms = now_ms
                group = self._groups().get(key.group)
                if group is not None and group.master == key.replica_id:
                    ready.ask_reports.append(key.group)

    def _on_probed(self, event: ProbeFinished, now_ms: int) -> None:
        contact = self._contacts.get(event.target.key)
        if contact is None or contact.incarnation != event.target.incarnation:
            return
        if contact.probe_number != event.target.number:
            return
        contact.is_probing = False
        contact.probe_after_ms = now_ms + REPROBE_MS
        if contact.connections:
            return  # it has come back meanwhile
        if event.answer is None:
            contact.is_gone = event.is_refused
            return
        # An answer proves that the process runs, but only heartbeats keep it from being silent.
        contact.is_gone = not is_expected(
            self._groups().get(event.target.key.group), event.target, event.answer
        )

    def _on_asked(self, event: OthersAsked, now_ms: int) -> None:
        inquiry = event.inquiry
        contact = self._contacts.get(inquiry.key)
        if contact is None or contact.incarnation != inquiry.incarnation:
            return
        if contact.ask_number != inquiry.number:
            return
        contact.is_asking = False
        # Who has not heard it for several beats either says no.
        fresh = [heard for heard in event.heard if heard.age_ms < self._clearly_ms]
        for heartbeat, age_ms in fresh:
            contact.hear_of(heartbeat, heard_ms=now_ms - age_ms)
        contact.denied_ms = None if fresh else contact.asked_ms

    def _on_leadership(self, event: LeadershipChanged, now_ms: int) -> None:
        self._is_leader, self._term = event.is_leader, event.term
        self._floor_ms = now_ms
        self._watches.clear()
        self._appointments.forget_all()
        self._unclean.forget_all()
        self._forget_questions(now_ms)

    def _on_election_finished(self, event: ElectionFinished, now_ms: int) -> None:
        watch = self._watches.get(event.group)
        if watch is not None:
            watch.is_electing = False
            watch.retry_ms = now_ms + RETRY_MS

    def _notice_stall(self, now_ms: int) -> None:
        """With every event: what is read first after a stall must not be judged by old clocks."""
        since_ms = now_ms if self._looked_ms is None else self._looked_ms
        if self._is_leader and now_ms - since_ms > TICK_MS + STALL_MS_MAX:
            self._floor_ms = now_ms
            self._restarts += 1
            for watch in self._watches.values():
                watch.epoch_ms = watch.progress_ms = now_ms
            self._forget_questions(now_ms)
        self._looked_ms = now_ms

    def _forget_questions(self, now_ms: int) -> None:
        """Answers that were on their way may be from before: ask again."""
        for contact in self._contacts.values():
            contact.is_probing = contact.is_asking = False
            contact.probe_number += 1
            contact.ask_number += 1
            contact.denied_ms = None
            contact.probe_after_ms = now_ms

    # -- decisions ----------------------------------------------------------------------------

    def _concerned(self, event: LivenessEvent, now_ms: int) -> list[Group]:
        """The groups to look at: with a thousand of them, few at a time."""
        groups = self._groups()
        match event:
            case Tick():
                return [group for group in groups.values() if not self.is_calm(group, now_ms)]
            case StateChanged(groups=frozenset(names)):
                pass
            case Heard(group=name) | ElectionFinished(group=name):
                names = frozenset([name])
            case ProbeFinished(target=asked) | OthersAsked(inquiry=asked):
                names = frozenset([asked.key.group])
            case _:
                return list(groups.values())
        return [groups[name] for name in sorted(names) if name in groups]

    def _look(self, group: Group, ready: Ready, now_ms: int) -> None:
        self._probe_lost(group, ready, now_ms)
        self._ask_others(group, ready, now_ms)
        watch = self._watch(group, now_ms)
        watch.calm_until_ms, watch.works = 0, False
        if watch.is_electing or now_ms < watch.retry_ms:
            return
        election = self._decide(group, watch, now_ms)
        if election is not None:
            watch.is_electing = True
            ready.elections.append(election)
            return
        self._prefer(group, watch, ready, now_ms)
        watch.calm_until_ms = self._calm_until_ms(group, watch)

    def _calm_until_ms(self, group: Group, watch: GroupWatch) -> int:
        """Until when nothing about the group is due if nothing happens; 0: something may be."""
        is_due = watch.preferred is not None or group.next_settings is not None
        if is_due or not watch.works:
            return 0
        keys = (ReplicaKey(group.group, replica) for replica in group.replicas)
        present = [self._contacts[key] for key in keys if not self._contacts[key].is_gone]
        if not all(contact.connections and contact.report for contact in present):
            return 0
        return min(contact.heard_ms for contact in present) + self._clearly_ms

    def _prefer(self, group: Group, watch: GroupWatch, ready: Ready, now_ms: int) -> None:
        """Give mastership back to who should have it, when it has been well for long (R17)."""
        member = None
        if group.master is not None and group.is_open:
            member = preferred_member(group, self._beliefs(group, now_ms), than=group.master)
        if watch.prefers(member, now_ms, settle_ms=self._settings.preferred_settle_ms):
            assert member is not None
            ready.transfers.append((group, member))

    def _probe_lost(self, group: Group, ready: Ready, now_ms: int) -> None:
        """Probe replicas without a session here: after a close, and after a leader change."""
        for replica in group.replicas.values():
            key = ReplicaKey(group.group, replica.replica_id)
            contact = self._contact(key, replica.incarnation, now_ms)
            is_due = now_ms >= contact.probe_after_ms and not contact.is_probing
            if contact.connections or contact.is_gone or not is_due:
                continue
            if contact.incarnation != replica.incarnation:
                continue  # it is about to register its new start
            contact.is_probing = True
            contact.probe_number += 1
            ready.probes.append(
                ProbeTarget(key, replica.incarnation, replica.client_address, contact.probe_number)
            )

    def _ask_others(self, group: Group, ready: Ready, now_ms: int) -> None:
        """Whether they hear a master that is about to be silent here: then only a link is cut."""
        if group.master is None:
            return
        key = ReplicaKey(group.group, group.master)
        contact = self._contacts.get(key)
        if contact is None or contact.is_gone or contact.is_asking:
            return
        timeout_ms = self._settings.heartbeat_timeout_ms - ASK_AHEAD_MS
        quiet_ms = now_ms - max(contact.since_ms, contact.heard_ms, self._floor_ms)
        if quiet_ms < timeout_ms or now_ms < contact.asked_ms + ASK_AGAIN_MS:
            return
        contact.is_asking = True
        contact.ask_number += 1
        contact.asked_ms = now_ms
        ready.inquiries.append(Inquiry(key, contact.incarnation, contact.ask_number))

    def _decide(self, group: Group, watch: GroupWatch, now_ms: int) -> Proposal | None:
        choice = self._choose(group, watch, now_ms)
        if not isinstance(choice, NoElection) or not choice.is_nobody:
            self._appointments.forget(group.group)
            self._unclean.forget(group.group)
            return choice if isinstance(choice, ElectMaster) else None
        beliefs, floor_ms = self._beliefs(group, now_ms), self._floor_ms
        return self._unclean.decide(
            group, beliefs, term=self._term, floor_ms=floor_ms, now_ms=now_ms
        ) or self._appointments.decide(
            group, beliefs, term=self._term, floor_ms=floor_ms, now_ms=now_ms
        )

    def _choose(
        self, group: Group, watch: GroupWatch, now_ms: int
    ) -> ElectMaster | NoElection | None:
        """None: the group needs no election now."""
        beliefs = self._beliefs(group, now_ms)
        if group.master_epoch == 0:
            has_waited = now_ms >= max(watch.epoch_ms, self._floor_ms) + FIRST_WAIT_MS
            return choose_first(group, beliefs, term=self._term, has_waited=has_waited)
        if not group.sync_state_set:
            return None
        reason = self._why(group, watch, beliefs, now_ms)
        if reason is None:
            return None
        beliefs = self._beliefs(group, now_ms)  # anew: the reason may have cost the master its rank
        preferred = group.master if reason == "settings" else None
        choice = choose(group, beliefs, term=self._term, reason=reason, preferred=preferred)
        if isinstance(choice, NoElection):
            return choice
        if reason == "silent" and not self._has_outlived(group, choice.winner):
            return None
        is_again = choice.winner == group.master
        if reason == "fenced" and is_again and now_ms < watch.epoch_ms + FENCED_AGAIN_MS:
            return None
        if reason in FAILURES:
            if is_again:
                return None  # there is nobody better
            # Who failed as well, and lately, is not tried again and again: each try is an epoch,
            # and costs the present master what it may be about to achieve.
            failures = self._beliefs(group, now_ms)[choice.winner].failures_count
            if now_ms < self._due_ms(group, watch, reason, failures):
                return None
        return choice

    def _why(
        self,
        group: Group,
        watch: GroupWatch,
        beliefs: Mapping[ReplicaId, ReplicaHealth],
        now_ms: int,
    ) -> str | None:
        """Why the group needs an election; None: it does not."""
        if group.master is None:
            return "no_master"
        standing = beliefs[group.master].standing
        contact = self._contacts[ReplicaKey(group.group, group.master)]
        if standing is ReplicaStatus.SILENT and not contact.is_denied(now_ms=now_ms):
            return None  # the other controllers have yet to say whether they hear it
        if standing in (ReplicaStatus.GONE, ReplicaStatus.SILENT, ReplicaStatus.UNHEALTHY):
            return "dead" if standing is ReplicaStatus.GONE else str(standing.value)
        if standing is ReplicaStatus.UNKNOWN:
            return None
        failure = self._why_it_fails(group, watch, now_ms)
        if failure is not None:
            if watch.blamed_epoch != group.master_epoch:
                watch.blamed_epoch = group.master_epoch
                contact.blame(now_ms=now_ms, penalty_ms=self._settings.penalty_ms)
            return failure
        return "settings" if group.next_settings is not None else None

    def _why_it_fails(self, group: Group, watch: GroupWatch, now_ms: int) -> str | None:
        """How a master that is alive and well does not do its work (R6)."""
        assert group.master is not None, group.group
        key = ReplicaKey(group.group, group.master)
        contact = self._contacts[key]
        assert contact.report is not None, key  # its standing is HEALTHY
        if self._has_fenced(group, key):
            return "fenced"
        if not group.is_open:
            is_deaf = contact.report.epoch < group.master_epoch
            reasons = ("not_taken", "not_open") if is_deaf else ("not_open",)
            return next((why for why in reasons if now_ms >= self._due_ms(group, watch, why)), None)
        if not self._is_stuck(group, watch, key, now_ms):
            return None
        # One that does not reach us reaches perhaps nobody who matters.
        is_cut_off = contact.elsewhere_ms > contact.heard_ms
        reason = "cut_off" if is_cut_off else "no_progress"
        return reason if now_ms >= self._due_ms(group, watch, reason) else None

    def _due_ms(self, group: Group, watch: GroupWatch, reason: str, failures_count: int = 0) -> int:
        """A master whose disk, or a member's, is slow has more time: another one had it no better.

        One whose disk alone is slow is no master for long (`Contact.is_outdone`).
        """
        keys = (ReplicaKey(group.group, member) for member in group.sync_state_set)
        reports = (self._contacts[key].report for key in keys if key in self._contacts)
        return watch.due_ms(
            reason,
            self._settings,
            floor_ms=self._floor_ms,
            factor=backoff_factor(failures_count),
            sync_ms=max((report.sync_ms for report in reports if report is not None), default=0),
        )

    def _has_outlived(self, group: Group, winner: ReplicaId) -> bool:
        """Whether it was heard clearly longer than the silent master.

        If not, both fell silent together: rather this controller was cut off than both of them
        died, and the clients of a healthy master would be sent to one that hears of nothing. When
        such a cut heals, one of them is heard first: that alone is no sign that the master is dead.
        """
        assert group.master is not None, group.group
        ours, theirs = (
            self._contacts[ReplicaKey(group.group, replica)] for replica in (group.master, winner)
        )
        return theirs.heard_ms - max(ours.last_ms, theirs.back_ms) >= self._clearly_ms

    @property
    def _clearly_ms(self) -> int:
        """Brokers beat several times in it."""
        return self._settings.heartbeat_timeout_ms // 2

    def _has_fenced(self, group: Group, key: ReplicaKey) -> bool:
        """It gave up this epoch and will never be master in it again (R1)."""
        report = self._contacts[key].report
        assert report is not None, key  # its standing is HEALTHY
        return report.role is Role.FENCED and report.epoch >= group.master_epoch

    def _is_stuck(self, group: Group, watch: GroupWatch, key: ReplicaKey, now_ms: int) -> bool:
        """Confirm stands still while work waits, although enough members are well.

        With fewer than min of them it has to stand still (R8), and another master could not help
        it. More than that a master can shrink to, and the dead are left out of another's set.
        """
        report = self._contacts[key].report
        assert report is not None, key  # its standing is HEALTHY
        well_count = sum(
            self.belief(group, member, now_ms).standing is ReplicaStatus.HEALTHY
            for member in group.sync_state_set
        )
        is_enough = well_count >= max(group.settings.required_in_sync_replicas, 2)
        if report.waiting > 0 and report.confirm == watch.confirm and is_enough:
            return True
        if now_ms >= watch.epoch_ms + self._settings.progress_timeout_ms:
            self._contacts[key].failures_count = 0  # this epoch works
        watch.confirm = report.confirm
        watch.progress_ms = now_ms
        watch.works = True
        return False

    # -- what is known ------------------------------------------------------------------------

    def _contact(self, key: ReplicaKey, incarnation: Incarnation, now_ms: int) -> Contact:
        """The contact, moved on to `incarnation` if that is newer."""
        contact = self._contacts.get(key)
        if contact is None:
            contact = self._contacts[key] = Contact(incarnation=incarnation, since_ms=now_ms)
        elif incarnation > contact.incarnation:
            contact.renew(incarnation, now_ms=now_ms)
        return contact

    def _watch(self, group: Group, now_ms: int) -> GroupWatch:
        watch = self._watches.get(group.group)
        if watch is None:
            watch = self._watches[group.group] = GroupWatch(
                master_epoch=group.master_epoch, epoch_ms=now_ms, progress_ms=now_ms
            )
        elif watch.master_epoch != group.master_epoch:
            watch.master_epoch = group.master_epoch
            watch.epoch_ms = watch.progress_ms = now_ms
            watch.confirm = -1
        return watch

    def _beliefs(self, group: Group, now_ms: int) -> dict[ReplicaId, ReplicaHealth]:
        return {replica: self.belief(group, replica, now_ms) for replica in group.replicas}
