"""Profiles of a person: clusters and the access keys for them, in one file that only he can read.

`paceline login` writes it; every command that meets a cluster reads the profile that
PACELINE_PROFILE names, or `default`.
"""

import fcntl
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.net.connect import Credentials

FILE_NAME, LOCK_NAME = "profiles.json", ".profiles.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One cluster, and as whom to meet it."""

    bootstrap: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    allow_plaintext: bool = False
    tls_ca: str = ""
    """PEM file of the authorities; empty: no TLS."""
    namespace: str | None = None
    """None: the default one of the user."""

    def credentials(self) -> "Credentials | None":
        from paceline.net.connect import Credentials

        if not self.access_key:
            return None
        return Credentials(
            access_key=self.access_key,
            secret_key=self.secret_key,
            allow_plaintext=self.allow_plaintext,
        )


def read_profiles(folder: Path) -> dict[str, Profile]:
    """All profiles by name. ConfigError if others can read the file, or it is none."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    if mode & 0o077:
        raise ConfigError(
            f"{path} has secret keys and mode {mode:04o}, so others can read it; run: chmod 600"
            f" {path}"
        )
    try:
        document = orjson.loads(content)
        return {name: _profile(each) for name, each in document["profiles"].items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no file of profiles: {error!r}") from error


def write_profile(folder: Path, name: str, profile: Profile | None) -> str:
    """Put a profile in place of the one of that name, or take it out (None); under which name.

    A profile of another cluster stays, as it may have the only copy of its key: then the name is
    `name-2`, or the next one that is free or of this cluster. ConfigError.
    """
    with _locked(folder):
        profiles = read_profiles(folder)
        if profile is None:
            profiles.pop(name, None)
        else:
            numbered = (f"{name}-{number}" for number in itertools.count(2))
            name = next(
                each
                for each in itertools.chain((name,), numbered)
                if each not in profiles or profiles[each].bootstrap == profile.bootstrap
            )
            profiles[name] = profile
        document = {"profiles": {each: asdict(profiles[each]) for each in sorted(profiles)}}
        _replace(folder / FILE_NAME, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    return name


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time reads and writes the file. The system unlocks it when one ends."""
    path = folder / LOCK_NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise ConfigError(f"cannot lock {path}: {error.strerror or error}") from error
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    """Put a whole file in place; only its owner can read it, from its first byte."""
    try:
        descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def _profile(document: dict[str, object]) -> Profile:
    known = {each.name for each in fields(Profile)}
    if not set(document) <= known:
        raise KeyError(*(set(document) - known))
    profile = Profile(**document)  # type: ignore[arg-type]  # checked below
    texts = [profile.bootstrap, profile.access_key, profile.secret_key, profile.tls_ca]
    texts.append(profile.namespace or "")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a profile has texts")
    return profile
