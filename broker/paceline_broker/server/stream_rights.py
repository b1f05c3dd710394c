"""What one stream may do: decided once for each topic and producer group, until users or rights
change."""

from collections.abc import Iterable

from paceline.errors import PacelineError, UnauthenticatedError
from paceline.platform.ports import Buffer
from paceline.security.access import Asker, Granted
from paceline.security.audit import REFUSALS, Decided, Kind
from paceline.wire.calls.resources import FRAMES
from paceline.wire.rights import on_topic
from paceline.wire.stream import FetchQueue, Operation

_TOPIC_ID = slice(68, 72)
"""In a record batch, little-endian."""


def topic_of_batch(batch: Buffer) -> int:
    """The topic id in a batch's header; anything, of what is no batch."""
    return int.from_bytes(batch[_TOPIC_ID], "little")


class StreamRights:
    """Of one connection, while rights are switched on.

    What was allowed is noted for all connections of its user from its address: when one of that is
    taken away, all of them are closed, and come again.
    """

    def __init__(self, asker: Asker) -> None:
        principal = asker.principal
        if principal.door == "http":
            principal = principal._replace(door="stream")
        self._shared_by = (principal.user, principal.source)
        granted = asker.access.granted.setdefault(self._shared_by, Granted())
        self.asker = asker._replace(granted=granted, principal=principal)
        self._audit = asker.access.audit
        self._sent: set[int] = set()
        self._read: set[int] = set()
        self._transacted: set[str] = set()
        """Producer groups of its half messages."""
        self.samples: dict[int, tuple[Operation, Decided]] = {}
        """Request id -> what the audit tells of it when it is answered."""

    def asker_of(self, request_id: int) -> Asker:
        """Who asks that."""
        principal = self.asker.principal
        named = principal._replace(request_id=f"{principal.request_id}/{request_id}")
        return self.asker._replace(principal=named)

    def check_send(self, batch: Buffer, request_id: int) -> None:
        """Raise unless it may send to the batch's topic. What is no batch, the sender refuses."""
        topic_id = topic_of_batch(batch)
        if topic_id not in self._sent and len(batch) >= _TOPIC_ID.stop:
            self.asker.check_topic(topic_id, *FRAMES[Operation.PRODUCE])
            self._sent.add(topic_id)
        if self._audit.is_sampled():
            self._sample(request_id, Operation.PRODUCE, topic_id)

    def check_producer_group(self, group: str) -> None:
        """As `Asker.check_producer_group`."""
        if group not in self._transacted:
            self.asker.check_producer_group(group)
            self._transacted.add(group)

    def check_read(
        self, queues: Iterable[FetchQueue], request_id: int, operation: Operation
    ) -> None:
        """Raise unless it may read the topics of all these queues."""
        topics = {queue.topic_id for queue in queues}
        new = topics - self._read
        if new:
            self.asker.check_topics(new, *FRAMES[operation])
            self._read |= new
        if topics and self._audit.is_sampled():
            self._sample(request_id, operation, min(topics))

    def _sample(self, request_id: int, operation: Operation, topic_id: int) -> None:
        access, principal = self.asker.access, self.asker.principal
        if not principal.is_node:
            decided = access.decided(principal, (on_topic(*FRAMES[operation]),), lambda _: topic_id)
            self.samples[request_id] = (operation, decided)

    def answered(self, request_id: int, outcome: str = "OK") -> None:
        """Tell the audit, if the request is a sample."""
        sample = self.samples.pop(request_id, None)
        if sample is not None:
            operation, decided = sample
            caller = self.asker.principal.caller(request_id)
            self._audit.tell(Kind.SAMPLE, caller, operation.name.lower(), decided, outcome)

    def failed(self, request_id: int, operation: int, error: PacelineError) -> None:
        """Tell the audit, if it was refused or is a sample."""
        if isinstance(error, REFUSALS):
            caller = self.asker.principal.caller(request_id)
            self._audit.refused(caller, error, Operation(operation).name.lower())
            self.samples.pop(request_id, None)
        elif self.samples:
            self.answered(request_id, error.code)

    def still_holds(self) -> bool:
        """Whether all that it and those it shares this with have done is still allowed: asked when
        users or rights changed."""
        self._sent.clear()
        self._read.clear()
        self._transacted.clear()
        holds, kept = self.asker.still_holds(), self.asker.access.granted
        if not holds and kept.get(self._shared_by) is self.asker.granted:
            del kept[self._shared_by]  # who comes again begins anew
        return holds

    def is_valid(self) -> bool:
        """Whether its key counts, where that is enforced."""
        access = self.asker.access
        try:
            if access.is_enforced:
                access.check_valid(self.asker.principal)
        except UnauthenticatedError:
            return False
        return True
