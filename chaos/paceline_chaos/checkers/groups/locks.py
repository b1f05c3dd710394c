"""Pure: queue locks and their fencing tokens: S26 and INV-11.

A grant is an acknowledged lock; renewals carry the token of the grant. The holder of a token may
act from the first answer until its lease, counted from its own last question, has run out, or until
it asks to unlock. Leases run in log time (R33), that is, by the clock of the master's machine, in
whole milliseconds: with faults of clocks in the history hold times promise nothing, and tokens
alone are judged.
"""

from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from paceline.errors import LockFencedError
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.recorded import NEVER_US
from paceline_chaos.history.model import Commit, Deliver, Lock, Outcome, Queue

_Lane: TypeAlias = tuple[str, Queue]
_ROUNDING_MS = 2
"""A grant and an expiry are each cut to whole milliseconds."""


@dataclass(slots=True)
class _Hold:
    """One token in one member's hands, as far as the member knows."""

    grant: Lock
    start_us: int
    end_us: int


def locks_exclude(evidence: Evidence) -> Findings:
    """S26: the hold times of different members on one (group, queue) are disjoint; and in a group
    whose members leave their locks to the library (no lock is in the history), nothing is begun
    under a token once somebody has begun under a newer one. Not judged where the clock of a broker,
    or the pace of a client's, was changed, nor over an unclean election. O(n log n)."""
    found = Findings("S26")
    paces_right_us = evidence.clocks_right_until_us("client", kinds={"clock_rate"})
    if min(evidence.clocks_right_until_us("broker"), paces_right_us) < NEVER_US:
        return found
    for lane, holds in _holds(evidence).items():
        if evidence.is_lossy(lane[1].group):
            continue
        holds.sort(key=attrgetter("start_us"))
        longest: _Hold | None = None
        for hold in holds:
            found.judged += 1
            if (
                longest is not None
                and hold.start_us < longest.end_us
                and hold.grant.member != longest.grant.member
            ):
                found.violate(
                    f"{hold.grant.member} got the lock of {_name(lane)} while "
                    f"{longest.grant.member} held it for {longest.end_us - hold.start_us} us more",
                    longest.grant,
                    hold.grant,
                )
            if longest is None or hold.end_us > longest.end_us:
                longest = hold
    _begun_under_the_newest(evidence, found)
    return found


def _begun_under_the_newest(evidence: Evidence, found: Findings) -> None:
    careless = {lock.consumer_group for lock in evidence.locks}
    lanes: defaultdict[_Lane, list[Deliver]] = defaultdict(list)
    for deliver in evidence.delivers:
        if deliver.token is not None and deliver.consumer_group not in careless:
            lanes[deliver.consumer_group, deliver.queue].append(deliver)
    for lane, delivers in lanes.items():
        if evidence.is_lossy(lane[1].group):
            continue
        newest: Deliver | None = None
        for deliver in sorted(delivers, key=attrgetter("asked_us", "number")):
            found.judged += 1
            if newest is None or _token(deliver) > _token(newest):
                newest = deliver
            elif _token(deliver) < _token(newest):
                found.violate(
                    f"{deliver.member} began offset {deliver.message.offset} of {_name(lane)} "
                    f"under {_shown(_token(deliver))} after {newest.member} had begun under "
                    f"{_shown(_token(newest))}",
                    newest,
                    deliver,
                )


def _holds(evidence: Evidence) -> dict[_Lane, list[_Hold]]:
    holds: dict[tuple[str, Queue, str, int], _Hold] = {}
    for lock in evidence.locks:
        if lock.outcome is not Outcome.OK or lock.token is None:
            continue
        key = (lock.consumer_group, lock.queue, lock.member, lock.token)
        end_us = lock.asked_us + (lock.lease_ms - _ROUNDING_MS) * 1000
        hold = holds.setdefault(key, _Hold(lock, lock.answered_us, end_us))
        hold.start_us = min(hold.start_us, lock.answered_us)
        hold.end_us = max(hold.end_us, end_us)
    for unlock in evidence.unlocks:
        key = (unlock.consumer_group, unlock.queue, unlock.member, unlock.token)
        # Fenced: an attempt before may have been carried out, and the lock be another's since.
        is_refused = unlock.outcome is Outcome.FAIL and unlock.error != LockFencedError.code
        if key in holds and not is_refused:
            holds[key].end_us = min(holds[key].end_us, unlock.asked_us)
    # A member that locks anew without its token gives up what it held under the one before.
    newest: dict[tuple[str, Queue, str], _Hold] = {}
    for (group, queue, member, _), hold in sorted(holds.items(), key=lambda item: item[0][3]):
        before = newest.get((group, queue, member))
        if before is not None:
            before.end_us = min(before.end_us, hold.grant.asked_us)
        newest[group, queue, member] = hold
    lanes: defaultdict[_Lane, list[_Hold]] = defaultdict(list)
    for (group, queue, _, _), hold in holds.items():
        if hold.end_us > hold.start_us:
            lanes[group, queue].append(hold)
    return lanes


def tokens_only_grow(evidence: Evidence) -> Findings:
    """INV-11: on one (group, queue): for grants a < b: token(a) <= token(b), and unless b renews
    token(a) < token(b); no token is given to two members; and a commit that named a token and that
    a master has acknowledged was asked before any higher token had been granted. An acting master
    may know less: what it takes is decided by the next master. O(n log n)."""
    found = Findings("INV-11")
    lanes: defaultdict[_Lane, list[Lock]] = defaultdict(list)
    for lock in evidence.locks:
        if lock.outcome is Outcome.OK and lock.token is not None:
            lanes[lock.consumer_group, lock.queue].append(lock)
    commits: defaultdict[_Lane, list[Commit]] = defaultdict(list)
    for commit in evidence.commits:
        is_decided = commit.outcome is Outcome.OK and not commit.is_provisional
        if is_decided and commit.token is not None:
            commits[commit.consumer_group, commit.queue].append(commit)
    for lane, locks in lanes.items():
        if not evidence.is_lossy(lane[1].group):
            _one_holder_for_each_token(found, lane, locks)
            _grow(found, lane, locks, commits[lane])
    return found


def _one_holder_for_each_token(found: Findings, lane: _Lane, locks: list[Lock]) -> None:
    holders: dict[int, Lock] = {}
    for lock in locks:
        first = holders.setdefault(_token(lock), lock)
        if first.member != lock.member:
            found.violate(
                f"{first.member} and {lock.member} have one token for {_name(lane)}", first, lock
            )


def _grow(found: Findings, lane: _Lane, locks: list[Lock], commits: list[Commit]) -> None:
    answered = sorted(locks, key=attrgetter("answered_us"))
    highest: Lock | None = None
    done = 0
    entries: list[Lock | Commit] = [*locks, *commits]
    for entry in sorted(entries, key=attrgetter("asked_us")):
        while done < len(answered) and answered[done].answered_us < entry.asked_us:
            if highest is None or _token(answered[done]) > _token(highest):
                highest = answered[done]
            done += 1
        found.judged += 1
        if highest is None:
            continue
        is_given_again = (
            isinstance(entry, Lock) and not entry.is_renewal and _token(entry) == _token(highest)
        )
        if _token(entry) < _token(highest) or is_given_again:
            did = "was granted" if isinstance(entry, Lock) else "could commit with"
            found.violate(
                f"{entry.member} {did} token {_shown(_token(entry))} of {_name(lane)} after "
                f"{highest.member} had {_shown(_token(highest))}",
                highest,
                entry,
            )


def _token(entry: Lock | Commit | Deliver) -> int:
    assert entry.token is not None
    return entry.token


def _shown(token: int) -> str:
    return f"({token >> 64}, {token & (1 << 64) - 1})"


def _name(lane: _Lane) -> str:
    group, queue = lane
    return f"{group} on {queue.topic}/{queue.group}/{queue.queue}"
