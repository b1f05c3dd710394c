"""Pure: what a master waits for, in words: empty when nothing waits.

For the operator who sees sends stand still. It names every reason that confirm cannot move right
now, each with who is meant and what ends it. Under load it also shows what is merely on its way.
"""

from collections.abc import Iterator

from paceline.types import ReplicaId
from paceline_broker.replication.master.facts import MasterFacts


def waits_of(facts: MasterFacts, *, is_draining: bool) -> list[str]:
    """Sentences; what stops everything first."""
    return list(_waits(facts, is_draining=is_draining))


def _waits(facts: MasterFacts, *, is_draining: bool) -> Iterator[str]:
    if is_draining:
        yield "its successor: it hands over and takes nothing meanwhile"
    if not facts.is_open:
        yield f"the confirmation of its epoch's start record, which ends at {facts.start_end}"
    members = len(facts.sync_state_set)
    if members < facts.minimum:  # R8
        yield (
            f"a replica that joins: the sync state set has {_members(members)}, "
            f"{facts.minimum} are required"
        )
    elif facts.acknowledging < facts.minimum:
        yield (
            f"members that acknowledge: {facts.acknowledging} do, {facts.minimum} are required; "
            "sends are refused until then"
        )
    if facts.proposal is not None:  # R7
        yield (
            "the controllers' answer to a change of the set to "
            f"{sorted(facts.proposal.sync_state_set)}, proposed at set epoch "
            f"{facts.proposal.set_epoch}"
        )
    if facts.confirm < facts.end:
        yield from _behind(facts)


def _behind(facts: MasterFacts) -> Iterator[str]:
    """Whose position keeps confirm from the end."""
    for replica in facts.others:
        peer, lag_ms = facts.peers.get(replica), facts.paces.lag_ms(replica)
        if peer is None:
            yield (
                f"replica {replica}, a member without a connection for {lag_ms} ms"
                f"{_until(facts, replica)}"
            )
        elif peer.position < facts.end:
            yield f"replica {replica}: {facts.end - peer.position} bytes and {lag_ms} ms behind"
    if facts.own < facts.end:
        yield f"its own disk: {facts.end - facts.own} bytes are not there yet"


def _until(facts: MasterFacts, replica: ReplicaId) -> str:
    """What ends the wait for a member that is away (R8, R12)."""
    left = {
        one for one in facts.sync_state_set if one != replica and facts.paces.is_keeping_up(one)
    }
    if len(left | {facts.replica_id}) < facts.minimum:
        return f"; it stays a member, or fewer than {facts.minimum} would be left"
    return f"; it leaves the set when its port refuses, or after {facts.paces.lag_ms_max} ms"


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"
