"""The heartbeat of a broker: sent periodically and on each change of its role."""

from typing import Protocol

from paceline.types import MasterEpoch
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.ports import Identity, RoleState
from paceline_broker.role.mastership import Mastership
from paceline_broker.storage.disk_health import DiskPace


class Speaker(Protocol):
    """The role, as far as a heartbeat tells of it."""

    state: RoleState
    disk: DiskPace

    @property
    def view(self) -> ClusterView | None: ...

    @property
    def identity(self) -> Identity: ...

    @property
    def epoch(self) -> MasterEpoch: ...

    @property
    def mastership(self) -> Mastership | None: ...

    def is_fit(self) -> bool: ...


def heartbeat_of(role: Speaker, commit_log: CommitLog) -> wire.Heartbeat | None:
    """None until this store is registered."""
    known = role.identity
    if known.replica_id is None:
        return None
    return wire.Heartbeat(
        replica_id=known.replica_id,
        incarnation=known.incarnation,
        role=wire.Role[role.state.name],
        epoch=role.epoch,
        end=commit_log.end,
        flushed=commit_log.flushed,
        confirm=commit_log.confirm,
        is_healthy=role.is_fit(),
        is_stalled=role.disk.is_stalled,
        sync_ms=role.disk.sync_ms,
        waiting=0 if role.mastership is None else role.mastership.waiting_count,
        view_version=0 if role.view is None else role.view.version,
        last_epoch=commit_log.epochs.last_epoch,
    )
