"""What tests of topics share with others."""

from typing import Any

import orjson
import pytest
from tests.support.process.harness import RunningCluster

from paceline.cli.main import main


def cli(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> list[Any]:
    """The JSON lines of a command."""
    capsys.readouterr()
    bootstrap = ",".join(cluster.bootstrap)
    assert main([*words, "--json", "--bootstrap", bootstrap]) == code, words
    return [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
