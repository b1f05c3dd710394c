"""The cluster secrets: a file that only its owner can read, the keys of every proof (wire.proof).

The file holds text, one secret a line; white space around it is no part of it, and empty lines are
none. With the first a node proves itself; it believes whoever holds any of them. So a secret is
replaced without a moment in which two nodes do not know each other: the new one is added everywhere
as the second, then it becomes the first, then the old one goes (docs/OPERATIONS.md).

The file is looked at every 10 s and on SIGHUP. What cannot be used is told in the log, and what was
read before stays. Secrets are never logged.
"""

import logging
import os
import stat
from pathlib import Path
from typing import Self

from paceline.errors import ConfigError
from paceline.platform.ports import Random
from paceline.platform.runtime import pause
from paceline.platform.telemetry import Metrics

log = logging.getLogger("paceline.secrets")

SECRET_BYTES_MIN = 16
"""128 bits: below that a recorded handshake could be searched offline."""
SECRETS_MAX = 8
"""A rotation needs two; a proof is tried with all of them."""
LOOK_INTERVAL_MS = 10_000

_MADE_BYTES = 32
_FILE_BYTES_MAX = 4096


class ClusterSecrets:
    """The secrets as they are now. Whoever keeps one for long asks again when he needs it anew."""

    def __init__(self, *secrets: bytes, path: str | None = None) -> None:
        """`path`: the file that they were read from; None: they never change."""
        assert secrets
        self._path = path
        self.all = secrets
        """Whoever holds one of them is a node of this cluster."""

    @classmethod
    def read(cls, path: str) -> Self:
        """ConfigError if others can read the file, or a secret is too short."""
        return cls(*_read_secrets(path), path=path)

    @property
    def current(self) -> bytes:
        """With this one the node proves itself, and encrypts."""
        return self.all[0]

    def reload(self) -> bool:
        """Look at the file; whether it says something else. What is wrong with it is logged."""
        if self._path is None:
            return False
        try:
            found = _read_secrets(self._path)
        except ConfigError as error:
            log.error("cluster_secrets_not_reloaded", extra={"why": error.message})
            return False
        if found == self.all:
            return False
        is_new_first = found[0] != self.current
        self.all = found
        log.info(
            "cluster_secrets_reloaded", extra={"count": len(found), "is_new_first": is_new_first}
        )
        return True

    async def watch(self) -> None:
        """Reload what has changed, until cancelled."""
        while True:
            await pause(LOOK_INTERVAL_MS)
            self.reload()


def register_secrets(metrics: Metrics, secrets: ClusterSecrets) -> None:
    """Metrics of the secrets of a node."""
    metrics.sampled(
        "paceline_cluster_secrets_count",
        "Cluster secrets that this node accepts; alert when it is 2 for long: end the rotation.",
        lambda: len(secrets.all),
    )


def _read_secrets(path: str) -> tuple[bytes, ...]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"cannot read the secret file {path}: {error.strerror or error}"
        ) from error
    try:
        _check_private(path, os.fstat(descriptor))  # of what was opened: no path can change
        content = os.read(descriptor, _FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    secrets = tuple(line.strip() for line in content.splitlines() if line.strip())
    if len(content) > _FILE_BYTES_MAX or len(secrets) > SECRETS_MAX:
        raise ConfigError(
            f"the secret file {path} is over {_FILE_BYTES_MAX} bytes or {SECRETS_MAX} secrets:"
            " it holds one secret a line, and two while they are replaced"
        )
    for number, secret in enumerate(secrets or (b"",), start=1):
        if len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(
                f"the secret in {path} (number {number}) has {len(secret)} bytes; it needs at"
                f" least {SECRET_BYTES_MIN}"
            )
    return secrets


def _check_private(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the secret file {path} is not a regular file")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"the secret file {path} has mode {mode:04o}, so others can read it; "
            f"run: chmod 600 {path}"
        )


def make_secret(path: str, random: Random) -> ClusterSecrets:
    """The secrets at `path`; if there is no file, one is made first (mode 0600, with folder)."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return ClusterSecrets.read(path)
    except OSError as error:
        raise ConfigError(
            f"cannot make the secret file {path}: {error.strerror or error}"
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask was
        file.write(random.token(_MADE_BYTES).hex().encode() + b"\n")
        file.flush()
        os.fsync(descriptor)
    return ClusterSecrets.read(path)
