"""Which role a view gives this broker: the decisions of the role, without clock, disk or network.

`step` says what one view of the group asks for; whoever owns the machine does it, in the order of
the fields of `RoleReady`, and steps again where a field says so. The broker (role.py) and the
protocol simulation of the chaos package run this same machine.

The controllers' views are the only cause of a new role, and each is taken in order of its version
(R38). A new epoch is durable before anything is done in it (R2). A mastership that ended never
comes back in its epoch (R1): the broker is FENCED until a view names a higher epoch, or another
master in this one.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire.cluster import ClusterView, GroupView, ReplicaView
from paceline_broker.ports import RoleState


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """What this broker is at the moment of the step."""

    replica_id: ReplicaId | None
    incarnation: Incarnation
    store_id: str
    epoch: MasterEpoch
    """The newest epoch that is durable here."""
    state: RoleState
    is_leading: bool
    """It has a mastership, open or not."""
    following: ReplicaId | None
    """The master that it replicates from."""
    is_excluded: bool
    """Its store must neither lead nor follow (R16, R22)."""
    may_return: bool
    """The view allows an excluded store to follow again."""
    is_damaged: bool
    is_stopping: bool


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The newest view of the group."""

    group: GroupView
    facts: RoleFacts


@dataclass(frozen=True, slots=True)
class EpochAdopted:
    """`RoleReady.adopt` is done: the epoch of that view is durable."""

    group: GroupView
    facts: RoleFacts


@dataclass(frozen=True, slots=True)
class Returned:
    """`RoleReady.returns` is done: the store is excluded no more, or the view has changed."""

    group: GroupView
    facts: RoleFacts


RoleEvent: TypeAlias = GroupChanged | EpochAdopted | Returned


class Begin(Enum):
    """The role that begins."""

    MASTER = auto()
    ACTING_MASTER = auto()
    REPLICA = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleReady:
    """What to do, in the order of the fields."""

    leave: str | None = None
    """End the present role with all its connections, for this reason."""
    fatal: str | None = None
    """End the process with this sentence for the operator."""
    adopt: MasterEpoch | None = None
    """Make the epoch durable (R2), then step `EpochAdopted`."""
    returns: bool = False
    """End the exclusion if the newest view still allows it, then step `Returned`."""
    is_committed: bool = False
    """The mastership goes on: tell it the committed set."""
    begin: Begin | None = None
    is_fenced: bool = False
    """This broker has no role in this epoch."""
    needs_repair: bool = False
    """The damaged log may be mended now."""
    is_present: bool = False
    """The view is of the epoch that is durable here: it may settle a suspicion (R23)."""


NOTHING = RoleReady()


class RoleMachine:
    """The decisions of one broker of `group`. The owner calls it on the event loop."""

    def __init__(self, group: GroupName) -> None:
        self._group = group
        self.view: ClusterView | None = None
        """The newest one taken."""
        self._early: ClusterView | None = None
        """Of another cluster, come before the answer to the registration."""
        self._is_registered = False

    @property
    def is_registered(self) -> bool:
        """The controllers have this start of the broker on record (R9)."""
        return self._is_registered

    @property
    def group_view(self) -> GroupView | None:
        """This group in the newest view."""
        return None if self.view is None else self.view.groups.get(self._group)

    def registered(self, cluster_id: str | None) -> bool:
        """The controllers have answered; returns whether a view that came before is taken now."""
        self._is_registered = True
        early, self._early = self._early, None
        return early is not None and self.take(early, cluster_id)

    def take(self, view: ClusterView, cluster_id: str | None) -> bool:
        """Whether `view` is newer than all before and of this broker's cluster (R38)."""
        if view.cluster_id != cluster_id and not self._is_registered:
            # The view that shows our registration comes before the answer that names the cluster
            # (R18: also one that replaces ours), and no other may follow for a long time.
            early = self._early
            if early is None or early.cluster_id != view.cluster_id or early.version < view.version:
                self._early = view
            return False
        is_old = self.view is not None and view.version <= self.view.version
        if view.cluster_id != cluster_id or is_old:
            return False
        self.view = view
        return True

    def step(self, event: RoleEvent) -> RoleReady:
        """What the event asks for."""
        group, facts = event.group, event.facts
        match event:
            case GroupChanged():
                return self._on_group(group, facts)
            case EpochAdopted():
                return self._on_adopted(group, facts)
            case Returned():
                return RoleReady(begin=_follow(group, facts), is_present=True)

    def _on_group(self, group: GroupView, facts: RoleFacts) -> RoleReady:
        own = None if facts.replica_id is None else group.replicas.get(facts.replica_id)
        if own is None:
            if facts.state is RoleState.ACTING_MASTER:  # an operator has removed this replica
                return RoleReady(leave="this replica is not registered any more", is_fenced=True)
            return NOTHING
        if own.incarnation < facts.incarnation:
            return NOTHING  # from before this start's registration: it may name another store (R9)
        if own.incarnation > facts.incarnation or own.store_id != facts.store_id:
            return RoleReady(
                leave="another start of this replica has registered",
                fatal=_replaced(group.group, own, facts.incarnation),
            )
        if group.master_epoch < facts.epoch:
            return NOTHING
        if group.master_epoch > facts.epoch:
            return RoleReady(
                leave=f"epoch {group.master_epoch} begins", adopt=MasterEpoch(group.master_epoch)
            )
        return self._in_epoch(group, facts)

    def _on_adopted(self, group: GroupView, facts: RoleFacts) -> RoleReady:
        start = (facts.replica_id, facts.incarnation)
        is_acting = start == (group.acting, group.acting_incarnation)
        is_fit = not facts.is_excluded and not facts.is_damaged
        if facts.is_stopping:
            return RoleReady(is_fenced=True)  # no new role is prepared for a process that ends
        if _is_mine(group, facts) or is_acting:
            # Not fit: elected before the controllers heard that this store must not lead (R16, R22,
            # R24). FENCED in this epoch tells them to elect again.
            role = Begin.MASTER if _is_mine(group, facts) else Begin.ACTING_MASTER
            return RoleReady(
                begin=role if is_fit else None, is_fenced=not is_fit, needs_repair=not is_fit
            )
        return self._in_epoch(group, facts)

    def _in_epoch(self, group: GroupView, facts: RoleFacts) -> RoleReady:
        is_mine = _is_mine(group, facts)
        if facts.is_leading:
            if is_mine:
                return RoleReady(is_committed=True, is_present=True)
            return RoleReady(leave="mastership was taken back", is_fenced=True, is_present=True)
        if facts.is_damaged and not facts.may_return:  # it acknowledges nothing till mended (R24)
            return RoleReady(
                leave="the log is damaged", is_fenced=True, needs_repair=True, is_present=True
            )
        if group.master not in {None, facts.replica_id}:
            if facts.may_return:
                return RoleReady(leave="it comes back", returns=True)
            return RoleReady(begin=_follow(group, facts), is_present=True)
        return RoleReady(is_fenced=facts.state is RoleState.MASTER, is_present=True)


def _is_mine(group: GroupView, facts: RoleFacts) -> bool:
    is_named = group.master is not None and group.master == facts.replica_id
    return is_named and group.master_incarnation == facts.incarnation


def _follow(group: GroupView, facts: RoleFacts) -> Begin | None:
    """Replicate from the group's master, unless it does already or must not."""
    assert facts.following in {None, group.master}, "the master changed within an epoch"  # INV-4
    return None if facts.following is not None or facts.is_excluded else Begin.REPLICA


def _replaced(group: GroupName, own: ReplicaView, incarnation: Incarnation) -> str:
    """Another process has registered as this replica: two would be one too many (R9)."""
    return (
        f"replica {own.replica_id} of group {group} was registered by another process (incarnation"
        f" {own.incarnation}, here {incarnation}): only one may run on a data folder"
    )
