"""The cluster secret: a file that only its owner can read, the key of every proof (wire.proof).

The file holds text (surrounding white space is not part of the secret). It is read once, by
`app.py`, and never logged.
"""

import os
import stat
from pathlib import Path

from paceline.errors import ConfigError
from paceline.platform.ports import Random

SECRET_BYTES_MIN = 16
"""128 bits: below that a recorded handshake could be searched offline."""

_MADE_BYTES = 32
_READ_BYTES_MAX = 4096


def read_secret(path: str) -> bytes:
    """The secret in the file at `path`. ConfigError if others can read it or it is too short."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"cannot read the secret file {path}: {error.strerror or error}"
        ) from error
    try:
        _check_private(path, os.fstat(descriptor))  # of what was opened: no path can change
        secret = os.read(descriptor, _READ_BYTES_MAX).strip()
    finally:
        os.close(descriptor)
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"the secret in {path} has {len(secret)} bytes; it needs at least {SECRET_BYTES_MIN}"
        )
    return secret


def _check_private(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the secret file {path} is not a regular file")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"the secret file {path} has mode {mode:04o}, so others can read it; "
            f"run: chmod 600 {path}"
        )


def make_secret(path: str, random: Random) -> bytes:
    """The secret at `path`, made first (mode 0600, folder included) if there is none."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read_secret(path)
    except OSError as error:
        raise ConfigError(
            f"cannot make the secret file {path}: {error.strerror or error}"
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask was
        file.write(random.token(_MADE_BYTES).hex().encode() + b"\n")
        file.flush()
        os.fsync(descriptor)
    return read_secret(path)
