"""How a client reaches a cluster: where, and as whom."""

import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from paceline.errors import ConfigError
from paceline.platform.address import parse_address

ACCESS_KEY_VARIABLE = "PACELINE_ACCESS_KEY"
SECRET_KEY_VARIABLE = "PACELINE_SECRET_KEY"
TOKEN_FILE_VARIABLE = "PACELINE_TOKEN_FILE"
PLAINTEXT_VARIABLE = "PACELINE_ALLOW_PLAINTEXT"
NAMESPACE_VARIABLE = "PACELINE_NAMESPACE"
TLS_CA_VARIABLE = "PACELINE_TLS_CA"
TLS_CERT_VARIABLE, TLS_KEY_VARIABLE = "PACELINE_TLS_CERT", "PACELINE_TLS_KEY"

_TOKEN_LENGTH_MAX = 8_000
"""A request's head has at most 8,190 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An access key of a user, as `paceline user add-key` makes it."""

    access_key: str
    secret_key: str = field(repr=False)
    allow_plaintext: bool = False
    """Show them also over connections that are not encrypted, beyond this machine: whoever sees the
    traffic can use them."""

    def authorization(self, address: str, *, is_encrypted: bool) -> str:
        """The header that shows them to a node at "host:port".

        ConfigError where others could read it on the way.
        """
        if not is_encrypted and not self.allow_plaintext:
            check_loopback(address, f"the secret key of {self.access_key}")
        return f"Bearer {self.access_key}.{self.secret_key}"

    def environment(self) -> dict[str, str]:
        """The variables that `credentials_of` makes them of, for processes yet to be started."""
        return {
            ACCESS_KEY_VARIABLE: self.access_key,
            SECRET_KEY_VARIABLE: self.secret_key,
            **_plaintext_environment(self.allow_plaintext),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """A token of an identity provider, in a file that somebody renews (as Kubernetes does for a
    service account): it is read for each connection and request."""

    path: str
    allow_plaintext: bool = False
    """As of `Credentials`."""

    def authorization(self, address: str, *, is_encrypted: bool) -> str:
        """As of `Credentials`. ConfigError also where the file cannot be read."""
        if not is_encrypted and not self.allow_plaintext:
            check_loopback(address, f"the token in {self.path}")
        try:
            with open(self.path, encoding="ascii") as file:
                return f"Bearer {file.read(_TOKEN_LENGTH_MAX).strip()}"
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token in {self.path}: {error}") from error

    def environment(self) -> dict[str, str]:
        """As of `Credentials`."""
        return {TOKEN_FILE_VARIABLE: self.path, **_plaintext_environment(self.allow_plaintext)}


class Shown(Protocol):
    """What a client shows to say who it is."""

    def authorization(self, address: str, *, is_encrypted: bool) -> str:
        """The Authorization header for the node at "host:port". ConfigError: it is not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS of a client. Nodes must show a certificate of `ca_file` for the host that is dialled."""

    ca_file: str
    """PEM file of the authorities."""
    cert_file: str = ""
    key_file: str = ""
    """PEM files of the client's own certificate, if it has one."""

    def context(self) -> ssl.SSLContext:
        """Reads the files. ConfigError."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_file, self.cert_file, self.key_file)))
            raise ConfigError(f"the files of TLS cannot be used ({files}): {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """Where a cluster is and who connects; every client takes it in place of an address."""

    bootstrap: str | Sequence[str]
    """ "host:port,..." of controllers or brokers."""
    credentials: Shown | None = None
    """None: the user `anonymous`. `credentials_of(os.environ)` reads those of the environment."""
    tls: ClientTls | None = None
    """None: connections are not encrypted. `tls_of(os.environ)` reads it from the environment."""
    namespace: str | None = None
    """Where the topics and consumer groups are that the program names; "": in none. None: the
    default namespace of its user, if the cluster knows one."""


Bootstrap: TypeAlias = str | Sequence[str] | ConnectSettings


def connect_settings(bootstrap: Bootstrap) -> ConnectSettings:
    """What a client was given, in one form."""
    return bootstrap if isinstance(bootstrap, ConnectSettings) else ConnectSettings(bootstrap)


def credentials_of(environment: Mapping[str, str]) -> Credentials | TokenFile | None:
    """What PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY say, or PACELINE_TOKEN_FILE, and
    PACELINE_ALLOW_PLAINTEXT; None: there are none. ConfigError for half of them, or for both."""
    access_key = environment.get(ACCESS_KEY_VARIABLE, "")
    secret_key = environment.get(SECRET_KEY_VARIABLE, "")
    token_file = environment.get(TOKEN_FILE_VARIABLE, "")
    allow_plaintext = environment.get(PLAINTEXT_VARIABLE) in ("1", "true")
    if token_file:
        if access_key or secret_key:
            raise ConfigError(f"there are an access key and {TOKEN_FILE_VARIABLE}: set one of them")
        return TokenFile(path=token_file, allow_plaintext=allow_plaintext)
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = SECRET_KEY_VARIABLE if access_key else ACCESS_KEY_VARIABLE
        raise ConfigError(f"{missing} is missing: an access key and its secret key go together")
    return Credentials(
        access_key=access_key,
        secret_key=secret_key,
        allow_plaintext=allow_plaintext,
    )


def _plaintext_environment(allow_plaintext: bool) -> dict[str, str]:
    return {PLAINTEXT_VARIABLE: "1"} if allow_plaintext else {}


def tls_of(environment: Mapping[str, str]) -> ClientTls | None:
    """What PACELINE_TLS_CA, PACELINE_TLS_CERT and PACELINE_TLS_KEY say; None: no TLS."""
    ca_file = environment.get(TLS_CA_VARIABLE, "")
    if not ca_file:
        return None
    return ClientTls(
        ca_file=ca_file,
        cert_file=environment.get(TLS_CERT_VARIABLE, ""),
        key_file=environment.get(TLS_KEY_VARIABLE, ""),
    )


def check_loopback(address: str, secret: str) -> None:
    """ConfigError unless a connection that is not encrypted, to "host:port", stays on this machine.
    `secret`: what would be sent."""
    if not _is_loopback(parse_address(address).host):
        raise ConfigError(
            f"the connection to {address} is not encrypted, and {secret} would be readable on the"
            f" way; nothing was sent. Use TLS ({TLS_CA_VARIABLE}=FILE), or, if the network is"
            f" trusted, say so: {PLAINTEXT_VARIABLE}=1",
            address=address,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
