"""Pins of Spark's reads: while one runs, retention keeps what it will read (R26).

A pin is a lease: who dies lets go by itself. It is a courtesy, never a condition: a read that could
not be pinned still fails loudly if what it reads is deleted, so a failure here is logged.
"""

import logging
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import quote

from paceline.errors import PacelineError
from paceline.queues import QueueName
from paceline.spark.brokers import Brokers

log = logging.getLogger("paceline.spark")


def owner_of(kind: str, text: str) -> str:
    """A pin's owner that people can tell apart: what reads, and a name of it."""
    return f"spark-{kind}-{sha256(text.encode()).hexdigest()[:16]}"


def pin(
    brokers: Brokers, owner: str, starts: Mapping[QueueName, int], *, lease_seconds: int
) -> None:
    """Keep everything from `starts` on, at the masters of all groups; again to renew or move it."""
    for group in sorted({queue.group for queue in starts}):
        rows = [
            {
                "topic": brokers.namespace.full_topic(queue.topic),
                "queue": queue.queue_id,
                "offset": offset,
            }
            for queue, offset in sorted(starts.items())
            if queue.group == group
        ]
        document = {"lease_ms": lease_seconds * 1000, "queues": rows}
        try:
            brokers.put(group, _path(brokers, owner), document)
        except PacelineError as error:
            log.warning("not_pinned", extra={"group": group, "reason": error.message})


def _path(brokers: Brokers, owner: str) -> str:
    return f"/v1/pins/{quote(brokers.namespace.full_group(owner), safe='')}"


def unpin(brokers: Brokers, owner: str, queues: Mapping[QueueName, int]) -> None:
    """Let go; the lease would end by itself."""
    for group in sorted({queue.group for queue in queues}):
        try:
            brokers.put(group, _path(brokers, owner), None)
        except PacelineError as error:
            log.info("pin_left_to_its_lease", extra={"group": group, "reason": error.message})
