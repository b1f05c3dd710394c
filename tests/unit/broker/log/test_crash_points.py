"""Power loss and kill -9 at every disk operation of a scripted run (reliability.md row 14).

A script appends, writes, flushes, rolls, changes epochs, checkpoints and truncates. Before each
operation that changes the disk, the machine "dies" in several ways; the log found afterwards must
hold everything flushed, be a prefix of what was appended, be no damage, and go on working.
"""

from dataclasses import dataclass, field

import pytest
from tests.support.log.builders import append, begin_epoch, content, open_log, segment_path

from paceline.platform.disk_memory import MemoryDisk, PowerLost
from paceline.platform.ports import Random
from paceline.platform.runtime import SeededRandom
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog

# (page cache kept, survival of unsynced pages and names)
DEATHS = [(True, 1.0), (False, 0.0), (False, 1.0), (False, 0.5), (False, 0.5)]


@dataclass
class Model:
    """What a crash now may leave."""

    content: bytes = b""  # everything appended and written, or about to be
    flushed: int = 0
    confirm: int = 0
    truncating_to: int | None = None
    states: list[str] = field(default_factory=list)

    def check(self, log: CommitLog, *, death: str) -> None:
        recovered = content(log)
        assert log.report.damage is None, (death, log.report)
        assert self.content.startswith(recovered), death
        assert len(recovered) == log.end == log.flushed, death
        if self.truncating_to is not None and len(recovered) == self.truncating_to:
            return
        assert log.end >= self.flushed, (death, log.end, self.flushed)
        assert log.confirm <= max(self.confirm, 0), death
        assert log._segments.used_after(log.end) == 0, death  # no old bytes under the next batch


def run_script(disk: MemoryDisk, model: Model, random: Random, *, steps: int) -> None:
    """A seeded run; `model` is kept in step with it, ahead of every disk operation."""
    log, _ = open_log(disk)
    begin_epoch(log, 1)
    for step in range(steps):
        choice = random.uniform(0, 100)
        if choice < 50:
            for _ in range(int(random.uniform(1, 5))):
                append(log, int(random.uniform(0, 250)) * 8, fill=step)
            _write(log, model)
        elif choice < 75:
            _write(log, model)
            log.flush_now()
            model.flushed = log.flushed
        elif choice < 83:
            log.set_confirm(PhysicalOffset(log.flushed))
            model.confirm = log.confirm
            log.save_checkpoint()
        elif choice < 90:
            _write(log, model)
            begin_epoch(log, log.last_epoch + 1)
            _write(log, model)
        else:
            _write(log, model)
            _truncate(log, model, random)
            if log.last_epoch == 0:  # cut to nothing
                begin_epoch(log, 1)
    _write(log, model)
    log.close()


def _write(log: CommitLog, model: Model) -> None:
    pending = [*(run for _, run in log._sealed), (log._pending_start, log._pending)]
    model.content += b"".join(bytes(buffer) for _, buffers in pending for buffer in buffers)
    log.write_pending()


def _truncate(log: CommitLog, model: Model, random: Random) -> None:
    boundaries = [header.physical_offset for header, _ in log.batches(log.start)]
    allowed = [position for position in [*boundaries, log.end] if position >= log.confirm]
    target = allowed[int(random.uniform(0, len(allowed)))]
    model.truncating_to = target
    log.truncate_to(PhysicalOffset(target))
    model.truncating_to = None
    model.content = model.content[:target]
    model.flushed = min(log.flushed, target)


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_after_a_crash_at_any_operation_everything_flushed_is_there(seed: str) -> None:
    disk, model = MemoryDisk(), Model()
    random, faults = SeededRandom(f"script-{seed}"), SeededRandom(f"faults-{seed}")
    states = 0

    def die(operation: str, path: str) -> None:
        nonlocal states
        for keep_page_cache, survival in DEATHS:
            death = f"seed {seed}, state {states}, before {operation} of {path}, {survival}"
            image = disk.crash_image(faults, keep_page_cache=keep_page_cache, survival=survival)
            _recover_and_check(image, model, death)
            states += 1

    disk.observer = die
    run_script(disk, model, random, steps=60)

    assert states > 500, states


def _recover_and_check(image: MemoryDisk, model: Model, death: str) -> None:
    log, report = open_log(image)
    model.check(log, death=death)
    before = log.end
    if log.last_epoch == 0:
        begin_epoch(log, 1)
    append(log, 80)
    log.flush_now()

    again, second = open_log(image)

    assert second.damage is None, death
    assert second.cut_bytes == 0, death
    assert again.end > before, death
    assert second.is_suspect == report.is_suspect, death


@pytest.mark.parametrize("seed", ["d", "e"])
def test_a_crash_in_the_middle_of_recovery_loses_nothing(seed: str) -> None:
    disk, model = MemoryDisk(), Model()
    random, faults = SeededRandom(f"script-{seed}"), SeededRandom(f"faults-{seed}")
    images: list[tuple[MemoryDisk, Model, str]] = []

    def die(operation: str, path: str) -> None:
        if faults.uniform(0, 1) < 0.1:
            image = disk.crash_image(faults, keep_page_cache=False, survival=0.5)
            then = Model(model.content, model.flushed, model.confirm, model.truncating_to)
            images.append((image, then, f"seed {seed}, before {operation} of {path}"))

    disk.observer = die
    run_script(disk, model, random, steps=60)

    for image, then, death in images:
        for fuse in range(40):
            twice = image.crash_image(faults, keep_page_cache=True)
            twice.fuse = fuse
            try:
                open_log(twice)
            except PowerLost:
                twice.crash(faults, keep_page_cache=False)
                log, _ = open_log(twice)
                then.check(log, death=f"{death}, again after {fuse} operations of recovery")
            else:
                break
        else:
            pytest.fail(f"{death}: recovery takes more than 40 operations")


def test_kill_9_between_operations_never_makes_a_replica_suspect() -> None:
    disk, model = MemoryDisk(), Model()
    faults = SeededRandom("faults")

    def die(operation: str, path: str) -> None:
        image = disk.crash_image(faults, keep_page_cache=True)
        _, report = open_log(image)
        assert not report.is_suspect, (operation, path, report)

    disk.observer = die
    run_script(disk, model, SeededRandom("script"), steps=60)

    assert disk.exists(segment_path(0))
