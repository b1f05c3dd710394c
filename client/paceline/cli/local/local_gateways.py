"""Gateways of a cluster on this machine: which doors, and their ports."""

import importlib.util
from collections.abc import Iterable
from typing import NamedTuple

from paceline.cli.local.free_ports import check_free, free_ports
from paceline.errors import ConfigError
from paceline.platform.address import Address

DOORS = ("grpc", "remoting")
GATEWAYS_MAX = 8
_GROUP_STEP, _VIP_BELOW = 10, 2
"""The remoting door listens for broker group n so far above its name server, and below that."""
_TRIES_MAX = 100


class GatewayPorts(NamedTuple):
    """Of one gateway."""

    http: int
    grpc: int
    remoting: int
    """Of the name server; those of broker groups follow from it."""

    def addresses(self, doors: Iterable[str], host: str) -> dict[str, str]:
        """Door -> the address that clients are given."""
        return {door: str(Address(host, getattr(self, door))) for door in doors}


def parse_doors(text: str) -> tuple[str, ...]:
    """What --doors names. ConfigError."""
    named = [each.strip() for each in text.split(",")] if text.strip() else []
    unknown = sorted(set(named) - set(DOORS))
    if unknown:
        raise ConfigError(f"--doors {unknown[0] or text}: there are {' and '.join(DOORS)}")
    return tuple(door for door in DOORS if door in named)


def check_doors(doors: Iterable[str]) -> None:
    """ConfigError: a door needs more than is installed."""
    if "grpc" in doors and importlib.util.find_spec("grpc") is None:
        raise ConfigError(
            "the door for gRPC clients needs more than is installed: pip install 'paceline[grpc]'"
        )


def gateway_ports(count: int, groups: int, *, first: int, host: str) -> list[GatewayPorts]:
    """For so many gateways of a cluster with so many broker groups: from `first` on, each checked
    free; free ones where it is 0. ConfigError."""
    offsets = [0]
    for group in range(1, groups + 1):
        offsets += [_GROUP_STEP * group - _VIP_BELOW, _GROUP_STEP * group]
    found = []
    for _ in range(count):
        if first == 0:
            http, grpc = free_ports(2, host=host)
            found.append(GatewayPorts(http, grpc, _free_row(offsets, host=host)))
            continue
        made = GatewayPorts(first, first + 1, first + 2)
        for port in (made.http, made.grpc, *(made.remoting + offset for offset in offsets)):
            check_free(port, host=host)
        found.append(made)
        first = made.remoting + offsets[-1] + 1
    return found


def _free_row(offsets: list[int], *, host: str) -> int:
    """A port above which all these are free."""
    for _ in range(_TRIES_MAX):
        [base] = free_ports(1, host=host)
        try:
            for offset in offsets:
                check_free(base + offset, host=host)
        except ConfigError:
            continue  # somebody has one of them: another row
        return base
    raise ConfigError(f"no row of free ports of {host} for a gateway: choose by --port")


def gateway_settings(
    ports: GatewayPorts, doors: Iterable[str], *, host: str, advertise: str
) -> dict[str, object]:
    """Where it listens, and where others reach it."""
    listeners = {f"{door}_listen": at for door, at in ports.addresses(doors, host).items()}
    told = {"advertised_host": advertise} if advertise else {}
    return {"listen": str(Address(host, ports.http)), **listeners, **told}
