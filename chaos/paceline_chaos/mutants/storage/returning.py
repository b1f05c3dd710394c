"""Who comes back is counted too early, moves too early, never, or drops what it had (R5, R10, R14,
R16); caught by the scripts of `cluster_sim/scripts/cluster/returning.py`.
"""

from typing import Any

from paceline.errors import StorageError
from paceline.wire.cluster import GroupView
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.flusher import Flusher
from paceline_broker.log.tickets import FlushTicket
from paceline_broker.replication.master import master as master_module
from paceline_broker.replication.master import peer as peer_module
from paceline_broker.role.exclusion import Exclusion, WayBack
from paceline_broker.role.role import BrokerRole
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_chaos.mutants.storage.replication import grow_without_catching_up


def _never() -> list[Patch]:
    """Who stands still waits for an operator, whatever the set is."""
    return [(Exclusion, "way_back", lambda standing, group: None)]


def _as_a_member() -> list[Patch]:
    """Who stands still follows whoever leads, also while the group counts on what it holds."""
    way_back = Exclusion.way_back

    def at_once(standing: Exclusion, group: GroupView | None) -> WayBack | None:
        if standing.reason is None or group is None or group.master is None:
            return way_back(standing, group)
        own = standing._store.identity.identity.replica_id
        return None if own == group.master else standing._way

    return [(Exclusion, "way_back", at_once)]


def _dropped() -> list[Patch]:
    """What is given up is destroyed."""
    begin_anew_at = CommitLog.begin_anew_at

    def without_a_copy(log: CommitLog, *of: Any, sets_aside: bool = False, **named: Any) -> None:
        begin_anew_at(log, *of, **named)

    return [(CommitLog, "begin_anew_at", without_a_copy)]


def _length_is_enough() -> list[Patch]:
    """A master that is as long as what a member has confirmed is taken for whole."""

    def why_lossy(event: Any, **of: Any) -> str | None:
        return peer_module.why_lossy(event, **{**of, "members": frozenset()})

    return [(master_module, "why_lossy", why_lossy)]


def _asked_for_ever() -> list[Patch]:
    """Who is damaged waits for somebody who has the bytes, also where there can be nobody."""
    return [(BrokerRole, "log_beyond_repair", lambda role, reason: None)]


def _goes_on() -> list[Patch]:
    """A sync that failed is tried again, and believed then."""
    sync = Flusher._sync

    async def sync_again(flusher: Flusher, ticket: FlushTicket) -> None:
        try:
            await sync(flusher, ticket)
        except StorageError:
            await sync(flusher, ticket)

    return [(Flusher, "_sync", sync_again)]


RETURNING = (
    Mutant(
        rule="R24-deleted",
        meaning="who is damaged where all others have deleted asks for ever",
        patches=_asked_for_ever,
        **of_moment("deleted-damage"),
    ),
    Mutant(
        rule="R22-next",
        meaning="a broker believes the sync after one that failed",
        patches=_goes_on,
        **of_moment("failed-sync"),
    ),
    Mutant(
        rule="R10-early",
        meaning="a replica that comes back is a member before it has caught up",
        patches=grow_without_catching_up,
        **of_moment("returns"),
    ),
    Mutant(
        rule="R16-parting",
        meaning="a master with other records than what was confirmed goes on",
        patches=_length_is_enough,
        **of_moment("stale-master"),
    ),
    Mutant(
        rule="R16-member",
        meaning="a member that lacks what was confirmed follows at once",
        patches=_as_a_member,
        **of_moment("stale-master"),
    ),
    Mutant(
        rule="R16-back",
        meaning="who stood still never comes back by itself",
        patches=_never,
        **of_moment("stale-master"),
    ),
    Mutant(
        rule="R14-back",
        meaning="who lost its state never comes back by itself",
        patches=_never,
        **of_moment("state-lost"),
    ),
    Mutant(
        rule="R5-aside",
        meaning="data that is given up is destroyed",
        patches=_dropped,
        **of_moment("state-lost"),
    ),
)
"""Each with the script of its rule."""
