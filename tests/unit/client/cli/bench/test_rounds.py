"""Cells of a bench, and what becomes of several rounds of them."""

from typing import Any

from paceline.cli.bench.rounds import Cell, cells_of, medians


def row(rate: int, **more: Any) -> dict[str, Any]:
    return {
        "peer": "paceline",
        "case": "produce",
        "path": "stream",
        "replicas": 3,
        "durability": "fsync",
        "size": 1024,
        "inflight": 64,
        "msg_per_s": rate,
        "p50_ms": rate / 1000,
        "cpu_us": {"client": 5.0 + rate / 100, "master": 3.0},
        **more,
    }


def test_only_produce_is_measured_at_several_depths() -> None:
    cells = cells_of([(3, "memory"), (1, "fsync")], ["produce", "bulk"], [1, 64])

    assert cells == [
        Cell(3, "memory", "produce", 1),
        Cell(3, "memory", "produce", 64),
        Cell(3, "memory", "bulk", None),
        Cell(1, "fsync", "produce", 1),
        Cell(1, "fsync", "produce", 64),
        Cell(1, "fsync", "bulk", None),
    ]
    assert " ".join(cells[1].flags) == (
        "--replicas 3 --durability memory --case produce --inflight 64"
    )
    assert str(cells[1]) == "3 replicas, memory: produce, 64 in flight"
    assert cells[2].flags[-1] == "bulk"


def test_rows_of_one_cell_become_their_median_with_the_spread() -> None:
    rows = [row(300), row(100, p50_ms=None), row(120), row(50, inflight=512)]

    middle, other = medians(rows)

    assert middle["msg_per_s"] == 120
    assert middle["spread"] == [100, 300]
    assert middle["rounds"] == 3
    assert middle["cpu_us"] == {"client": 6.2, "master": 3.0}
    assert middle["case"] == "produce"
    assert middle["p50_ms"] == 0.3  # not told in every round: the first
    assert other == rows[3]
