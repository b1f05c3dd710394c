"""Shell: the controller's data folder: one process, one controller, one cluster."""

from dataclasses import dataclass

from paceline.errors import ConfigError, CorruptLogError, StorageError
from paceline.platform.ports import Disk, File, write_durably
from paceline.platform.sealed import seal, unseal

IDENTITY_NAME = "controller.json"
_IDENTITY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderIdentity:
    """Whose folder it is."""

    controller_id: str
    cluster_name: str
    cluster_id: str | None
    """None: the cluster was not founded when this was written."""


def lock_data_folder(disk: Disk, path: str) -> File:
    """Take the folder for this process. Raises ConfigError with a sentence."""
    try:
        disk.make_folder(path)
        return disk.lock_folder(path)
    except StorageError as error:
        raise ConfigError(f"cannot use the data folder {path}: {error.message}") from error


def claim(disk: Disk, path: str, *, controller_id: str, cluster_name: str) -> FolderIdentity:
    """The folder's identity, made if it is new. Raises ConfigError if it is another's (R18)."""
    found = _read(disk, path)
    if found is None:
        found = FolderIdentity(
            controller_id=controller_id, cluster_name=cluster_name, cluster_id=None
        )
        _write(disk, path, found)
        return found
    if found.controller_id != controller_id:
        raise ConfigError(
            f"the data folder {path} belongs to controller {found.controller_id}, "
            f"not to {controller_id}"
        )
    if found.cluster_name != cluster_name:
        raise ConfigError(
            f"the data folder {path} belongs to cluster {found.cluster_name}, not to {cluster_name}"
        )
    return found


def join_cluster(disk: Disk, path: str, identity: FolderIdentity, cluster_id: str) -> None:
    """Remember for ever which cluster this folder is of."""
    _write(
        disk,
        path,
        FolderIdentity(
            controller_id=identity.controller_id,
            cluster_name=identity.cluster_name,
            cluster_id=cluster_id,
        ),
    )


def _read(disk: Disk, path: str) -> FolderIdentity | None:
    name = f"{path}/{IDENTITY_NAME}"
    if not disk.exists(name):
        return None
    file = disk.open(name)
    try:
        content = disk.pread(file, _IDENTITY_BYTES_MAX, 0)
    finally:
        file.close()
    try:
        return FolderIdentity(**unseal(content))
    except (CorruptLogError, TypeError) as error:
        raise ConfigError(f"{name} is damaged: {error}; restore it or replace this node") from error


def _write(disk: Disk, path: str, identity: FolderIdentity) -> None:
    document = {
        "controller_id": identity.controller_id,
        "cluster_name": identity.cluster_name,
        "cluster_id": identity.cluster_id,
    }
    write_durably(disk, f"{path}/{IDENTITY_NAME}", seal(document))
