"""Ports for nodes that are about to start.

Between choosing a port and listening on it somebody else may take it. A port that the system chose
(bind to 0) is of the range that it also gives to every outgoing connection, so on a busy machine
that does happen; below the range it takes a program that wants this very port.
"""

import errno
import ipaddress
import os
import socket
from contextlib import ExitStack

from paceline.errors import ConfigError
from paceline.platform.runtime import SystemRandom

FIRST, END = 10_240, 32_000
"""Linux gives 32,768 to 60,999 to outgoing connections, macOS and others 49,152 and above."""
TRIES_MAX = 10_000
RANGE_VARIABLE = "PACELINE_FREE_PORTS"
"""Environment: "10240-15000", say, for each of several that start clusters side by side."""


def free_ports(count: int, *, host: str) -> list[int]:
    """Different ones on which nobody listens at the moment. Raises ConfigError."""
    first, end = _range()
    random = SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        for _ in range(TRIES_MAX):
            if len(found) == count:
                return found
            port = first + int(random.uniform(0, end - first))
            one = stack.enter_context(socket.socket(address_family(host)))
            try:
                one.bind((host, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise ConfigError(
                        f"{host} cannot be listened at: {error.strerror or error}; name an address"
                        " of this machine"
                    ) from error
            else:
                found.append(port)
    raise ConfigError(
        f"no {count} free ports of {host} from {first} to {end - 1}: choose by --port"
    )


def check_free(port: int, *, host: str) -> None:
    """ConfigError unless nobody listens there, and one could."""
    with socket.socket(address_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ConfigError(
                    f"--host {host} cannot be listened at: {error.strerror or error}; name an"
                    " address of this machine"
                ) from error
            raise ConfigError(
                f"port {port} of {host} is in use by another program: "
                "stop it, or choose other ports with --port"
            ) from error


def is_wildcard(host: str) -> bool:
    """Whether it means every address of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def address_family(host: str) -> socket.AddressFamily:
    """Of sockets that listen at a host; a name is one of IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _range() -> tuple[int, int]:
    text = os.environ.get(RANGE_VARIABLE, f"{FIRST}-{END}")
    first, _, end = text.partition("-")
    if not (first.isdecimal() and end.isdecimal() and 1024 <= int(first) < int(end) <= 65_536):
        raise ConfigError(f"{RANGE_VARIABLE} is {text!r}: it must be FIRST-END, like {FIRST}-{END}")
    return int(first), int(end)
