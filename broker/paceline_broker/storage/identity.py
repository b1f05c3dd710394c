"""Who this store is: the two small files that a broker fsyncs before it says anything to anybody.

`identity.json` carries the store id, the incarnation counter and, once given, cluster, group and
replica id; `epoch.json` the highest master epoch the broker was told. Both are replaced as a whole
(`write_durably`) and carry a checksum: a flipped bit is never believed. Each has a twin, NAME.copy,
written before it and read when it is damaged or gone (R24). Rules: R2 (epoch persisted
before it is acted on, never lower), R9 (incarnation incremented and fsynced before each
registration), R13 (boot id and clean-shutdown mark), R18 (a store of another cluster is refused).
"""

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.errors import ConfigError, CorruptLogError, StorageError
from paceline.platform.ports import Disk, Random, read_whole, write_durably
from paceline.platform.sealed import seal, unseal
from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline_broker.storage.durable_files import write_durably_later

log = logging.getLogger("paceline.store")

STORE_ID_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Content of `identity.json`. `cluster_id` and `replica_id` are None until first registered."""

    store_id: str
    group: GroupName
    incarnation: Incarnation
    boot_id: str
    clean_shutdown: bool
    is_unclean: bool = False
    """A power loss came since the controllers last registered this store (R13)."""
    cluster_id: str | None = None
    replica_id: ReplicaId | None = None


class StoreIdentity:
    """Owner of `identity.json` and `epoch.json` of one data folder; used by the role task only."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._identity_path = f"{folder}/identity.json"
        self._epoch_path = f"{folder}/epoch.json"
        self._identity: Identity | None = None
        self._epoch = MasterEpoch(0)
        self._is_adopting = False

    @property
    def identity(self) -> Identity:
        assert self._identity is not None, "begin_incarnation was not called"
        return self._identity

    @property
    def epoch(self) -> MasterEpoch:
        """The highest master epoch this store was told; durable."""
        return self._epoch

    @property
    def is_adopting(self) -> bool:
        """An epoch is being written, off the event loop: its files are ahead of `epoch`."""
        return self._is_adopting

    def begin_incarnation(self, *, group: GroupName, boot_id: str, random: Random) -> Identity:
        """Load or create the identity and count one start, durably (R9).

        Raises ConfigError if the folder belongs to another broker group, StorageError if a file
        is unreadable: an identity is never guessed.
        """
        previous = self._load()
        if previous is None:
            store_id = random.token(STORE_ID_BYTES).hex()
            present = Identity(
                store_id=store_id,
                group=group,
                incarnation=Incarnation(1),
                boot_id=boot_id,
                clean_shutdown=False,
            )
        else:
            if previous.group != group:
                raise ConfigError(
                    f"the data folder holds a store of broker group {previous.group!r}, "
                    f"the configuration says {group!r}: point data_dir elsewhere or correct group"
                )
            is_unclean = previous.boot_id != boot_id and not previous.clean_shutdown
            present = replace(
                previous,
                incarnation=Incarnation(previous.incarnation + 1),
                boot_id=boot_id,
                clean_shutdown=False,
                # Kept until a registration has told it: a second start before must not wash it off.
                is_unclean=previous.is_unclean or is_unclean,
            )
        self._epoch = self._load_epoch()
        self._store(present)
        return present

    def join_cluster(
        self, *, cluster_id: str, replica_id: ReplicaId, replaces_cluster: str | None = None
    ) -> None:
        """The controllers have registered this start, and know of a power loss before it (R13).

        What they said is remembered; a contradiction is refused (R18), unless they say that an
        operator has recovered this store there from the very cluster it is of: `replaces_cluster`.
        """
        known = self.identity
        is_recovered = replaces_cluster is not None and known.cluster_id == replaces_cluster
        if known.cluster_id not in (None, cluster_id) and not is_recovered:
            raise ConfigError(
                f"the data folder belongs to cluster {known.cluster_id}, the controllers lead "
                f"cluster {cluster_id}: this broker was started with another cluster's data"
            )
        if known.replica_id not in (None, replica_id) and not is_recovered:
            raise ConfigError(
                f"the data folder is replica {known.replica_id} of group {known.group!r}, the "
                f"controllers call it replica {replica_id}: it may not join under another identity"
            )
        if known.cluster_id not in (None, cluster_id):
            log.warning(
                "cluster_replaced", extra={"was": known.cluster_id, "cluster_id": cluster_id}
            )
        joined = replace(known, cluster_id=cluster_id, replica_id=replica_id, is_unclean=False)
        if joined != known:
            self._store(joined)

    async def adopt_epoch(self, epoch: MasterEpoch, *, is_disk_slow: bool = False) -> None:
        """Persist `epoch` before anything is done in it (R2, INV-4); durable on return.

        Off the event loop if the disk is slow: its syncs must keep no heartbeat back. Else on it,
        as each turn between would cost a failover milliseconds. The caller adopts one epoch at a
        time.
        """
        assert epoch >= self._epoch, (epoch, self._epoch)  # INV-4: epochs never decrease
        if epoch == self._epoch:
            return
        content = seal({"master_epoch": epoch})
        self._is_adopting = True
        try:
            if is_disk_slow:
                for path in (_copy_of(self._epoch_path), self._epoch_path):  # as `_write`
                    await write_durably_later(self._disk, path, content)
            else:
                self._write(self._epoch_path, content)
        finally:
            self._is_adopting = False
        self._epoch = epoch

    def load(self) -> Identity | None:
        """What is on the disk, without counting a start; None: there is no store."""
        return self._load()

    def replace_store_id(self, random: Random) -> None:
        """To the controllers it is another disk from now on: some of what it held is gone (R9)."""
        known = self._load()
        assert known is not None
        self._store(replace(known, store_id=random.token(STORE_ID_BYTES).hex()))

    def mark_clean_shutdown(self) -> None:
        """Last act of an orderly stop, after the log was flushed and closed."""
        self._store(replace(self.identity, clean_shutdown=True))

    def _load(self) -> Identity | None:
        document = self._read_json(self._identity_path)
        if document is None:
            return None
        try:
            return Identity(**document)
        except TypeError as error:
            raise StorageError(f"{self._identity_path} is not an identity: {error}") from error

    def _load_epoch(self) -> MasterEpoch:
        document = self._read_json(self._epoch_path)
        if document is None:
            return MasterEpoch(0)
        epoch = document.get("master_epoch")
        if not isinstance(epoch, int) or epoch < 0:
            raise StorageError(f"{self._epoch_path} holds no master epoch: {document!r}")
        return MasterEpoch(epoch)

    def replace_bad(self) -> list[str]:
        """Write files anew that the disk has changed or lost since; their paths."""
        identity, epoch = seal(asdict(self.identity)), seal({"master_epoch": self._epoch})
        contents = {self._identity_path: identity}
        if self._epoch > 0 and not self.is_adopting:  # what is written now is ahead of it
            contents[self._epoch_path] = epoch
        bad = []
        for path, content in contents.items():
            for twin in (_copy_of(path), path):
                if not self._disk.exists(twin) or read_whole(self._disk, twin) != content:
                    write_durably(self._disk, twin, content)
                    bad.append(twin)
        return bad

    def _read_json(self, path: str) -> dict[str, Any] | None:
        """The file, or its twin if it is damaged or gone; None if neither is there (R24)."""
        try:
            document = self._read_one(path)
        except StorageError as error:
            copy = self._read_one(_copy_of(path))
            if copy is None:
                raise
            log.error("side_file_damaged", extra={"path": path, "fault": error.message})
            return copy
        return self._read_one(_copy_of(path)) if document is None else document

    def _read_one(self, path: str) -> dict[str, Any] | None:
        if not self._disk.exists(path):
            return None
        try:
            return unseal(read_whole(self._disk, path))
        except CorruptLogError as error:
            raise StorageError(
                f"{path} is damaged ({error.message}); restore it or empty the folder"
            ) from error

    def _store(self, identity: Identity) -> None:
        self._write(self._identity_path, seal(asdict(identity)))
        self._identity = identity

    def _write(self, path: str, content: bytes) -> None:
        # The twin first: a file that is damaged later was never ahead of it.
        write_durably(self._disk, _copy_of(path), content)
        write_durably(self._disk, path, content)


def _copy_of(path: str) -> str:
    return f"{path}.copy"
