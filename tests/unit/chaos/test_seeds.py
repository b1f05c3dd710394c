"""Seeds on command lines: what is no seed is a usage error with a sentence, never a traceback."""

import pytest

from paceline_chaos.cluster_sim.__main__ import main as world
from paceline_chaos.protocol_sim.__main__ import main as core
from paceline_chaos.seeds import seeds_between


def test_range_of_seeds_holds_both_ends_and_may_be_one_seed() -> None:
    assert list(seeds_between("3-5")) == [3, 4, 5]
    assert list(seeds_between("7")) == [7]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "x-3"], "the first seed is a whole number from 0 on, not 'x'"),
        (["--seeds", "3-"], "the last seed is a whole number from 0 on, not ''"),
        (["--seeds=-3"], "'-3' is not first-last"),
        (["--seeds", "5-3"], "'5-3' ends before it begins: say 3-5"),
        (["--seed", "-1"], "a seed is a whole number from 0 on, not '-1'"),
        (["--seed", "²"], "a seed is a whole number from 0 on, not '²'"),
        (["--seeds", "1-2", "--processes", "0"], "a number is a whole number from 1 on, not '0'"),
        (["--determinism", "0"], "a number is a whole number from 1 on, not '0'"),
    ],
)
def test_world_refuses_what_is_no_seed(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        world(arguments)

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--seed", "-1"], ["--seed", "1", "--count", "0"]])
def test_core_refuses_what_is_no_seed(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["core", *arguments])

    with pytest.raises(SystemExit) as ended:
        core()

    assert ended.value.code == 2
    assert "is a whole number from" in capsys.readouterr().err
