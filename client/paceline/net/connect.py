"""How a client reaches a cluster: where, and as whom."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from paceline.errors import ConfigError
from paceline.platform.address import parse_address

ACCESS_KEY_VARIABLE = "PACELINE_ACCESS_KEY"
SECRET_KEY_VARIABLE = "PACELINE_SECRET_KEY"
PLAINTEXT_VARIABLE = "PACELINE_ALLOW_PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An access key of a user, as `paceline user add-key` makes it."""

    access_key: str
    secret_key: str = field(repr=False)
    allow_plaintext: bool = False
    """Show them also over connections that are not encrypted, beyond this machine: whoever sees the
    traffic can use them."""

    def authorization(self, address: str) -> str:
        """The header that shows them to a node at "host:port".

        ConfigError where others could read it on the way.
        """
        if not self.allow_plaintext and not _is_loopback(parse_address(address).host):
            raise ConfigError(
                f"the connection to {address} is not encrypted, and the secret key of"
                f" {self.access_key} would be readable on the way; nothing was sent. If the network"
                f" is trusted, say so: {PLAINTEXT_VARIABLE}=1, or allow_plaintext=True",
                address=address,
            )
        return f"Bearer {self.access_key}.{self.secret_key}"


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """Where a cluster is and who connects; every client takes it in place of an address."""

    bootstrap: str | Sequence[str]
    """ "host:port,..." of controllers or brokers."""
    credentials: Credentials | None = None
    """None: the user `anonymous`. `credentials_of(os.environ)` reads those of the environment."""


Bootstrap: TypeAlias = str | Sequence[str] | ConnectSettings


def connect_settings(bootstrap: Bootstrap) -> ConnectSettings:
    """What a client was given, in one form."""
    return bootstrap if isinstance(bootstrap, ConnectSettings) else ConnectSettings(bootstrap)


def credentials_of(environment: Mapping[str, str]) -> Credentials | None:
    """What PACELINE_ACCESS_KEY, PACELINE_SECRET_KEY and PACELINE_ALLOW_PLAINTEXT say; None: there
    are none. ConfigError for half of them."""
    access_key = environment.get(ACCESS_KEY_VARIABLE, "")
    secret_key = environment.get(SECRET_KEY_VARIABLE, "")
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = SECRET_KEY_VARIABLE if access_key else ACCESS_KEY_VARIABLE
        raise ConfigError(f"{missing} is missing: an access key and its secret key go together")
    return Credentials(
        access_key=access_key,
        secret_key=secret_key,
        allow_plaintext=environment.get(PLAINTEXT_VARIABLE) in ("1", "true"),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
