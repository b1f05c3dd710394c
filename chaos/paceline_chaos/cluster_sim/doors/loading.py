"""Loads what needs protobuf, which is only there with the extra `grpc`."""

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from paceline.errors import ConfigError

_HERE = "paceline_chaos.cluster_sim"


class Loaded(NamedTuple):
    """Modules that need it."""

    clients: ModuleType
    at_doors: ModuleType


def load_grpc() -> Loaded:
    """ConfigError: protobuf is not installed."""
    try:
        return Loaded(
            import_module(f"{_HERE}.doors.grpc.clients"), import_module(f"{_HERE}.rights.at_doors")
        )
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "google":
            raise
        raise ConfigError(
            "clients of RocketMQ's gRPC protocol (jobs grpc, tenant-doors) need protobuf, which is"
            " not installed: pip install 'paceline[grpc]'"
        ) from error
