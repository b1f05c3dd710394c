"""Pure: the controllers' replicated state machine.

Total and deterministic (INV-10): the same commands give the same digest on every node, and an
invalid, late or repeated command is a result. Time is the proposers' (`at`), made monotone, each
step bounded (R38). Every command belongs to a session and is applied once per sequence.
"""

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, assert_never

from paceline.errors import BadRequestError
from paceline.types import ConsumerGroupName, GroupName, TopicName
from paceline.wire.cluster import ClusterView, GroupSettings
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.users import Security
from paceline.wire.views.changes import ViewChanges
from paceline.wire.views.scope import Scope
from paceline_controller.state import (
    acting,
    cleaning,
    consumer_groups,
    mastership,
    presenting,
    recovery,
    replicas,
    security,
    static_topics,
    topics,
)
from paceline_controller.state.changes import Changed
from paceline_controller.state.commands import (
    AlterConsumerGroup,
    AlterSyncStateSet,
    AlterTopic,
    AnyCommand,
    AppointActing,
    CreateStaticTopic,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteTopic,
    ElectMaster,
    EnsureConsumerGroup,
    EnsureTopic,
    Envelope,
    ForgetStore,
    GrowStaticTopic,
    Lead,
    OpenActingLocks,
    OpenEpoch,
    OpenSession,
    PresentStore,
    PresentTopics,
    PutConsumerGroup,
    QueueSealed,
    RaiseConfirmFloor,
    RecoverGroup,
    Registration,
    RemapQueue,
    RemoveGroup,
    RemoveReplica,
    SetControllers,
    SetGroupSettings,
    SetWritePermission,
    Tick,
    read_command,
)
from paceline_controller.state.model import Group, Session, State, Topic
from paceline_controller.state.outcome import Outcome, RefusedError
from paceline_controller.state.published import Published
from paceline_controller.state.security_commands import SecurityCommand

SESSION_MS = 600_000
"""A session unused for this long (replicated time) expires. Far above any outage that a broker
waits out, because after it the broker must read the outcome from the state (R38)."""
TIME_STEP_MS_MAX = 60_000
"""One command moves replicated time by at most this: a wrong clock cannot expire all sessions."""
SESSIONS_MAX = 10_000
_SWEEP_INTERVAL_MS = 1_000

Result = dict[str, Any]
Event = dict[str, Any]


class Machine:
    """Applies commands in log order. Implements the `StateMachine` of `quorum.py`."""

    def __init__(self) -> None:
        self._state = State()
        self._published = Published()

    # -- reading ------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def cluster_id(self) -> str:
        """Empty until the first leader has founded the cluster."""
        return self._state.cluster_id

    @property
    def cluster_name(self) -> str:
        return self._state.cluster_name

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def time_ms(self) -> int:
        return self._state.time_ms

    @property
    def groups(self) -> Mapping[GroupName, Group]:
        """For reading only."""
        return self._state.groups

    @property
    def topics(self) -> Mapping[TopicName, Topic]:
        """For reading only."""
        return self._state.topics

    @property
    def consumer_groups(self) -> Mapping[ConsumerGroupName, ConsumerGroupView]:
        """For reading only."""
        return self._state.consumer_groups

    @property
    def security(self) -> Security:
        """Users and rights."""
        return self._state.security

    @property
    def key_uses(self) -> Mapping[str, int]:
        """Access key -> when it was used last, Unix time in ms."""
        return self._state.key_uses

    @property
    def controllers_generation(self) -> int:
        """Of the member list whose addresses are published; 0: the configuration's."""
        return self._state.controllers_generation

    @property
    def sessions_count(self) -> int:
        return len(self._state.sessions)

    def has_session(self, session: str) -> bool:
        """Whether it is open."""
        return session in self._state.sessions

    @property
    def presented(self) -> Mapping[str, PresentStore]:
        """Stores that wait for an operator, by store id; for reading only."""
        return self._state.presented

    def may_present(self, cluster_id: str) -> bool:
        """Whether brokers of that other cluster are let in, to show what they hold (R18)."""
        return presenting.may_present(self._state, cluster_id)

    def assess(self, store: PresentStore, *, settings: GroupSettings) -> recovery.Assessment:
        """What recovering a group from that store would mean."""
        return recovery.assess(self._state, store, settings=settings)

    def result_of(self, session: str, sequence: int) -> Result | None:
        """Of a command that was applied, while it is remembered."""
        found = self._state.sessions.get(session)
        return None if found is None else deepcopy(found.results.get(sequence))

    def view(self, controllers: tuple[str, ...] = ()) -> ClusterView:
        """What is published; `controllers` are told until the log has a list of its own.

        It shares with the view that was asked for before all that has not changed since.
        """
        return self._published.view(self._state, controllers)

    def changes_since(
        self, version: int, controllers: tuple[str, ...] = (), scope: Scope | None = None
    ) -> ViewChanges | None:
        """What leads from the view of that version to the present one, in that scope; None: not
        all is known."""
        return self._published.changes_since(self._state, version, controllers, scope)

    def changed_since(self, version: int) -> Changed | None:
        """As `changes_since`: names only."""
        return self._published.since(version)

    def concerns(self, version: int, scope: Scope) -> bool:
        """Whether a client of that scope is told of anything that changed after the version."""
        return self._published.concerns(version, scope)

    def snapshot(self) -> bytes:
        return self._state.to_bytes()

    def restore(self, snapshot: bytes) -> None:
        self._state = State.from_bytes(snapshot)
        self._published = Published(self._state.version)

    def digest(self) -> str:
        return hashlib.sha256(self.snapshot()).hexdigest()

    def digest_of_part(self, number: int) -> str:
        """As `digest`, of a part of the state that is bounded: with each number of another one."""
        return hashlib.sha256(self._state.part_to_bytes(number)).hexdigest()

    # -- applying -----------------------------------------------------------------------------

    def apply(self, command: dict[str, Any], *, index: int) -> tuple[Result, list[Event]]:
        """The result for the caller and the events for the shell; never raises."""
        try:
            envelope, parsed = read_command(command)
        except BadRequestError as error:
            return _refusal("BAD_COMMAND", error.message), []
        self._advance_time(envelope.at)
        try:
            session, stored = self._admit(envelope, parsed)
        except RefusedError as refusal:
            return _refusal(refusal.reason, refusal.detail), []
        if stored is not None:
            return deepcopy(stored), []
        outcome = Outcome(at=self._state.time_ms)
        try:
            if self._state.time_ms > envelope.deadline:
                raise RefusedError(
                    "DEADLINE_PASSED",
                    f"applied at {self._state.time_ms}, after its deadline {envelope.deadline}",
                )
            self._dispatch(parsed, outcome)
        except RefusedError as refusal:
            outcome.refuse_untouched(refusal)
        if outcome.changed is not None:
            self._state.version += 1
            self._published.add(self._state.version, outcome.changed)
        outcome.result["version"] = self._state.version
        # A copy: what the caller does to its result must not reach the state.
        session.keep(envelope.sequence, deepcopy(outcome.result))
        return outcome.result, outcome.events

    def _dispatch(self, command: AnyCommand, outcome: Outcome) -> None:
        state = self._state
        match command:
            case OpenSession():
                return
            case Lead():
                self._lead(command, outcome)
            case Registration():
                replicas.register(state, command, outcome)
            case RemoveReplica():
                cleaning.remove_replica(state, command, outcome)
            case RemoveGroup():
                cleaning.remove_group(state, command, outcome)
            case PresentStore() | PresentTopics() | ForgetStore():
                presenting.apply(state, command, outcome)
            case RecoverGroup():
                recovery.recover(state, command, outcome)
            case ElectMaster():
                mastership.elect(state, command, outcome)
            case AppointActing():
                acting.appoint(state, command, outcome)
            case OpenActingLocks():
                acting.open_locks(state, command, outcome)
            case AlterSyncStateSet():
                mastership.alter_set(state, command, outcome)
            case OpenEpoch():
                mastership.open_epoch(state, command, outcome)
            case RaiseConfirmFloor():
                mastership.raise_floor(state, command, outcome)
            case SetGroupSettings():
                mastership.set_settings(state, command, outcome)
            case SetWritePermission():
                mastership.set_write_permission(state, command, outcome)
            case CreateTopic():
                topics.create(state, command, outcome)
            case CreateStaticTopic() | GrowStaticTopic() | RemapQueue() | QueueSealed():
                static_topics.apply(state, command, outcome)
            case EnsureTopic():
                topics.ensure(state, command, outcome)
            case AlterTopic():
                topics.alter(state, command, outcome)
            case DeleteTopic():
                topics.delete(state, command, outcome)
            case (
                PutConsumerGroup()
                | AlterConsumerGroup()
                | EnsureConsumerGroup()
                | DeleteConsumerGroup()
            ):
                consumer_groups.apply(state, command, outcome)
            case SecurityCommand():
                security.apply(state, command, outcome)
            case SetControllers():
                self._set_controllers(command, outcome)
            case Tick():
                self._keep_alive(command)
            case _:
                assert_never(command)

    def _advance_time(self, at: int) -> None:
        state = self._state
        if state.time_ms == 0:
            state.time_ms = state.swept_at = at  # the first command of all sets the clock
        state.time_ms = max(state.time_ms, min(at, state.time_ms + TIME_STEP_MS_MAX))
        if state.time_ms - state.swept_at < _SWEEP_INTERVAL_MS:
            return
        state.swept_at = state.time_ms
        limit = state.time_ms - SESSION_MS
        expired = [name for name, session in state.sessions.items() if session.used_at < limit]
        for name in expired:
            del state.sessions[name]

    def _admit(self, envelope: Envelope, command: AnyCommand) -> tuple[Session, Result | None]:
        """The session, and the stored result if this sequence was applied before."""
        sessions = self._state.sessions
        session = sessions.get(envelope.session)
        if session is None:
            session = self._open(envelope, command)
        session.used_at = self._state.time_ms
        stored = session.results.get(envelope.sequence)
        if stored is None and envelope.sequence <= session.sequence_floor:
            raise RefusedError(
                "STALE_SEQUENCE",
                f"sequence {envelope.sequence} is not above {session.sequence_floor}",
            )
        return session, stored

    def _open(self, envelope: Envelope, command: AnyCommand) -> Session:
        if not isinstance(command, OpenSession):
            # Never a fresh session for it: what it once did is in the state already (R38).
            raise RefusedError("UNKNOWN_SESSION", f"session {envelope.session} is not open")
        if self._state.time_ms > envelope.deadline:
            # A late repetition must not revive a session that has expired.
            raise RefusedError("DEADLINE_PASSED", "too late to open this session")
        if len(self._state.sessions) >= SESSIONS_MAX:
            raise RefusedError("TOO_MANY_SESSIONS", f"there are {SESSIONS_MAX} sessions")
        session = self._state.sessions[envelope.session] = Session(used_at=self._state.time_ms)
        return session

    def _lead(self, command: Lead, outcome: Outcome) -> None:
        state = self._state
        if command.term < state.term:
            raise RefusedError("STALE_TERM", f"term {command.term} is behind {state.term}")
        if not state.cluster_id:
            state.cluster_id, state.cluster_name = command.cluster_id, command.cluster_name
            outcome.note("cluster_founded", cluster_id=state.cluster_id)
            outcome.publish_head()
        state.term = command.term
        outcome.result["cluster_id"] = state.cluster_id

    def _set_controllers(self, command: SetControllers, outcome: Outcome) -> None:
        state = self._state
        if command.generation <= state.controllers_generation:
            raise RefusedError(
                "STALE_GENERATION",
                f"generation {command.generation} is not above {state.controllers_generation}",
            )
        state.controllers_generation = command.generation
        state.controllers = list(command.addresses)
        outcome.note("controllers_changed", generation=command.generation)
        outcome.publish_head()

    def _keep_alive(self, command: Tick) -> None:
        for name in command.alive:
            session = self._state.sessions.get(name)
            if session is not None:
                session.used_at = self._state.time_ms
        if command.key_uses:
            security.note_uses(self._state, command.key_uses)


def _refusal(reason: str, detail: str) -> Result:
    return {"ok": False, "reason": reason, "detail": detail}
