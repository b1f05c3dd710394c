"""Faults of disks strike where there is something to strike."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom
from paceline_chaos.cluster_sim.faults.disk_faults import flip
from paceline_chaos.cluster_sim.nodes import DATA, BrokerNode
from paceline_chaos.faults.plan import Fault


class _Broker(BrokerNode):
    """A broker whose log begins at 4096: retention let go what lay lower."""

    def __init__(self, end: int) -> None:
        self.disk = MemoryDisk()
        self.is_damaged = False
        self._end = end
        for folder in (DATA, f"{DATA}/log"):
            self.disk.make_folder(folder)
        file = self.disk.open(f"{DATA}/log/{4096:020d}.log", create=True)
        self.disk.writev(file, [bytes(4096)], 0)

    @property
    def broker(self) -> Any:
        positions = {"confirm": self._end, "end": self._end}
        return SimpleNamespace(role=SimpleNamespace(status=lambda: positions))

    def segment_files(self) -> list[str]:
        return self.disk.list(f"{DATA}/log")


@pytest.mark.parametrize("seed", range(20))
def test_bit_is_flipped_in_what_the_log_still_has(seed: int) -> None:
    node = _Broker(end=6000)

    assert flip(node, Fault(at_ms=0, kind="disk_flip", target="b1"), chance=SeededRandom(str(seed)))

    file = node.disk.open(f"{DATA}/log/{4096:020d}.log")
    content = node.disk.pread(file, 4096, 0)
    assert sum(byte.bit_count() for byte in content) == 1
    assert content.rstrip(b"\0") == content[: 6000 - 4096].rstrip(b"\0")


def test_nothing_is_flipped_in_a_log_that_begins_anew() -> None:
    node = _Broker(end=4096)

    assert not flip(node, Fault(at_ms=0, kind="disk_flip", target="b1"), chance=SeededRandom("any"))
    assert not node.is_damaged
