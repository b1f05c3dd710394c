"""R24 on real processes: a stopped replica's files are damaged; it mends itself under load."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.process.harness import (
    RunningCluster,
    broker_status,
    eventually,
    has_ended,
    http_session,
    running_cluster,
    the_master,
)
from tests.support.process.load import (
    SEGMENT_BYTES,
    all_in_sync,
    check_epochs,
    check_stored,
    reach,
    settled,
    under_load,
)

from paceline.platform.runtime import SystemClock

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

REPAIRED_WITHIN_MS = 30_000


def _segments(folder: Path) -> list[Path]:
    return sorted((folder / "log").glob("*.log"))


def _overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def _flip(folder: Path) -> None:
    checkpoint = orjson.loads((folder / "log" / "checkpoint.json").read_bytes())
    last = _segments(folder)[-1]
    at = (checkpoint["flushed"] - int(last.stem)) // 2
    with last.open("rb") as file:
        file.seek(at)
        byte = file.read(1)[0]
    _overwrite(last, at, bytes([byte ^ 0x40]))


def _zero(folder: Path) -> None:
    _overwrite(_segments(folder)[-1], 0, bytes(4096))


def _lose_one(folder: Path) -> None:
    _segments(folder)[0].unlink()


def _cut_short(folder: Path) -> None:
    with _segments(folder)[0].open("r+b") as file:
        file.truncate(5000)


def _wipe_log(folder: Path) -> None:
    for path in (folder / "log").iterdir():
        path.unlink()


def _side_files(folder: Path) -> None:
    for name in ("log/checkpoint.json", "identity.json", "epoch.json"):
        path = folder / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


async def _damage(
    cluster: RunningCluster, name: str, damage: Callable[[Path], None]
) -> tuple[int, dict[str, Any]]:
    """Stop it, damage its files; the milliseconds from its return until it is well, its status."""
    address = cluster.node(name)["address"]
    pid = cluster.node(name)["pid"]
    clock = SystemClock()
    async with http_session() as session:
        cluster.send_signal(name, signal.SIGTERM)

        async def is_gone() -> bool:
            return has_ended(pid)

        await eventually(is_gone, what=f"the end of {name}")
        damage(cluster.data_dir / name)

        async def answers() -> dict[str, Any] | None:
            return await broker_status(session, address)

        async def is_well() -> dict[str, Any] | None:
            status = await broker_status(session, address)
            is_fine = status is not None and status["is_healthy"] and status["is_connected"]
            return status if is_fine else None

        await eventually(answers, what=f"{name} is back")
        began_ms = clock.monotonic_ms()
        status = await eventually(is_well, within_ms=REPAIRED_WITHIN_MS, what=f"{name} is mended")
        await all_in_sync(cluster)
        return clock.monotonic_ms() - began_ms, status


@pytest.mark.parametrize(
    ("damages", "repairs"),
    [
        ([_flip, _lose_one, _zero], [1, 1, 1]),
        ([_cut_short, _wipe_log, _side_files], [1, 0, 0]),
    ],
    ids=["bytes", "files"],
)
async def test_a_damaged_replica_is_whole_and_in_the_set_again_without_an_operator(
    tmp_path: Path, damages: list[Callable[[Path], None]], repairs: list[int]
) -> None:
    data_dir = tmp_path / "data"
    with running_cluster(data_dir, "--segment-size", str(SEGMENT_BYTES), restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 3_000)
            for damage, expected in zip(damages, repairs, strict=True):
                master = await the_master(cluster)
                name = next(n["name"] for n in cluster.brokers() if n["name"] != master)
                took_ms, status = await _damage(cluster, name, damage)
                assert took_ms <= REPAIRED_WITHIN_MS
                assert status["care"]["repairs"] == expected, (damage, status)
                assert status["care"]["damage"] is None
                assert status["stopped"] is None
                await reach(load, load.count + 500)
        positions = await settled(cluster)

    check_epochs(load)
    check_stored(cluster, positions, load)
