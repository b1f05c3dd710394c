"""What topics and namespaces may keep in this broker group, as quotas say.

Counted are the bytes of the batches in consume queues, as they lie in the log. The fold keeps the
sum of each topic (`ConsumeQueues.topic_bytes`), so every replica knows it, and so does a new
master.
Messages that wait for their time or their transaction count once they are delivered, and what
deliveries add is never refused. Of a namespace the topics are summed up every `RECOUNT_MS`, and
what is sent meanwhile is added: what the broker itself delivers or deletes is noticed that late.
"""

from collections.abc import Callable, Mapping

from paceline.errors import StorageQuotaExceededError
from paceline.security.access import Access
from paceline.wire.names import namespace_of
from paceline_broker.projections.consume_queues import ConsumeQueues
from paceline_broker.service.routes import Routes

RECOUNT_MS = 100


class _Limit:
    """Of one subject."""

    __slots__ = ("_bytes", "_counted_ms", "_of", "_topics", "limit_bytes", "subject")

    def __init__(self, subject: str, limit_bytes: int, topics: tuple[int, ...]) -> None:
        self.subject, self.limit_bytes = subject, limit_bytes
        self._topics = topics
        self._of: ConsumeQueues | None = None
        """What was counted: another mastership has others."""
        self._bytes = 0
        self._counted_ms = 0

    def kept(self, queues: ConsumeQueues, now_ms: int) -> int:
        """Bytes that it has here."""
        if len(self._topics) == 1:
            return queues.topic_bytes(self._topics[0])
        if queues is not self._of or now_ms - self._counted_ms >= RECOUNT_MS:
            self._bytes = sum(map(queues.topic_bytes, self._topics))
            self._of, self._counted_ms = queues, now_ms
        return self._bytes

    def add(self, size_bytes: int) -> None:
        """So much is stored now."""
        self._bytes += size_bytes


class StorageQuotas:
    """Of one broker."""

    def __init__(self, routes: Routes, access: Access, now_ms: Callable[[], int]) -> None:
        """`now_ms`: of the monotonic clock."""
        self._routes = routes
        self._access = access
        self._now_ms = now_ms
        self.limits: Mapping[int, tuple[_Limit, ...]] = {}
        """By topic id; the hot path reads it directly."""
        routes.on_change(self._changed)
        access.on_change(self._changed)

    def check(self, topic_id: int, size_bytes: int, queues: ConsumeQueues) -> None:
        """Count a batch that is stored next. StorageQuotaExceededError where it has no room; then
        it is not counted."""
        limits, now_ms = self.limits[topic_id], self._now_ms()
        for limit in limits:
            kept = limit.kept(queues, now_ms)
            if kept + size_bytes > limit.limit_bytes:
                raise StorageQuotaExceededError(
                    f"{limit.subject} has {kept} bytes in broker group {self._routes.group}, and"
                    f" {size_bytes} more would exceed its quota of {limit.limit_bytes}; nothing was"
                    " stored. Wait until old messages are deleted, delete topics, or have a super"
                    " user raise it (paceline quota set)",
                    subject=limit.subject,
                    kind="storage",
                )
        for limit in limits:
            limit.add(size_bytes)

    def _changed(self) -> None:
        sizes = {
            subject: quota.storage_bytes
            for subject, quota in self._access.security.quotas.items()
            if quota.storage_bytes is not None
        }
        found: dict[int, list[_Limit]] = {}
        if sizes:
            topics_of: dict[str, list[int]] = {}
            for topic_id, topic in self._routes.topics_by_id.items():
                for subject in (f"Topic:{topic.topic}", f"Namespace:{namespace_of(topic.topic)}"):
                    if subject in sizes:
                        topics_of.setdefault(subject, []).append(topic_id)
            for subject, topics in topics_of.items():
                limit = _Limit(subject, sizes[subject], tuple(topics))
                for topic_id in topics:
                    found.setdefault(topic_id, []).append(limit)
        self.limits = {topic_id: tuple(limits) for topic_id, limits in found.items()}
