"""Topics that brokers do not let us read: told to the log once for each change, raised by polls.

Brokers refuse by their view, and ours says when the permission is given back. Either may hear of a
change first: what was refused counts from when both say so until ours says otherwise, so nobody is
told of what is over. Fetching goes on all the time, with a pause (`FetchSession`).
"""

import logging
from collections.abc import Callable

from paceline.errors import NoPermissionError
from paceline.net.cluster import Cluster
from paceline.types import TopicName
from paceline.wire.topics import TopicView

log = logging.getLogger("paceline.client")


def not_readable(topic: TopicView) -> NoPermissionError:
    """What is said of a topic that gives no messages."""
    return NoPermissionError(
        f"topic {topic.topic} gives no messages: its permissions are {topic.perm_letters};"
        f" {_remedy(topic)}",
        topic=topic.topic,
    )


def _remedy(topic: TopicView) -> str:
    letters = "rw" if topic.can_write else "r"
    return f"its operator can change that (paceline topic alter {topic.topic} --perm {letters})"


class UnreadableTopics:
    """Owned by one consumer; `close` when it ends."""

    def __init__(
        self,
        cluster: Cluster,
        reads: Callable[[TopicName], bool],
        *,
        on_refused: Callable[[], None],
    ) -> None:
        """`reads`: whether the consumer wants messages of the topic at present. `on_refused` is
        called when there is something for `raise_fresh`."""
        self._cluster = cluster
        self._reads = reads
        self._on_refused = on_refused
        self._noted: set[TopicName] = set()
        """Refused by a broker, and our view does not say so yet."""
        self._standing: set[TopicName] = set()
        self._fresh: set[TopicName] = set()
        """Those of `_standing` that were refused since it was raised last."""
        self._end_listening = cluster.watch.listen(lambda view: self._on_view())

    def close(self) -> None:
        self._end_listening()

    def note(self, topic: TopicName) -> None:
        """A broker gave no messages of it for want of permission."""
        self._noted.add(topic)
        self._settle()

    def raise_fresh(self) -> None:
        """NoPermissionError if a topic was refused (again) since this raised last."""
        for topic in sorted(self._fresh):
            self._fresh.discard(topic)
            self._raise(topic)

    def raise_standing(self) -> None:
        """NoPermissionError if a topic is not readable: for polls that found nothing."""
        for topic in sorted(self._standing):
            self._fresh.discard(topic)
            self._raise(topic)

    def _raise(self, topic: TopicName) -> None:
        found = self._unreadable(topic)
        if found is not None and self._reads(topic):
            raise not_readable(found)

    def _unreadable(self, topic: TopicName) -> TopicView | None:
        found = self._cluster.topic(topic)
        return None if found is None or found.can_read else found

    def _on_view(self) -> None:
        for topic in sorted(self._standing):
            if self._unreadable(topic) is None:
                self._standing.discard(topic)
                self._fresh.discard(topic)
                log.info("topic_readable_again", extra={"topic": topic})
        self._settle()
        self._noted.clear()  # a broker that was behind or ahead refuses again if it is so

    def _settle(self) -> None:
        for topic in sorted(self._noted):
            found = self._unreadable(topic)
            if found is None:
                continue
            self._noted.discard(topic)
            if topic not in self._standing:
                self._standing.add(topic)
                why = f"its permissions are {found.perm_letters}"
                fields = {"topic": topic, "why": why, "what_to_do": _remedy(found)}
                log.warning("topic_not_readable", extra=fields)
            self._fresh.add(topic)
            self._on_refused()
