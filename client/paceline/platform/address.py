"""Pure: network addresses as people write them, "host:port"."""

import ipaddress
from functools import lru_cache
from typing import NamedTuple

from paceline.errors import ConfigError

_PORT_MAX = 65_535


class Address(NamedTuple):
    """A host name or IP literal and a TCP port. Port 0 = any free port, only where one listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it (DESIGN 11: anything else needs protection)."""
        return _is_loopback(self.host)


@lru_cache(maxsize=1024)  # a gateway asks for each request that is signed
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> Address:
    """The address in "host:port" or "[ipv6]:port"; ConfigError says what is wrong with it."""
    host, separator, port_text = text.strip().rpartition(":")
    if not separator or not host:
        raise ConfigError(f"{text!r} is not an address; write host:port, e.g. 127.0.0.1:7700")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{text!r}: write an IPv6 address in brackets, e.g. [::1]:7700")
    if not host or any(character.isspace() or character == "/" for character in host):
        raise ConfigError(f"{text!r} has no valid host; write host:port, e.g. 127.0.0.1:7700")
    if not (port_text.isascii() and port_text.isdecimal()) or int(port_text) > _PORT_MAX:
        raise ConfigError(f"{text!r}: the port must be a number from 0 to {_PORT_MAX}")
    return Address(host, int(port_text))
