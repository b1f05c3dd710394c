"""Audits of nodes on disks in memory, for tests."""

from collections.abc import Callable

from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.ports import Clock
from paceline.security.audit import Audit, Caller, Decided, Kind
from paceline.security.audit_files import AuditFiles
from paceline.wire.calls.audit import AuditRecord, read_lines
from paceline.wire.rights import Decision

FOLDER = "/data/audit"
ROOT = Caller("root", "key-root", "127.0.0.1", "http", "r-1")
ALLOWED = Decided(Decision.ALLOW, "root is a super user", "Update", "Cluster:c")


def kept(
    clock: Clock,
    disk: MemoryDisk,
    *,
    sample_one_in: int = 0,
    on_record: Callable[[], None] = lambda: None,
) -> tuple[Audit, AuditFiles]:
    """An audit with files on the disk."""
    audit = Audit(clock)
    return audit, kept_by(audit, disk, sample_one_in=sample_one_in, on_record=on_record)


def kept_by(
    audit: Audit,
    disk: MemoryDisk,
    *,
    sample_one_in: int = 0,
    on_record: Callable[[], None] = lambda: None,
) -> AuditFiles:
    """Files on the disk, which the audit writes from now on."""
    files = AuditFiles(disk, FOLDER)
    audit.keep(files, node="c1", sample_one_in=sample_one_in, on_record=on_record)
    return files


def tell(audit: Audit, count: int = 1, *, kind: Kind = Kind.CHANGE, caller: Caller = ROOT) -> None:
    for _ in range(count):
        audit.tell(kind, caller, "put_user", ALLOWED, "OK", about="user=eve")


def on_disk(disk: MemoryDisk, folder: str = FOLDER) -> list[AuditRecord]:
    """All records in the files of a folder."""
    found: list[AuditRecord] = []
    for name in disk.list(folder):
        if name.endswith(".jsonl"):
            file = disk.open(f"{folder}/{name}")
            found += read_lines(disk.pread(file, disk.size(file), 0))[0]
            file.close()
    return found


def sequences(records: list[AuditRecord]) -> list[int]:
    return [record.sequence for record in records]
