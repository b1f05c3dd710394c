"""Commands of the documents that run simulated beds, each as it is shown (tests/shown.py)."""

import json
from pathlib import Path

import pytest
from tests.support.process.examples import reader_folder, run_line

PLAN = {
    "seed": 4711,
    "load_ms": 2_000,
    "faults": [{"at_ms": 500, "kind": "kill", "target": "master:g1"}],
}
"""As --shrink writes it of a world that is bad."""
TIMEOUT_S = 900
"""They compute at a low priority."""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("paceline chaos replay --bed world --seed 4711", "world seed 4711: GOOD"),
        ("paceline chaos replay --bed core --seed 4711", "core seed 4711: GOOD"),
        ("paceline chaos replay --bed world --plan world-4711.json", "GOOD"),
        ("python -m paceline_chaos.raft --seeds 4711 --shrink", "1 seeds, 0 bad"),
        ("python -m paceline_chaos.cluster_sim --seed 4711 --shrink", "seed 4711 is good"),
        ("python -m paceline_chaos.cluster_sim --plan world-4711.json", "seed 4711: good"),
        ("python -m paceline_chaos.ledger", "now: "),
    ],
)
def test_line_does_what_is_shown(line: str, says: str, tmp_path: Path) -> None:
    folder = reader_folder(tmp_path)
    (folder / "world-4711.json").write_text(json.dumps(PLAN))

    assert says in run_line(line, folder, timeout_s=TIMEOUT_S)
