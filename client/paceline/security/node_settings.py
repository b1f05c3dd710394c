"""Settings that processes of a cluster have alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.platform.address import Address
from paceline.platform.config import require, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The beginning of every configuration; the process's own settings follow."""

    listen: Address = setting(
        "host:port for clients; of a controller, for the sessions of brokers too; of a gateway, "
        "for metrics and health only (HTTP)."
    )
    secret_file: str = setting(
        "File of mode 0600 with the cluster secret, the same on all nodes; two lines while it"
        " is replaced. The file is read again when it changes."
    )
    source_host: str = setting(
        "Local address that outgoing connections start from; empty: the system chooses.", default=""
    )
    allowed_hosts: tuple[str, ...] = setting(
        "More host names by which clients reach `listen`. A request for another registered name is "
        "refused, so that no web page can have a browser read or order here (DNS rebinding); IP "
        "addresses, names without a dot and own names are always taken. * = every name.",
        default=(),
    )
    tls_mode: Literal["disabled", "permissive", "preferred", "enforcing"] = setting(
        "TLS at all listeners: permissive takes plain connections too and dials plain ones; "
        "preferred takes both and dials TLS; enforcing takes TLS only. Go through them one by one.",
        default="disabled",
    )
    tls_cert: str = setting(
        "PEM file of this node's certificate (and what leads to the authority), for the host names "
        "and addresses by which others reach it. It is read again when it changes.",
        default="",
    )
    tls_key: str = setting("PEM file of its private key, mode 0600.", default="")
    tls_ca: str = setting(
        "PEM file of the authorities that may sign certificates of nodes and clients.", default=""
    )
    tls_min_version: Literal["1.3", "1.2"] = setting(
        "The least version of TLS of clients; nodes speak 1.3 with each other.", default="1.3"
    )
    insecure: bool = setting(
        "Allow listeners beyond loopback where TLS is not enforced, and rights to be off there: "
        "everybody who reaches them can read what is said, and may do everything.",
        default=False,
    )
    log_level: str = setting("debug, info, warning or error.", default="info")

    @property
    def is_closed(self) -> bool:
        """Whether rights are enforced here whatever the cluster says: others reach `listen`."""
        return not (self.insecure or self.listen.is_loopback)

    def require_protection(self, listeners: Mapping[str, Address]) -> None:
        """ConfigError unless `tls_*` go together, and TLS is enforced at listeners (by their
        settings' names) that other machines reach, or not wanted."""
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        is_on = self.tls_mode != "disabled"
        require(
            all(files) if is_on else not any(files),
            f"tls_mode is {self.tls_mode}, so tls_cert, tls_key and tls_ca must"
            f" {'all be set' if is_on else 'not be set: say how far TLS is to be used'}",
        )
        for name, address in listeners.items():
            require(
                self.insecure or self.tls_mode == "enforcing" or address.is_loopback,
                f"{name} {address} is not a loopback address and TLS is not enforced: set "
                "tls_mode = enforcing (users and rights are on then), bind 127.0.0.1, or set "
                "insecure = true knowing that the port is open to everybody",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(ProcessSettings):
    """Those that brokers and controllers have besides."""

    oidc_issuer: str = setting(
        "Identity provider whose tokens count as their users', https://...; empty: none.",
        default="",
    )
    oidc_audience: str = setting("For whom such a token must be (claim aud).", default="")
    oidc_user_claim: str = setting("The claim that names the user.", default="sub")
    oidc_ca: str = setting(
        "PEM file of the authorities of the provider; empty: those of the system.", default=""
    )
    audit_sample_one_in: int = setting(
        "While rights are on, of the calls that change nothing (send, read, look) one in so many "
        "is told in the audit; 0: none. Changes and refusals always are.",
        default=1000,
    )

    def require_protection(self, listeners: Mapping[str, Address]) -> None:
        """As of every process; ConfigError also unless `oidc_*` go together."""
        ProcessSettings.require_protection(self, listeners)  # slots: there is no super()
        require(
            bool(self.oidc_issuer) == bool(self.oidc_audience),
            "oidc_issuer and oidc_audience belong together: set both or none",
        )
        require(
            not self.oidc_issuer or self.oidc_issuer.startswith("https://"),
            f"oidc_issuer {self.oidc_issuer!r} must begin with https://: whoever could change the"
            " keys on the way could be any user",
        )
