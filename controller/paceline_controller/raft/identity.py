"""Who this controller is, which peers it knows, and whether it may vote: the amnesia gate.

A Raft node that lost its disk has forgotten its promises; if it votes under its old id, committed
commands can be lost (R18). So every data folder has a random store id, every controller remembers
durably the store it met under each peer's id before it exchanges a Raft message with it, and:

- a peer that comes back with another store under a known id is refused: the operator replaces it
  under a new id;
- a store votes only once it is *founded*: it has met every configured peer, and each of them was
  either new itself or remembers exactly this store; or, for a new id that joins an old cluster,
  once it has caught up with a leader;
- identity and journal vouch for each other: one without the other refuses to start.

Owner: the event loop of one `RaftQuorum`.
"""

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError, PeerError, StorageError
from paceline.platform.ports import Disk, Random, read_whole, write_durably
from paceline.types import ControllerId
from paceline_controller.raft.log.journal import Journal

log = logging.getLogger("paceline.raft")

FORMAT_VERSION = 1
STORE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    format: int
    controller: str
    cluster: str
    store: str
    has_journal: bool = False
    is_founded: bool = False
    peers: dict[str, str] = field(default_factory=dict)


class Identity:
    """The identity file, and what the peers of this run said about us."""

    def __init__(self, disk: Disk, path: str, record: _Record, peers: Iterable[ControllerId]):
        self._disk = disk
        self._path = path
        self._record = record
        self._unmet = set(peers)
        self._is_new_member = False  # a founded peer does not remember us
        self._waits_for_log = False  # the quorum has generations, and we are in none yet
        if not self._unmet:
            self._found("alone")

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        controller_id: ControllerId,
        cluster: str,
        peers: Iterable[ControllerId],
        random: Random,
    ) -> "Identity":
        """Read or make the file; StorageError if it belongs to another controller or cluster."""
        if disk.exists(path):
            record = _read(disk, path)
            if (record.controller, record.cluster) != (controller_id, cluster):
                raise StorageError(
                    f"{path} belongs to controller {record.controller!r} of cluster"
                    f" {record.cluster!r}, not to {controller_id!r} of {cluster!r}"
                )
        else:
            record = _Record(
                format=FORMAT_VERSION,
                controller=controller_id,
                cluster=cluster,
                store=random.token(STORE_BYTES).hex(),
            )
            _write(disk, path, record)
        return cls(disk, path, record, peers)

    @property
    def store(self) -> str:
        return self._record.store

    @property
    def has_journal(self) -> bool:
        """Whether this store ever had a journal: then it must have it still."""
        return self._record.has_journal

    @property
    def may_vote(self) -> bool:
        return self._record.is_founded

    def remembered_store(self, peer: ControllerId) -> str:
        """The store met under that id before, "" if none."""
        return self._record.peers.get(peer, "")

    def store_of(self, controller: ControllerId) -> str:
        """The store of any controller, this one too; "" if it was never met."""
        is_own = controller == self._record.controller
        return self.store if is_own else self.remembered_store(controller)

    def journal_created(self) -> None:
        if not self._record.has_journal:
            self._update(replace(self._record, has_journal=True))

    def meet(
        self, peer: ControllerId, *, store: str, is_founded: bool, remembered_store: str
    ) -> None:
        """A peer has proved itself; durable on return. Raises PeerError if it lost its disk."""
        known = self.remembered_store(peer)
        if known and known != store:
            raise PeerError(
                f"controller {peer!r} comes with another data folder than before; a controller"
                " that lost its disk must be replaced under a new id"
            )
        if not known:
            self._update(replace(self._record, peers=self._record.peers | {peer: store}))
        if self.may_vote:
            return
        if is_founded and remembered_store != self.store:
            self._is_new_member = True
        self._unmet.discard(peer)
        if not self._unmet and not self._is_new_member:
            self._found("all_met")

    def met_generation(self, generation: int) -> None:
        """A peer goes by that generation of the member list."""
        if generation > 0 and not self.may_vote:
            self._waits_for_log = self._is_new_member = True

    def caught_up(self) -> None:
        """This node has applied all that its leader had committed: from now on it may vote.

        Only where the configuration says who the members are; else the log does (`admitted`).
        """
        if not self.may_vote and not self._waits_for_log:
            self._found("caught_up")

    def admitted(self, store: str) -> None:
        """The log names this controller as a member, with that store ("" = any)."""
        if self.is_own_store(store) and not self.may_vote:
            self._found("admitted")

    def is_own_store(self, store: str) -> bool:
        """Whether a member list that names this store means this data folder."""
        return store in ("", self.store)

    def learn(self, peer: ControllerId, store: str) -> bool:
        """The log says which store votes under that id; whether another one was remembered."""
        known = self.remembered_store(peer)
        if store in ("", known):
            return False
        self._update(replace(self._record, peers=self._record.peers | {peer: store}))
        return bool(known)

    def _found(self, reason: str) -> None:
        if not self.may_vote:
            self._update(replace(self._record, is_founded=True))
            log.info("raft_store_founded", extra={"store": self.store, "reason": reason})

    def _update(self, record: _Record) -> None:
        _write(self._disk, self._path, record)
        self._record = record


def open_identity(
    disk: Disk,
    folder: str,
    *,
    controller_id: ControllerId,
    cluster: str,
    peers: Iterable[ControllerId],
    random: Random,
) -> Identity:
    """Identity and journal of a folder, which vouch for each other. Raises StorageError."""
    identity = Identity.open(
        disk,
        f"{folder}/identity",
        controller_id=controller_id,
        cluster=cluster,
        peers=peers,
        random=random,
    )
    has_journal = Journal.exists(disk, folder)
    if identity.has_journal and not has_journal:
        raise StorageError(
            f"the journal in {folder} is missing: this controller has lost what it"
            " promised and must be replaced under a new id"
        )
    if not has_journal:
        Journal.create(disk, folder, controller_id=controller_id)
    identity.journal_created()
    return identity


def _write(disk: Disk, path: str, record: _Record) -> None:
    body = orjson.dumps(asdict(record), option=orjson.OPT_SORT_KEYS)
    write_durably(disk, path, b"%08x %s\n" % (crc32c(body), body))


def _read(disk: Disk, path: str) -> _Record:
    content = read_whole(disk, path)
    checksum, _, body = content.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % crc32c(body):
        raise CorruptLogError(f"{path} fails its checksum", path=path)
    document = orjson.loads(body)
    if document.get("format") != FORMAT_VERSION:
        raise CorruptLogError(f"{path} has the unknown format {document.get('format')}", path=path)
    return _Record(**document)
