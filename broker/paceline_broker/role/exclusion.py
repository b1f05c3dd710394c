"""Excluded stores: why a store may neither lead nor follow, and when that ends (R5, R16).

A store is excluded, although its disk works, for one of three reasons: its master's log lacks what
it knows as confirmed (R16); it was master and a replica has confirmed what it lacks (LOSSY); or its
log begins above 0 and no checkpoint is intact (R14). Such a store may hold the only copy of
something: as long as it is a member, an operator has to look. Once the controllers have committed a
set without it, and its epoch has a master, nothing depends on it. Then it follows again; where its
log is no part of the master's, it sets its data aside first. A failed disk (R22) stays out.
"""

import logging
from enum import Enum, auto

from paceline.errors import StorageError
from paceline.wire.cluster import GroupView
from paceline_broker.storage.store import StateLostError, Store

log = logging.getLogger("paceline.role")


class WayBack(Enum):
    """What ends an exclusion."""

    OPERATOR = auto()
    FOLLOW = auto()
    """Replicate as any other: the handshake decides what of the log may stay."""
    BEGIN_ANEW = auto()
    """The same, with the data set aside before."""


class Exclusion:
    """Owned by the role. `reason` is None while the store is not excluded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reason = store.lost_state
        self._way = WayBack.BEGIN_ANEW
        self._is_beyond_repair = False

    def fail(self, error: StorageError) -> None:
        """For good, whatever came before, unless it is only the state that is lost."""
        if isinstance(error, StateLostError):
            self.parted(error.message)
        else:
            self.reason, self._way = error.message, WayBack.OPERATOR

    def lossy(self, reason: str) -> None:
        """As master it lacks what was confirmed."""
        self._stop(reason, WayBack.FOLLOW)

    def parted(self, reason: str) -> None:
        """What was confirmed here is not in its master's log, or its state is lost."""
        self._stop(reason, WayBack.BEGIN_ANEW)

    def beyond_repair(self, reason: str) -> None:
        """Nobody has what is damaged here any more, and nobody needs it (R26)."""
        self._is_beyond_repair = True
        self.parted(reason)

    def mended(self) -> None:
        """Somebody had what was damaged after all."""
        if self._is_beyond_repair:
            self.reason, self._is_beyond_repair = None, False

    def _stop(self, reason: str, way: WayBack) -> None:
        if self.reason is None or self._way is not WayBack.OPERATOR:
            self.reason, self._way = reason, way

    def way_back(self, group: GroupView | None) -> WayBack | None:
        """How to come back under this view; None: not yet, or there is nothing to come back from.

        A proposal that would make this replica a member can not be on its way: the master proposes
        only who has joined it in this epoch, and who has joined holds its log (R1, R10).
        """
        if self.reason is None or group is None or self._way is WayBack.OPERATOR:
            return None
        if self._store.log.damage is not None and not self._is_beyond_repair:
            return None  # it is to be mended first
        if self._store.log.failure is not None and self._store.log.damage is None:
            return None  # R22
        identity = self._store.identity
        is_out = identity.identity.replica_id not in group.sync_state_set
        is_led = group.master in group.sync_state_set and group.master_epoch == identity.epoch
        return self._way if is_out and is_led else None

    def end(self) -> None:
        log.warning("came_back_by_itself", extra={"after": self.reason, "way": self._way.name})
        self.reason, self._is_beyond_repair = None, False
