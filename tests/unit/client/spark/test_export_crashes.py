"""The export killed before and after every single step that others could see, then run again.

Spark and the brokers are stand-ins; the protocol and the folder are the real ones. Whatever the
step, readers see whole batches and each offset at most once; the run after finishes the work.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tests.support.spark.plan import FakeBrokers

import paceline.spark.export
from paceline.queues import QueueName
from paceline.spark.export import folder as folder_module
from paceline.spark.export import run as run_module
from paceline.spark.export.counts import QueueCount
from paceline.spark.export.folder import ExportFolder
from paceline.spark.export.run import ExportOrder, compact, export
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.namespaces import Namespace

SPARK: Any = None
Offset = tuple[int, int]
"""(queue, offset)."""


class Killed(BaseException):
    """kill -9, as far as a process can play it: nothing catches it."""


class Steps:
    """Counts steps and ends the process at one of them."""

    def __init__(self) -> None:
        self.left: int | None = None

    def __call__(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Killed

    def around(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """`act` with a step before it and one after it."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            self()
            found = act(*arguments, **named)
            self()
            return found

        return wrapped


class FakeFrame:
    """Offsets by queue."""

    def __init__(self, offsets: list[Offset]) -> None:
        self.offsets = offsets

    def repartitionByRange(self, *_: object) -> "FakeFrame":  # noqa: N802
        return self


class Brokers(FakeBrokers):
    """Two queues that grow."""

    namespace = Namespace()

    def __init__(self) -> None:
        super().__init__()
        self.ranges = {0: (0, 7), 1: (0, 5)}

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def put(self, group: GroupName, path: str, document: object) -> None:
        pass

    def grow(self) -> None:
        self.ranges = {queue: (start, end + 4) for queue, (start, end) in self.ranges.items()}

    def offsets(self) -> list[Offset]:
        return sorted(
            (queue, at) for queue, (start, end) in self.ranges.items() for at in range(start, end)
        )


def frames_of(step: Steps) -> Any:
    """What paceline.spark.export.frames does, without Spark: a file for each queue."""

    def source_frame(spark: Any, options: Any, start: Any, end: Any) -> FakeFrame:
        return FakeFrame(
            [(int(queue.queue), at) for queue in end for at in range(start[queue], end[queue])]
        )

    def write(frame: FakeFrame, layout: Any, path: str) -> None:
        Path(path).mkdir(parents=True)
        for number in sorted({queue for queue, _ in frame.offsets}):
            step()
            mine = [list(one) for one in frame.offsets if one[0] == number]
            (Path(path) / f"part-{number}.json").write_bytes(orjson.dumps(mine))
        step()
        (Path(path) / "_SUCCESS").touch()

    def written_frame(spark: Any, layout: Any, paths: list[str]) -> FakeFrame:
        return FakeFrame([one for path in paths for one in offsets_below(Path(path))])

    def counted(frame: FakeFrame, *, is_thorough: bool) -> dict[QueueName, QueueCount]:
        found = {}
        for number in {queue for queue, _ in frame.offsets}:
            mine = [at for queue, at in frame.offsets if queue == number]
            key = QueueName(TopicName("orders"), GroupName("g1"), QueueId(number))
            found[key] = QueueCount(len(mine), min(mine), max(mine), sum(mine))
        return found

    return SimpleNamespace(
        source_frame=source_frame,
        laid_out=lambda frame, layout: frame,
        write=write,
        written_frame=written_frame,
        counted=counted,
    )


def offsets_below(folder: Path) -> list[Offset]:
    """What a reader finds that knows nothing of manifests."""
    return sorted(
        (queue, at)
        for path in folder.rglob("part-*.json")
        for queue, at in orjson.loads(path.read_bytes())
    )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(run_module, "Brokers", lambda access: found)
    return found


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Every change of the file system that an export makes is a step."""
    found = Steps()
    frames = frames_of(found)
    monkeypatch.setitem(sys.modules, "paceline.spark.export.frames", frames)
    monkeypatch.setattr(paceline.spark.export, "frames", frames, raising=False)
    with monkeypatch.context() as patch:
        # A killed process loses no page: what fsync is for is not what is tested here.
        patch.setattr(os, "fsync", found.around(lambda handle: None))
        patch.setattr(folder_module, "exchange", found.around(folder_module.exchange))
        for name in ("replace", "rename", "unlink"):
            patch.setattr(Path, name, found.around(getattr(Path, name)))
        patch.setattr(shutil, "rmtree", found.around(shutil.rmtree))
        yield found


def an_order(to: Path) -> ExportOrder:
    return ExportOrder(to=to, options={"endpoints": "h:1", "topic": "orders"}, format="json")


def export_once(to: Path) -> None:
    export(SPARK, an_order(to), tell=lambda what: None)


def compact_once(to: Path) -> None:
    compact(SPARK, to, file_bytes=1 << 20, tell=lambda what: None)


def killed_at(step: Steps, number: int, act: Callable[[], None]) -> bool:
    """Whether `act` came to step `number`, and was killed there."""
    step.left = number
    try:
        act()
    except Killed:
        return True
    finally:
        step.left = None
    return False


def test_export_killed_at_every_step_is_finished_exactly_once(
    tmp_path: Path, brokers: Brokers, step: Steps
) -> None:
    """The second of two batches; the run after it finds a topic that has grown."""
    number = 0
    is_killed = True
    while is_killed:
        to = tmp_path / str(number)
        brokers.ranges = {0: (0, 7), 1: (0, 5)}
        export_once(to)
        before = brokers.offsets()
        brokers.grow()
        whole = brokers.offsets()

        is_killed = killed_at(step, number, lambda to=to: export_once(to))  # type: ignore[misc]
        assert offsets_below(to / "data") in (before, whole), number
        brokers.grow()
        export_once(to)

        assert offsets_below(to / "data") == brokers.offsets(), number
        with ExportFolder(to).locked():
            assert ExportFolder(to).intent() is None
            assert sum(one.rows for one in ExportFolder(to).manifests()) == len(brokers.offsets())
        assert not (to / "_staging").exists()
        number += 1
    assert number > 20, "an export has so many steps"


@pytest.mark.parametrize("after", [export_once, compact_once])
def test_compaction_killed_at_every_step_loses_and_doubles_nothing(
    tmp_path: Path, brokers: Brokers, step: Steps, after: Callable[[Path], None]
) -> None:
    """Three batches into one; then another export, or the same compaction again."""
    number = 0
    is_killed = True
    while is_killed:
        to = tmp_path / str(number)
        brokers.ranges = {0: (0, 7), 1: (0, 5)}
        for _ in range(3):
            export_once(to)
            brokers.grow()
        exported = offsets_below(to / "data")

        is_killed = killed_at(step, number, lambda to=to: compact_once(to))  # type: ignore[misc]
        assert offsets_below(to / "data") == exported, number
        after(to)
        export_once(to)

        assert offsets_below(to / "data") == brokers.offsets(), number
        compact_once(to)
        assert offsets_below(to / "data") == brokers.offsets(), number
        assert len(list((to / "data").iterdir())) == 1
        with ExportFolder(to).locked():
            [manifest] = ExportFolder(to).manifests()
        assert manifest.rows == len(brokers.offsets())
        number += 1
    assert number > 20, "a compaction has so many steps"
