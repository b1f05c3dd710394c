"""What makes the cluster of a run a secure one: TLS between all, users with keys, and rights on.

Owner of two authorities in the run's folder: nodes begin with certificates of the first one, and
both may be exchanged while the cluster works. Clients trust both from the beginning, as after an
operator has told them.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.admin.client import AdminClient
from paceline.admin.requests import AdminRequests
from paceline.net.cluster import Cluster
from paceline.net.connect import ClientTls, ConnectSettings
from paceline.platform.runtime import SystemClock
from paceline.security.authority import Authority
from paceline_chaos.cluster_sim.rights.securing import (
    ROOT,
    ROOT_KEY,
    credentials_of,
    everything,
    give_key,
    make_user,
)

_USER = "load"
"""Whoever sends and reads: no super user, so that each request is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Certified:
    name: str
    names: tuple[str, ...]
    """As `Authority.issue` takes them."""


class ClusterTls:
    """See the module."""

    def __init__(self, folder: Path) -> None:
        self._first = _authority(folder / "first")
        self._second = _authority(folder / "second")
        self._trusted = folder / "trusted.pem"
        """Authorities that nodes trust now."""
        self._known = folder / "known.pem"
        """Those that clients do."""
        self._folder = folder
        self._issuing = self._first
        self._certified: list[_Certified] = []
        self._trust(self._known, self._first, self._second)
        self._trust(self._trusted, self._first)

    @property
    def client(self) -> ClientTls:
        """For clients."""
        return ClientTls(ca_file=str(self._known))

    def settings(self, name: str, role: str, uri: str, host: str) -> dict[str, Any]:
        """TLS settings of a node, which gets its certificates now."""
        one = _Certified(name=name, names=(host, "localhost", f"URI:paceline:{role}/{uri}"))
        self._certified.append(one)
        self._issue(one)
        files = {
            "cert": str(self._folder / f"{name}.pem"),
            "key": str(self._folder / f"{name}.key"),
            "ca": str(self._trusted),
        }
        return {"tls_mode": "enforcing", **{f"tls_{part}": path for part, path in files.items()}}

    def renew(self) -> None:
        """New certificates and keys for all nodes, of the same authority as before."""
        for one in self._certified:
            self._issue(one)

    def trust_both(self) -> None:
        """Nodes trust the other authority as well: the first step of an exchange."""
        self._trust(self._trusted, self._first, self._second)

    def issue_by_other(self) -> None:
        """The second step: certificates of the other one."""
        self._issuing = self._second if self._issuing is self._first else self._first
        self.renew()

    def trust_issuing(self) -> None:
        """The last step: whose certificates are there no more is trusted no more."""
        self._trust(self._trusted, self._issuing)

    def _issue(self, one: _Certified) -> None:
        """The node's files are put in place of those of before: the key first."""
        self._issuing.issue(one.name, one.names, now_unix_ms=SystemClock().unix_ms())
        certificate, key = self._issuing.paths(one.name)
        for source, suffix in ((key, "key"), (certificate, "pem")):
            beside = self._folder / f".{one.name}.{suffix}.new"
            beside.write_bytes(source.read_bytes())
            beside.chmod(0o600)
            beside.replace(self._folder / f"{one.name}.{suffix}")

    def _trust(self, path: Path, *authorities: Authority) -> None:
        beside = path.with_name(f".{path.name}.new")
        beside.write_bytes(b"".join(each.certificate.read_bytes() for each in authorities))
        beside.replace(path)


def _authority(folder: Path) -> Authority:
    made = Authority(folder)
    made.init(common_name=f"chaos {folder.name}", now_unix_ms=SystemClock().unix_ms())
    return made


def root_of(bootstrap: Sequence[str], tls: ClusterTls | None) -> ConnectSettings:
    """How the harness itself connects."""
    if tls is None:
        return ConnectSettings(bootstrap)
    return ConnectSettings(bootstrap, credentials_of(ROOT_KEY), tls.client)


def probe_headers(tls: ClusterTls | None) -> dict[str, str]:
    """What a probe shows."""
    if tls is None:
        return {}
    credentials = credentials_of(ROOT_KEY)
    return {"Authorization": f"Bearer {credentials.access_key}.{credentials.secret_key}"}


def probe_context(tls: ClusterTls | None) -> ssl.SSLContext | bool:
    """For probes by aiohttp."""
    return True if tls is None else tls.client.context()


def key_of(client: str) -> str:
    """The access key of a client."""
    return f"key-of-{client}"


async def secure(connect: ConnectSettings, clients: Sequence[str]) -> None:
    """Make a super user and the user of all clients with a key for each, and switch rights on."""
    cluster = Cluster(connect)
    requests = AdminRequests(cluster, timeout_ms=10_000)
    cluster.start()
    try:
        async with AdminClient(cluster) as admin:
            await make_user(admin, ROOT, is_super=True)
            await give_key(requests, ROOT, ROOT_KEY)
            await make_user(admin, _USER)
            for client in clients:
                await give_key(requests, _USER, key_of(client))
            await admin.policies.put(_USER, custom=everything())
            await admin.security.set("on")
    finally:
        await cluster.close()
