"""R36, the pure parts: locks of an acting master, and the offsets it takes provisionally."""

import pytest

from paceline.errors import NotYetAvailableError
from paceline.types import MasterEpoch, PhysicalOffset, QueueOffset
from paceline_broker.acting.locks import PROOF_MS, ActingLocks
from paceline_broker.acting.offsets import ENTRIES_MAX, EXPIRY_MS, ProvisionalOffsets
from paceline_broker.acting.withheld import WithheldWatch
from paceline_broker.projections.locks import LockEntry, LockRequest, Locks, Token, Withheld
from paceline_broker.projections.offsets import CommitEntry, Committed

LEASE_MS = 60_000
EPOCH = MasterEpoch(7)
KEY = 1 << 16
APPOINTED_MS = 1_000


def request(client: str = "a", *, token: Token | None = None, unlock: bool = False) -> LockRequest:
    return LockRequest(
        group="g",
        client_id=client,
        is_unlock=unlock,
        lease_ms=LEASE_MS,
        entries=(LockEntry(KEY, token),),
    )


def opened_locks() -> tuple[ActingLocks, int]:
    """Locks after one full lease, and the moment."""
    locks = ActingLocks(EPOCH, lease_ms=LEASE_MS, now_ms=APPOINTED_MS)
    now = APPOINTED_MS + LEASE_MS
    locks.told_current(now)
    return locks, now


def granted(locks: ActingLocks, now_ms: int, client: str = "a") -> Token:
    [outcome] = locks.change(request(client), now_ms=now_ms)
    assert outcome.code is None
    assert outcome.lock is not None
    return outcome.lock.token


def test_no_lock_is_granted_before_one_full_lease() -> None:
    locks = ActingLocks(EPOCH, lease_ms=LEASE_MS, now_ms=APPOINTED_MS)
    locks.told_current(APPOINTED_MS)

    for now in (APPOINTED_MS, APPOINTED_MS + LEASE_MS - 1):
        with pytest.raises(NotYetAvailableError, match="leases of the last master"):
            locks.change(request(), now_ms=now)
        assert not locks.should_ask(now)


def test_nothing_is_granted_on_an_old_word_of_the_controllers() -> None:
    """A partitioned one would go on for ever while the next master grants the same locks."""
    locks, now = opened_locks()
    token = granted(locks, now)
    late = now + PROOF_MS

    with pytest.raises(NotYetAvailableError):
        locks.change(request("b"), now_ms=late)
    with pytest.raises(NotYetAvailableError):
        locks.change(request(token=token), now_ms=late)  # nor renewed


def test_every_lease_ends_within_what_was_told_to_the_controllers() -> None:
    locks, now = opened_locks()

    [outcome] = locks.change(request(), now_ms=now + PROOF_MS - 1)

    assert outcome.lock is not None
    assert outcome.lock.expires_unix_ms < now + locks.leases_ms


def test_tokens_rise_and_are_above_those_of_the_last_master() -> None:
    locks, now = opened_locks()
    first = granted(locks, now)
    locks.change(request(token=first, unlock=True), now_ms=now)

    second = granted(locks, now, "b")

    assert second > first > Token(MasterEpoch(6), PhysicalOffset(1 << 40))


def test_a_held_lock_is_refused_to_another_and_renewed_for_its_holder() -> None:
    locks, now = opened_locks()
    token = granted(locks, now)

    [other] = locks.change(request("b"), now_ms=now + 1)
    [again] = locks.change(request(token=token), now_ms=now + 5)

    assert other.code == "LOCK_HELD"
    assert again.lock is not None
    assert (again.lock.token, again.lock.expires_unix_ms) == (token, now + 5 + LEASE_MS)


def test_the_controllers_are_asked_only_while_somebody_wants_locks() -> None:
    locks = ActingLocks(EPOCH, lease_ms=LEASE_MS, now_ms=0)
    assert not locks.should_ask(LEASE_MS)

    with pytest.raises(NotYetAvailableError):
        locks.change(request(), now_ms=LEASE_MS)
    assert not locks.should_ask(LEASE_MS)  # tokens that it will void are still named
    locks.is_prepared = True

    assert locks.should_ask(LEASE_MS)
    assert not locks.should_ask(2 * LEASE_MS)


# -- the next master ------------------------------------------------------------------------------


def test_the_next_master_fences_older_tokens_and_withholds_every_lock() -> None:
    locks = Locks()
    old = Token(MasterEpoch(3), PhysicalOffset(9))
    locks.apply(request(), new_token=old, now_unix_ms=0)
    new = Token(MasterEpoch(8), PhysicalOffset(20))

    locks.withhold(70_000, now_unix_ms=1_000, epoch=EPOCH)

    assert locks.token_of("g", KEY) is None
    for client, token in (("a", old), ("a", None), ("b", None)):
        [outcome] = locks.decide(request(client, token=token), new_token=new, now_unix_ms=70_999)
        assert outcome.code == "LOCK_HELD"
    [outcome] = locks.decide(request("b"), new_token=new, now_unix_ms=71_000)
    assert outcome.code is None


def test_another_epoch_withholds_once_more_in_full() -> None:
    """Its master's clock may be ahead, as with leases (R33)."""
    locks = Locks()
    locks.withhold(70_000, now_unix_ms=1_000, epoch=EPOCH)

    locks.renew_all(log_time_before_ms=70_000, now_unix_ms=500_000)

    new = Token(MasterEpoch(9), PhysicalOffset(20))
    [outcome] = locks.decide(request(), new_token=new, now_unix_ms=569_999)
    assert outcome.code == "LOCK_HELD"
    assert Locks.from_json(locks.to_json(), locks.withheld).withheld == locks.withheld


@pytest.mark.parametrize(("rest_ms", "left_ms"), [(30_000, 30_000), (0, 0), (99_000, 70_000)])
def test_another_epoch_withholds_only_the_rest_that_its_master_knows_of(
    rest_ms: int, left_ms: int
) -> None:
    """Never longer than in full either, whatever the record says."""
    locks = Locks()
    locks.withhold(70_000, now_unix_ms=1_000, epoch=EPOCH)

    locks.renew_all(log_time_before_ms=2_000, now_unix_ms=500_000, withheld_rest_ms=rest_ms)

    assert locks.withheld == Withheld(500_000 + left_ms, 70_000, EPOCH)


def test_what_is_over_in_log_time_is_not_withheld_again() -> None:
    locks = Locks()
    locks.withhold(70_000, now_unix_ms=1_000, epoch=EPOCH)

    locks.renew_all(log_time_before_ms=71_000, now_unix_ms=90_000, withheld_rest_ms=70_000)

    assert locks.withheld.until_unix_ms == 71_000


def test_the_rest_is_counted_from_when_this_process_first_saw_the_record() -> None:
    """Never shorter than the acting leases can run: they ended no later than that (R36)."""
    watch = WithheldWatch()
    withheld = Withheld(71_000, 70_000, EPOCH)

    assert watch.rest_ms(withheld, now_ms=900_000) == 70_000  # seen only now: in full
    watch.look(withheld._replace(until_unix_ms=500_000), now_ms=930_000)  # the same, gone on with
    assert watch.rest_ms(withheld, now_ms=940_000) == 30_000
    assert watch.rest_ms(withheld, now_ms=980_000) == 0

    another = Withheld(71_000, 70_000, MasterEpoch(EPOCH + 2))
    assert watch.rest_ms(another, now_ms=980_001) == 70_000


def test_what_names_no_epoch_is_withheld_in_full() -> None:
    """A checkpoint of feature level 2: what it says may be of any acting master."""
    watch = WithheldWatch()
    watch.look(Withheld(0, 0), now_ms=0)

    assert watch.rest_ms(Withheld(71_000, 70_000), now_ms=900_000) == 70_000


# -- offsets --------------------------------------------------------------------------------------


def commit(
    offsets: ProvisionalOffsets, offset: int, known: Committed | None = None, **entry: int
) -> str | None:
    found = CommitEntry(KEY, offset, None, entry.get("generation"))
    return offsets.commit("g", found, known, now_unix_ms=1).code


def test_commits_are_max_and_served_back() -> None:
    offsets = ProvisionalOffsets()
    known = {KEY: Committed(QueueOffset(5), 0)}

    assert commit(offsets, 9, known[KEY]) is None
    assert commit(offsets, 8, known[KEY]) == "OFFSET_MOVED_BACK"
    assert commit(offsets, 4) == "OFFSET_MOVED_BACK"

    assert offsets.merged("g", known)[KEY].offset == 9
    assert offsets.merged("g", {KEY: Committed(QueueOffset(12), 0)})[KEY].offset == 12
    assert offsets.merged("other", {}) == {}


def test_beyond_the_own_end_is_no_fault_here() -> None:
    """The master that is gone may have served what this replica never got."""
    assert commit(ProvisionalOffsets(), 10**9) is None


def test_a_commit_of_a_generation_that_has_passed_is_refused() -> None:
    """R33: a reset is not undone by a commit that was under way."""
    known = Committed(QueueOffset(2), 3)

    assert commit(ProvisionalOffsets(), 50, known, generation=2) == "OFFSET_MOVED_BACK"
    assert commit(ProvisionalOffsets(), 1, known, generation=4) is None  # a reset unknown here


def test_a_commit_without_generation_is_of_the_one_known_here() -> None:
    offsets = ProvisionalOffsets()

    commit(offsets, 50, Committed(QueueOffset(2), 3))

    kept = offsets.get("g", KEY)
    assert kept is not None
    assert kept.generation == 3


def test_settling_forgets_only_what_was_handed_over() -> None:
    offsets = ProvisionalOffsets()
    commit(offsets, 5)
    handed = offsets.get("g", KEY)
    assert handed is not None
    commit(offsets, 6)

    offsets.settle("g", KEY, handed)
    assert len(offsets) == 1
    newest = offsets.get("g", KEY)
    assert newest is not None
    offsets.settle("g", KEY, newest)

    assert len(offsets) == 0


def test_they_are_bounded_and_expire() -> None:
    offsets = ProvisionalOffsets()
    commit(offsets, 5)

    assert offsets.has_room_for("g", [KEY])
    assert not offsets.has_room_for("h", list(range(ENTRIES_MAX)))
    assert offsets.expire(EXPIRY_MS) == 0
    assert offsets.expire(EXPIRY_MS + 1) == 1
    assert len(offsets) == 0
