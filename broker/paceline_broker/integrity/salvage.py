"""Discards damaged records of a log, by order of an operator (R9, R16, R24).

The last resort of a broker that is alone with its damage: nobody has the bytes, so nobody mends
them, and a damaged broker does not lead. What is given up was acknowledged, perhaps: so the store
first takes a new store id, durably. To the controllers it is another disk then: it leaves the set,
or, as its last member, is marked lost, and nobody is elected but by an unclean election, which says
in the log, the views and the history for ever what has happened (R21). Should another member turn
up before that, it leads, and this store fetches from it what it gave up here.

A crash between two steps leaves a store that is still damaged and already has its new id: give up
again. Blocking; the data folder is locked, so no broker runs on it.
"""

from dataclasses import asdict, dataclass
from typing import Any

from paceline.errors import ConfigError, CorruptLogError
from paceline.platform.ports import Disk, Random
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.layout import segment_firsts, segment_name
from paceline_broker.storage.checkpoints import CheckpointFolder
from paceline_broker.storage.identity import StoreIdentity

_SEGMENT_BYTES_MIN = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What opening the log of a stopped broker found."""

    group: str
    replica_id: int | None
    start: PhysicalOffset
    end: PhysicalOffset
    """Of what is intact."""
    durable: PhysicalOffset
    """Everything below was on the disk once; [end, durable) is lost, or lies behind the damage."""
    confirm: PhysicalOffset
    """Known as acknowledged when this was written last: a lower bound."""
    damage: str | None
    """What is wrong at `end`; None: the log is whole."""
    has_state: bool
    """Whether the state (offsets, locks, producers) at `end` can be made from what is left."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class StoppedStore:
    """The data folder of a broker that does not run, locked. `close` when done."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        """StorageError: it is in use, or an identity is damaged. ConfigError: no store there.

        As at the start of the broker a torn tail is cut; damage is left as it is.
        """
        self._lock = disk.lock_folder(data_dir)
        self._identity = StoreIdentity(disk, data_dir)
        known = self._identity.load()
        if known is None or not disk.exists(f"{data_dir}/log/checkpoint.json"):
            self._lock.close()
            raise ConfigError(f"{data_dir} holds no store of a broker")
        folder = f"{data_dir}/log"
        self._log, report = CommitLog.open(
            disk, folder, segment_size_bytes=_segment_size(disk, folder)
        )
        self._checkpoints = CheckpointFolder(disk, f"{data_dir}/projections")
        self.state = LogState(
            group=known.group,
            replica_id=known.replica_id,
            start=report.start,
            end=report.end,
            durable=max(report.flushed_mark, report.end),
            confirm=report.confirm_mark,
            damage=None if report.damage is None else report.damage.reason,
            has_state=self._has_state(report.start, report.end),
        )

    def _has_state(self, start: PhysicalOffset, end: PhysicalOffset) -> bool:
        if start == 0:
            return True
        has_epochs = bool(self._log.epochs.entries)
        return has_epochs and self._checkpoints.newest(limit=end, log_start=start) is not None

    def give_up(self, random: Random) -> None:
        """Cut the log where the damage begins; durable on return. See the module.

        CorruptLogError: there is no damage, or nothing to go on from.
        """
        state = self.state
        if state.damage is None:
            raise CorruptLogError("the log is whole: there is nothing to give up")
        if not state.has_state:
            raise CorruptLogError(
                f"the log begins at {state.start} and no projection checkpoint lies between there"
                f" and the damage at {state.end}: nothing of this store can be led from"
            )
        self._identity.replace_store_id(random)  # first, so that nobody takes it for whole (R9)
        self._checkpoints.drop_beyond(state.end)
        self._log.truncate_to(state.end, allow_below_confirm=True)

    def close(self) -> None:
        self._log.close(clean=False)
        self._lock.close()


def _segment_size(disk: Disk, folder: str) -> int:
    """As the files are: segments are made at full size. Only the size of new ones depends on it."""
    sizes = [_SEGMENT_BYTES_MIN]
    for first in segment_firsts(disk.list(folder)):
        file = disk.open(f"{folder}/{segment_name(first)}")
        sizes.append(disk.size(file))
        file.close()
    return max(sizes) // 8 * 8
