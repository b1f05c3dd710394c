"""What must hold, checked from outside: the judge reads logs and what was told to clients.

`truth` is the one byte string that all masters together have confirmed, that is, acknowledged to
clients. The judge knows nothing of sets, votes or connections.
"""

from collections.abc import Sequence

from paceline.errors import CorruptLogError
from paceline.records.decode import BatchView
from paceline.records.header import Kind, parse_header
from paceline.types import Incarnation, MasterEpoch, PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.projections.projections import Projections
from paceline_broker.storage.store import Store

READ_BYTES = 1 << 20


class ViolationError(AssertionError):
    """An invariant does not hold. The sentence begins with the rule: "INV-3: ..."."""

    @property
    def rule(self) -> str:
        return str(self).partition(":")[0]


def content(log: CommitLog, start: int, end: int) -> bytes:
    """The bytes [start, end) of a log; `start` is a batch boundary, `end` need not be one here."""
    pieces: list[bytes] = []
    position = start
    while position < end:
        try:
            piece = log.read_raw(PhysicalOffset(position), READ_BYTES)
        except CorruptLogError as error:
            raise ViolationError(f"INV-3: a log has no batch at {position}: {error}") from error
        if not piece:
            raise ViolationError(f"INV-2: a log that ends at {position} was called whole to {end}")
        pieces.append(bytes(piece))
        position += len(piece)
    return b"".join(pieces)[: end - start]


class Judge:
    """Collects what was shown, and compares."""

    def __init__(self, *, copies_min: int) -> None:
        self._copies_min = copies_min
        self._held: dict[MasterEpoch, dict[str, int]] = {}
        """Up to where each node has told the master of an epoch that it holds the log."""
        self.truth = bytearray()
        self.masters: dict[MasterEpoch, tuple[str, Incarnation]] = {}
        self.epochs: dict[str, MasterEpoch] = {}
        self.begins: dict[MasterEpoch, int] = {}
        """Where each master's log ended when it began: later epochs' bytes come after it."""
        self.shown: dict[MasterEpoch, int] = {}
        """The highest confirm that the master of each epoch has shown."""
        self.reads_count = 0
        self._parsed = 0
        """So far `truth` has been read as batches."""
        self._log_time_ms = 0
        self._queue_ends: dict[tuple[int, int], int] = {}

    def store_replaced(self, node: str) -> None:
        """Its disk was lost: nothing it said before binds it."""
        self.epochs.pop(node, None)

    def acknowledged(self, node: str, epoch: MasterEpoch, position: int) -> None:
        """A replica that may be a member tells its master so, by the position that counts."""
        held = self._held.setdefault(epoch, {})
        held[node] = max(held.get(node, 0), position)

    def adopted(self, node: str, epoch: MasterEpoch) -> None:
        """INV-4: epochs never decrease, over restarts too."""
        before = self.epochs.get(node, MasterEpoch(0))
        if epoch < before:
            raise ViolationError(f"INV-4: {node} fell from epoch {before} to {epoch}")
        self.epochs[node] = epoch

    def became_master(
        self, node: str, epoch: MasterEpoch, incarnation: Incarnation, log: CommitLog
    ) -> None:
        """INV-4: one master in an epoch. INV-12: everything acknowledged is in its log."""
        present = self.masters.setdefault(epoch, (node, incarnation))
        if present != (node, incarnation):
            raise ViolationError(f"INV-4: epoch {epoch} belongs to {present}, not to {node}")
        # A process that was stopped may learn of its election when later masters are at work; what
        # those acknowledged it need not have.
        shown = max((self.shown[other] for other in self.shown if other < epoch), default=0)
        if log.end < shown:
            raise ViolationError(
                f"INV-12: {node} leads epoch {epoch} with a log that ends at {log.end}, "
                f"acknowledged is {shown}"
            )
        self._compare(node, log, 0, shown, "INV-12")
        self.begins[epoch] = log.end

    def master_confirmed(
        self,
        node: str,
        epoch: MasterEpoch,
        log: CommitLog,
        start: int,
        confirm: int,
        *,
        is_open: bool,
    ) -> None:
        """A master acknowledged [start, confirm) to clients.

        One that was stopped and replaced may still do so for what its set had before: all of that
        lies below where a later master began (INV-12).
        """
        for later, begin in self.begins.items():
            if later > epoch and confirm > begin:
                raise ViolationError(f"INV-4: {node} of epoch {epoch} confirms {confirm} > {begin}")
        others = sum(position >= confirm for position in self._held.get(epoch, {}).values())
        if 1 + others < self._copies_min:
            raise ViolationError(
                f"R8: {node} of epoch {epoch} confirms {confirm} with {1 + others} copies, "
                f"{self._copies_min} must hold it"
            )
        known = min(confirm, len(self.truth))
        self._compare(node, log, min(start, known), known, "INV-3")
        if confirm > len(self.truth):
            self.truth += content(log, len(self.truth), confirm)
            self._read_on(node)
        # Before that (R3) confirm may begin lower: a member that cut its log below what was
        # confirmed stays in a set that would be too small without it (R8, R23).
        if is_open:
            self._show(node, epoch, confirm)

    def _read_on(self, node: str) -> None:
        """What was confirmed now: queues have no holes (S6), log time does not fall (R29)."""
        while self._parsed < len(self.truth):
            header = parse_header(self.truth, self._parsed)
            at, self._parsed = self._parsed, self._parsed + header.size_bytes
            if header.store_unix_ms < self._log_time_ms:
                raise ViolationError(
                    f"R29: {node} confirmed {at}, stored at {header.store_unix_ms}, "
                    f"after a batch that was stored at {self._log_time_ms}"
                )
            self._log_time_ms = header.store_unix_ms
            if header.kind == Kind.NORMAL:
                queue = header.topic_id, header.queue_id
                end = self._queue_ends.get(queue, 0)
                if header.base_queue_offset != end:
                    raise ViolationError(
                        f"S6: {node} confirmed {at}, whose first offset in queue {queue} is "
                        f"{header.base_queue_offset}, not {end}"
                    )
                self._queue_ends[queue] = end + header.record_count

    def replica_confirmed(self, node: str, log: CommitLog, start: int, confirm: int) -> None:
        """A replica shows [start, confirm) to readers."""
        if confirm > len(self.truth):
            raise ViolationError(f"INV-8: {node} confirms {confirm} of {len(self.truth)}")
        self._compare(node, log, start, confirm, "INV-3")

    def restarted(self, node: str, store: Store) -> None:
        """What a store remembers as confirmed is still there, and its projections say the same."""
        log = store.log
        if log.report.damage is not None:
            raise ViolationError(f"R23: {node} found damage after a crash: {log.report.damage}")
        self.replica_confirmed(node, log, 0, log.confirm)
        if store.checkpointed and store.checkpointed % 3 == 0:  # each fold costs a whole log
            self.same_state(node, store)

    def same_state(self, node: str, store: Store) -> None:
        """INV-9: a checkpoint and the log after it give what all that was confirmed gives, with
        what no log reaches back to any more (R14)."""
        whole, truth = Projections(), bytes(self.truth)
        try:
            while whole.position < store.projections.position:
                batch = BatchView(truth, whole.position)
                whole.apply(batch.header, batch)
        except CorruptLogError as error:
            raise ViolationError(f"INV-9: the log of {node} is not folded: {error}") from error
        if whole.snapshot() != store.projections.snapshot():
            raise ViolationError(
                f"INV-9: {node} began from its checkpoint at {store.checkpointed} and stands at "
                f"{whole.position} in another state than its log gives"
            )

    def appended(self, node: str, *, unconfirmed: int, limit: int, can_accept: bool) -> None:
        """What is decided before a request is appended; as it stood before (R8, R27)."""
        if not can_accept:
            raise ViolationError(f"R8: {node} appended while too few members acknowledged")
        if unconfirmed > limit:
            raise ViolationError(f"R27: {node} appended with {unconfirmed} bytes unconfirmed")

    def opened(self, node: str, epoch: MasterEpoch, confirm: int) -> None:
        """From here on a master answers (R3)."""
        self._show(node, epoch, confirm)

    def _show(self, node: str, epoch: MasterEpoch, confirm: int) -> None:
        """INV-2: clients see confirm rise; they drop answers of older epochs (DESIGN 5)."""
        for other, shown in self.shown.items():
            if other <= epoch and shown > confirm:
                raise ViolationError(
                    f"INV-2: {node} of epoch {epoch} shows {confirm}, epoch {other} showed {shown}"
                )
        self.shown[epoch] = confirm

    def stopped(self, node: str, reason: str) -> None:
        """A replica asks for the operator; nothing that this bed does may need one (R5, R16)."""
        raise ViolationError(f"R16: {node} stops for the operator: {reason}")

    def read_answered(self, node: str, *, asked_at: int, confirm: int) -> None:
        """An answer knows everything that was acknowledged before its question (R4)."""
        self.reads_count += 1
        if confirm < asked_at:
            raise ViolationError(
                f"R4: {node} answered from {confirm}, {asked_at} was acknowledged before"
            )

    def given_up(self, logs: Sequence[CommitLog]) -> None:
        """R8: copies were lost, and still a log holds everything acknowledged, for the operator."""
        end = len(self.truth)
        if not any(
            log.end >= end and content(log, log.start, end) == self.truth[log.start :]
            for log in logs
        ):
            raise ViolationError(f"R8: no log holds all {end} acknowledged bytes")

    def _compare(self, node: str, log: CommitLog, start: int, end: int, rule: str) -> None:
        start = max(start, log.start)  # what a confirmed record gave up is gone: S28 sees to that
        if end > start and content(log, start, end) != self.truth[start:end]:
            raise ViolationError(f"{rule}: the log of {node} differs in [{start}, {end})")
