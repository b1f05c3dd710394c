"""What a node tells in the audit, how much of it, and what its files keep."""

import pytest
from tests.support.audit import ALLOWED, FOLDER, ROOT, kept, on_disk, sequences, tell

from paceline.errors import NotAuthorizedError, UnauthenticatedError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.security import audit_files
from paceline.security.audit import RECORDS_PER_S, Audit, Caller, Kind
from paceline.security.audit_files import READ_BYTES, SENT_NAME, AuditFiles
from paceline.wire.calls.audit import TEXT_LENGTH_MAX, AuditRecord

STRANGER = Caller("anonymous", "", "10.0.0.9", "http", "r-2")


def drained(files: AuditFiles) -> list[AuditRecord]:
    found = []
    while (batch := files.unsent()) is not None:
        found += batch.records
        files.sent(batch)
    return found


# -- how much -------------------------------------------------------------------------------------


def test_strangers_do_not_fill_the_disk_nor_hide_what_users_were_refused() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    audit, _ = kept(clock, disk)

    for _ in range(1_000):
        audit.refused(STRANGER, UnauthenticatedError("who are you?"), "GET /v1/users")
    refusal = NotAuthorizedError("no", resource="Topic:x", actions=["Pub"], rule="none matches")
    audit.refused(ROOT, refusal, "produce")
    tell(audit)

    told = on_disk(disk)
    strange = [record for record in told if record.user == "anonymous"]
    assert 0 < len(strange) <= RECORDS_PER_S + 1
    after = told[len(strange)]
    assert (after.user, after.call, after.action, after.resource, after.rule) == (
        *("root", "produce", "Pub", "Topic:x"),
        "none matches",
    )
    assert after.dropped == 1_000 - len(strange), "what was left out is told"
    assert (told[-1].call, told[-1].dropped) == ("put_user", 0)
    assert audit.dropped_count == 1_000 - len(strange)
    assert refusal.details["request_id"] == "r-1"

    clock.advance(1_000)
    audit.refused(STRANGER, UnauthenticatedError("who are you?"), "GET /v1/users")
    assert on_disk(disk)[-1].user == "anonymous"


def test_changes_are_told_however_many_there_are() -> None:
    disk = MemoryDisk()
    audit, _ = kept(ManualClock(), disk)

    tell(audit, 500)

    assert sequences(on_disk(disk)) == list(range(1, 501))


def test_of_other_calls_one_in_so_many_is_told() -> None:
    audit, _ = kept(ManualClock(), MemoryDisk(), sample_one_in=10)
    never, _ = kept(ManualClock(), MemoryDisk())

    assert [audit.is_sampled() for _ in range(30)].count(True) == 3
    assert not any(never.is_sampled() for _ in range(30))


def test_a_long_text_is_cut_and_its_line_is_still_a_record() -> None:
    disk = MemoryDisk()
    audit, files = kept(ManualClock(), disk)

    audit.tell(Kind.CHANGE, ROOT, "put_user", ALLOWED, "OK", about="\x00" * 9_000)

    assert len(on_disk(disk)[0].about) == TEXT_LENGTH_MAX
    assert len(drained(files)) == 1


def test_a_disk_that_takes_nothing_hurts_nobody_and_is_told_afterwards() -> None:
    disk = MemoryDisk()
    audit, _ = kept(ManualClock(), disk)
    tell(audit)

    disk.fail_next("writev", count=2)
    tell(audit, 2)
    disk.forget_failures()
    tell(audit)

    told = on_disk(disk)
    assert [(record.sequence, record.dropped) for record in told] == [(1, 0), (2, 2)]
    assert (audit.written_count, audit.dropped_count) == (2, 2)


def test_nothing_is_told_before_there_are_files() -> None:
    audit = Audit(ManualClock())

    tell(audit)

    assert (audit.written_count, audit.dropped_count) == (0, 0)


def test_a_request_keeps_the_name_that_it_came_with_if_that_is_harmless() -> None:
    audit = Audit(ManualClock())

    assert audit.request_id("abc-123") == "abc-123"
    made = [audit.request_id(given) for given in (None, "", "x" * 65, "a\nb", "<script>")]
    assert len(set(made)) == 5
    assert not set(made) & {"", "a\nb", "<script>"}


# -- files ----------------------------------------------------------------------------------------


def test_what_was_not_sent_is_sent_after_a_restart_and_nothing_else() -> None:
    disk = MemoryDisk()
    audit, files = kept(ManualClock(), disk)
    tell(audit, 3)
    assert sequences(drained(files)) == [1, 2, 3]
    tell(audit, 2)
    files.close()

    audit, files = kept(ManualClock(), disk)
    tell(audit)

    assert sequences(drained(files)) == [4, 5, 6]
    assert files.unsent() is None
    assert not files.has_unsent


def test_many_records_go_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_files, "FILE_BYTES_MAX", 3 * READ_BYTES)
    audit, files = kept(ManualClock(), MemoryDisk())
    tell(audit, 5_000)

    sizes = []
    found = []
    while (batch := files.unsent()) is not None:
        sizes.append(len(batch.records))
        found += batch.records
        files.sent(batch)

    assert sequences(found) == list(range(1, 5_001))
    assert max(sizes) < 1_000


def test_the_folder_has_a_bound_and_what_went_unsent_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_files, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(audit_files, "FILES_MAX", 3)
    disk = MemoryDisk()
    audit, files = kept(ManualClock(), disk)
    tell(audit, 200)

    assert len(disk.list(FOLDER)) == 3 + 1, f"and {SENT_NAME}"
    assert files.lost_files > 0
    left = sequences(on_disk(disk))
    assert left == list(range(left[0], 201)), "the newest are left"
    assert sequences(drained(files)) == left
    lost = files.lost_files
    tell(audit, 6)
    assert (sequences(drained(files)), files.lost_files) == ([201, 202, 203, 204, 205, 206], lost)


@pytest.mark.parametrize("seed", range(30))
def test_after_a_power_loss_the_audit_goes_on_and_no_two_records_are_taken_for_one(
    seed: int,
) -> None:
    disk, random = MemoryDisk(), SeededRandom(f"audit-{seed}")
    disk.make_folder(FOLDER)
    clock = ManualClock()
    told: list[AuditRecord] = []
    for _ in range(4):
        audit, files = kept(clock, disk)
        for _ in range(5):
            clock.advance(7)
            tell(audit)
        if random.uniform(0, 1) < 0.7:
            told += drained(files)
        disk.crash(random, keep_page_cache=random.uniform(0, 1) < 0.3)
    audit, files = kept(clock, disk)
    clock.advance(7)
    tell(audit)
    told += drained(files)

    by_identity = {record.identity: record for record in told}
    assert all(by_identity[record.identity] == record for record in told)
    assert told[-1].unix_ms == clock.unix_ms(), "the last one is there"


def test_a_place_that_is_damaged_means_that_all_is_sent_again() -> None:
    disk = MemoryDisk()
    audit, files = kept(ManualClock(), disk)
    tell(audit, 3)
    drained(files)
    files.close()
    disk.flip_bit(f"{FOLDER}/{SENT_NAME}", 12)

    _, files = kept(ManualClock(), disk)

    assert sequences(drained(files)) == [1, 2, 3]
