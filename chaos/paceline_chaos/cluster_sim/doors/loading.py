"""Loads what needs protobuf, which is only there with the extra `grpc`."""

from importlib import import_module
from typing import Any

from paceline.errors import ConfigError


def load_grpc() -> Any:
    """The module `clients`. ConfigError: protobuf is not installed."""
    try:
        return import_module("paceline_chaos.cluster_sim.doors.clients")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "google":
            raise
        raise ConfigError(
            "clients of RocketMQ's gRPC protocol (job grpc) need protobuf, which is not installed:"
            " pip install 'paceline[grpc]'"
        ) from error
