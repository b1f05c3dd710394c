"""Messages that wait, read back from the log when their time has come.

A batch of them is copied, verified and decoded once, however many turns its messages are spread
over: what is derived from it gets a CRC of its own, so a byte that the disk changed must be seen
here (R24), and what is kept is the copy that was verified, not the file: no file that the log has
let go stays on the disk for it (R26). Bytes below confirm never change, so what was read stays
right until the role changes.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from paceline.errors import CorruptLogError
from paceline.records.decode import BatchView
from paceline.records.encode import texts_bytes_max
from paceline.records.header import HEADER_BYTES, BatchHeader, parse_header
from paceline.types import GroupName, PhysicalOffset
from paceline.wire import properties as names
from paceline.wire.message_ids import unique_key
from paceline_broker.ports import LogReader
from paceline_broker.service.fetch.read import HOT_TAIL_BYTES

KEPT_BYTES_MAX = 16 * 1024 * 1024
_BATCH_BYTES = 1024
_RECORD_BYTES = 1024
"""What a decoded batch takes beside its payload, and each of its messages."""


class Waiting(NamedTuple):
    """One message as it was stored."""

    body: memoryview
    key: str | None
    tag: str
    properties: Mapping[str, str]
    born_unix_ms: int

    def size_bytes_max(self) -> int:
        """It takes no more than this in a batch."""
        return len(self.body) + texts_bytes_max(self.properties, self.key or "", self.tag) + 64


class SourceBatch:
    """A verified batch of messages that wait, decoded."""

    def __init__(self, view: BatchView) -> None:
        self.header: BatchHeader = view.header
        self._bodies = view.body_views()
        self._keys = view.keys()
        self._tags = view.tags()
        self._properties = view.properties()
        if not self.header.is_derived:
            for properties in self._properties:  # of a derived batch it is believed
                properties.pop(names.ORIGIN_MESSAGE_ID, None)
        self._born = view.born()
        self.kept_bytes = (
            self.header.payload_raw_bytes + _BATCH_BYTES + self.header.record_count * _RECORD_BYTES
        )

    def message(self, index: int) -> Waiting:
        return Waiting(
            self._bodies[index],
            self._keys[index],
            self._tags[index],
            self._properties[index],
            self._born[index],
        )

    def unique_key(self, index: int, group: GroupName) -> str:
        return unique_key(self.header, index, group)


class Sources:
    """Reads batches below confirm by position. Owned by the event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, SourceBatch] = OrderedDict()
        self._kept_bytes = 0
        self._cold: list[memoryview] = []

    def take_cold(self) -> list[memoryview]:
        """Views that `get` could not give since the last call: reading them waits for the disk."""
        cold, self._cold = self._cold, []
        return cold

    def forget(self) -> None:
        """The role has changed: the log may be another."""
        self._kept.clear()
        self._kept_bytes = 0
        self._cold.clear()

    def get(self, reader: LogReader, position: PhysicalOffset) -> SourceBatch | None:
        """The batch at `position`, all below confirm; None while it is cold (`take_cold`).

        CorruptLogError: it is not what was written, which is reported and mended (R24).
        """
        kept = self._kept.get(position)
        if kept is not None:
            self._kept.move_to_end(position)
            return kept
        copy = self._read(reader, position)
        if copy is None:
            return None
        batch = SourceBatch(BatchView(copy))
        self._kept[position] = batch
        self._kept_bytes += batch.kept_bytes
        while self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.kept_bytes
        return batch

    def _read(self, reader: LogReader, position: PhysicalOffset) -> bytes | None:
        is_deep = position < reader.confirm - HOT_TAIL_BYTES
        head = reader.read(position, HEADER_BYTES)
        if is_deep and reader.is_cold(head):
            self._cold.append(head)
            return None
        try:
            header = parse_header(head)
        except CorruptLogError:
            reader.is_sound(head, position)
            raise
        view = reader.read(position, header.size_bytes)
        if is_deep and reader.is_cold(view):
            self._cold.append(view)
            return None
        copy = bytes(view)
        end = PhysicalOffset(header.end_offset)
        if reader.is_damaged(position, end) or not reader.is_sound(memoryview(copy), position):
            raise CorruptLogError("a message that waits is damaged", offset=position)
        return copy
