"""The gateway's settings, what it says when something is missing, and how it stops."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import ModuleType

import aiohttp
import pytest
from tests.support.controller.harness import SECRET, controllers, eventually

from paceline.errors import ConfigError
from paceline.platform.address import parse_address
from paceline.platform.config import load
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline_gateway.app import Gateway
from paceline_gateway.config import GatewayConfig
from paceline_gateway.doors import Door, DoorContext

HERE = parse_address("127.0.0.1:0")
FLAGS: dict[str, object] = {
    "listen": "127.0.0.1:7790",
    "secret_file": "secret",
    "controllers": "127.0.0.1:7700",
    "grpc_listen": "127.0.0.1:8081",
}


def configured(**changes: object) -> GatewayConfig:
    return load(GatewayConfig, process="gateway", flags={**FLAGS, **changes})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"grpc_listen": None}, "set one of them"),
        ({"grpc_listen": "127.0.0.1:7790"}, "must differ"),
        ({"controllers": ""}, "controllers is empty"),
        ({"grpc_listen": "0.0.0.0:8081"}, "grpc_listen 0.0.0.0:8081 is not a loopback address"),
        ({"remoting_listen": "0.0.0.0:9876"}, "remoting_listen 0.0.0.0:9876 is not a loopback"),
    ],
)
def test_settings_that_do_not_go_together_are_told(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        configured(**change)


def test_a_door_that_others_reach_enforces_rights_from_the_start() -> None:
    assert not configured().is_closed
    assert not configured(grpc_listen="0.0.0.0:8081", insecure="true").is_closed
    tls = {"tls_mode": "enforcing", "tls_cert": "c", "tls_key": "k", "tls_ca": "a"}
    assert configured(grpc_listen="0.0.0.0:8081", **tls).is_closed


class WorkingDoor:
    """With a call under way."""

    def __init__(self, context: DoorContext, *, ends: bool) -> None:
        self.context = context
        self.states: list[str] = []
        self._ends = ends

    async def start(self) -> None:
        self.states.append("open")

    async def close(self) -> None:
        self.states.append("closing")
        if not self._ends:
            await asyncio.Event().wait()
        self.states.append("closed")


@asynccontextmanager
async def a_gateway(*, ends: bool = True) -> AsyncIterator[tuple[Gateway, WorkingDoor]]:
    async with controllers() as cluster:
        config = GatewayConfig(
            listen=HERE,
            secret_file="unused",
            controllers=(str(cluster.addresses[0]),),
            grpc_listen=HERE,
            stop_timeout_ms=20,
        )
        made: list[WorkingDoor] = []

        def doors(context: DoorContext) -> Sequence[Door]:
            made.append(WorkingDoor(context, ends=ends))
            return made

        gateway = Gateway(
            config,
            clock=SystemClock(),
            random=SystemRandom(),
            secrets=ClusterSecrets(SECRET),
            doors=doors,
        )
        try:
            yield gateway, made[0]
        finally:
            await gateway.stop()


async def test_it_is_ready_once_it_knows_the_cluster_and_its_doors_are_open() -> None:
    async with a_gateway() as (gateway, door), aiohttp.ClientSession() as http:
        await gateway.start()
        await eventually(lambda: not gateway._why_not_ready(), "it is ready")
        listening = gateway._http._listening
        assert listening is not None
        base = f"http://127.0.0.1:{listening.port}"
        told = {}
        for path in ("/readyz", "/healthz", "/metrics", "/v1/topics"):
            async with http.get(base + path) as answer:
                told[path] = answer.status
                text = await answer.text()
            if path == "/metrics":
                assert "paceline_gateway_user_clusters_count 0.0" in text
        assert door.states == ["open"]

    assert told == {"/readyz": 200, "/healthz": 200, "/metrics": 200, "/v1/topics": 404}
    assert door.states == ["open", "closing", "closed"]


async def test_a_call_without_end_does_not_keep_it_from_stopping() -> None:
    async with a_gateway(ends=False) as (gateway, door):
        await gateway.start()

    assert door.states == ["open", "closing"]


async def test_a_door_that_needs_more_than_is_installed_says_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.import_module

    def without_grpc(name: str, package: str | None = None) -> ModuleType:
        if name == "grpc":
            raise ModuleNotFoundError("No module named 'grpc'")
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", without_grpc)

    with pytest.raises(ConfigError, match=r"pip install 'paceline\[grpc\]'"):
        Gateway(
            configured(),
            clock=SystemClock(),
            random=SystemRandom(),
            secrets=ClusterSecrets(SECRET),
        )
