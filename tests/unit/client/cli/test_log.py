"""`paceline log check|give-up` on the folder of a stopped broker."""

from pathlib import Path

import orjson
import pytest
from tests.unit.client.cli.conftest import run_command

from paceline.platform.disk_real import RealDisk
from paceline.platform.runtime import SeededRandom
from paceline.records.encode import encode_internal
from paceline.records.header import HEADER_BYTES, Kind, stamp
from paceline.types import GroupName, PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.projections.projections import epoch_start_document
from paceline_broker.storage.identity import StoreIdentity

SEGMENT_BYTES = 1024 * 1024


def a_folder(path: Path, *, is_damaged: bool) -> tuple[str, int]:
    """A store with ten epochs' starts; where the sixth begins, in which a byte is changed."""
    disk, folder = RealDisk(), str(path / "b1")
    disk.make_folder(folder)
    identity = StoreIdentity(disk, folder)
    identity.begin_incarnation(
        group=GroupName("g1"), boot_id="boot", random=SeededRandom("identity")
    )
    log, _ = CommitLog.open(disk, f"{folder}/log", segment_size_bytes=SEGMENT_BYTES)
    positions = []
    for epoch in range(1, 11):
        document = epoch_start_document(epoch=epoch, is_unclean=False)
        batch = encode_internal(Kind.EPOCH_START, document, store_unix_ms=epoch)
        header = stamp(
            batch,
            physical_offset=log.end,
            base_queue_offset=0,
            store_unix_ms=epoch,
            master_epoch=epoch,
        )
        positions.append(int(log.end))
        log.append(header, batch[HEADER_BYTES:])
    log.set_confirm(log.flush_now())
    if is_damaged:
        (segment,) = (path / "b1" / "log").glob("*0.log")
        with segment.open("r+b") as file:
            file.seek(positions[5] + 120)
            byte = file.read(1)
            file.seek(positions[5] + 120)
            file.write(bytes([byte[0] ^ 1]))
        log.note_damage(PhysicalOffset(positions[5]), "a test says so")
    log.close(clean=True)
    return folder, positions[5]


def test_a_damaged_log_is_told_and_given_up(tmp_path: Path) -> None:
    folder, position = a_folder(tmp_path, is_damaged=True)

    told = run_command("log", "check", folder)
    doubted = run_command("log", "give-up", folder)
    given = run_command("log", "give-up", folder, "--yes")
    after = run_command("log", "check", folder)
    again = run_command("log", "give-up", folder, "--yes")

    assert told.exit_code == 1
    lines = told.stdout.splitlines()
    assert lines[0] == f"group g1, not registered yet: log from 0 to {position:,}"
    assert lines[1].startswith(f"damaged at {position:,}: ")
    assert "bytes from there on were on this disk once, of which" in lines[2]
    assert (doubted.exit_code, "say --yes" in doubted.stderr) == (2, True)
    assert given.exit_code == 0
    assert "paceline cluster elect g1 --to ID --unclean" in given.stdout
    assert (after.exit_code, after.stdout.splitlines()[1]) == (0, "no damage found")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr == f"paceline: the log in {folder} is whole: there is nothing to give up\n"


def test_shapes_for_programs(tmp_path: Path) -> None:
    folder, position = a_folder(tmp_path, is_damaged=True)

    told = orjson.loads(run_command("log", "check", folder, "--json").stdout)
    given = orjson.loads(run_command("log", "give-up", folder, "--yes", "--json").stdout)

    assert told == {**given, "given_up": False}
    assert set(told) == {
        "group", "replica_id", "start", "end", "durable", "confirm", "damage", "has_state",
        "given_up",
    }  # fmt: skip
    assert (told["start"], told["end"], given["given_up"]) == (0, position, True)
    assert told["durable"] >= told["confirm"] > position


@pytest.mark.parametrize("name", ["check", "give-up"])
def test_what_is_no_store_or_in_use_is_refused(tmp_path: Path, name: str) -> None:
    folder, _ = a_folder(tmp_path, is_damaged=False)
    (tmp_path / "empty").mkdir()
    lock = RealDisk().lock_folder(folder)

    used = run_command("log", name, folder)
    lock.close()
    empty = run_command("log", name, str(tmp_path / "empty"))
    absent = run_command("log", name, str(tmp_path / "absent"))

    assert (used.exit_code, "in use by another process" in used.stderr) == (1, True)
    assert (empty.exit_code, "holds no store of a broker" in empty.stderr) == (2, True)
    assert absent.exit_code == 2
