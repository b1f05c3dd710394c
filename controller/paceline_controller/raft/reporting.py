"""Status of a node, for operators; reads the core and changes nothing."""

from collections.abc import Callable, Mapping

from paceline.platform.address import Address
from paceline.types import ControllerId
from paceline_controller.quorum import QuorumMember, QuorumMembers, QuorumStatus
from paceline_controller.raft.core import RaftCore
from paceline_controller.raft.log.sync_times import SyncWindow
from paceline_controller.raft.members import Member, Members

UNSTARTED = QuorumStatus(
    is_leader=False, leader=None, term=0, commit_index=0, applied_index=0, log_length=0
)


def quorum_status(
    core: RaftCore,
    *,
    is_leader: bool,
    members: QuorumMembers,
    syncs: SyncWindow,
    now_ms: int,
    waiting_count: int,
    is_handing_over: bool,
) -> QuorumStatus:
    """See `Quorum.status`."""
    times, snapshot_at_ms = syncs.times(), core.snapshot_at_ms
    return QuorumStatus(
        is_leader=is_leader,
        leader=core.leader,
        term=core.term,
        commit_index=core.commit_index,
        applied_index=core.applied_index,
        log_length=len(core.journal),
        members=members,
        sync_count=syncs.total,
        sync_p50_ms=times.p50_ms,
        sync_p99_ms=times.p99_ms,
        sync_max_ms=times.max_ms,
        snapshot_age_ms=None if snapshot_at_ms is None else now_ms - snapshot_at_ms,
        is_handing_over=is_handing_over,
        leader_silent_ms=core.leader_silent_ms,
        heartbeat_gap_ms=core.heartbeat_gap_ms,
        election_timeout_ms=core.election_timeout_ms,
        waiting_count=waiting_count,
        has_caught_up=core.has_caught_up,
    )


def quorum_members(
    core: RaftCore,
    own: ControllerId,
    latest: Members,
    *,
    is_linked: Callable[[ControllerId], bool],
) -> QuorumMembers:
    """`latest`, the generation in force, with what this node knows of each member."""
    followers = core.followers()
    found = []
    for name, member in sorted(latest.everyone().items()):
        follower = followers.get(name)
        found.append(
            QuorumMember(
                controller_id=name,
                raft=member.raft,
                client=member.client,
                is_voter=name in latest.voters,
                is_linked=name == own or is_linked(name),
                lag_entries=(
                    None if follower is None else core.journal.last_index - follower.matched
                ),
                silent_ms=None if follower is None else follower.silent_ms,
            )
        )
    return QuorumMembers(
        generation=latest.generation,
        committed_generation=core.committed_members.generation,
        members=tuple(found),
        leaving=latest.leaving,
        waits_for=core.next_members_step().waits_for,
    )


def described_members(
    members: Members,
    *,
    raft: Mapping[ControllerId, tuple[str, int]],
    client: Mapping[ControllerId, str],
    store_of: Callable[[ControllerId], str],
) -> Members:
    """A generation, with what configuration and identity know of each voter."""
    known = {
        name: Member(
            raft=str(Address(*raft[name])) if name in raft else "",
            client=client.get(name, ""),
            store=store_of(name),
        )
        for name in members.voters
    }
    return members.known_as(known)
