"""The scrubber on a log that goes on beside it (R24)."""

from typing import cast

import pytest
from tests.support.log.builders import FOLDER, a_log

from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SystemClock
from paceline.types import PhysicalOffset
from paceline_broker.integrity import scrubber as scrubber_module
from paceline_broker.integrity.scrubber import Scrubber
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.storage.store import Store

SLICE_BYTES = 1000
"""Several in a segment of these logs."""


class LogOnly:
    """What of a store a pass needs."""

    def __init__(self, disk: MemoryDisk, log: CommitLog) -> None:
        self.disk = disk
        self.log = log

    def replace_bad_side_files(self) -> list[str]:
        return []


@pytest.mark.parametrize("dropped", [1, 2], ids=["under_it", "the_next_too"])
async def test_pass_goes_on_behind_segments_that_retention_drops(
    dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R26."""
    disk = MemoryDisk()
    log = a_log(disk, batches=100)
    log.set_confirm(log.end)
    bounds = log.segment_bounds()
    found: list[str] = []
    seen: list[int] = []
    scrubber = Scrubber(
        cast(Store, LogOnly(disk, log)),
        SystemClock(),
        folder=FOLDER,
        interval_hours=0,
        bytes_per_s=1 << 30,
        on_damage=lambda position, reason: found.append(reason),
    )

    async def drop(wait_ms: float) -> None:
        seen.append(scrubber.counts.position)
        if len(seen) == 1:
            log.let_go_below(PhysicalOffset(bounds[dropped - 1][1]))
            log.save_checkpoint()
            for path in log.drop(log.checkpointed.start):
                disk.unlink(path)

    monkeypatch.setattr(scrubber_module, "SLICE_BYTES", SLICE_BYTES)
    monkeypatch.setattr(scrubber_module, "pause", drop)

    await scrubber._pass()

    assert log.start == bounds[dropped][0], "nothing was dropped"
    assert seen[0] < bounds[0][1], "the drop came too late"
    assert (scrubber.counts.passes, found) == (1, [])
    assert seen[-1] == log.end
