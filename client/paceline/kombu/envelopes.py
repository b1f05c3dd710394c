"""kombu's messages as messages of topics: what a broker has to see of them.

The body is the whole message as kombu makes it, in JSON. Beside it are the key, a task's id, so
that `paceline message find --key` finds it; the tag, its routing key, which temporary queues filter
by; and the time, a task's ETA.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from paceline.message import Message

DELAY_MS_MAX = 3 * 24 * 3600 * 1000 - 60_000
"""Within the brokers' `timer_max_delay_sec`, by their clocks too."""
_TAG = re.compile(r"[A-Za-z0-9._@:-]{1,100}")
_KEY_LENGTH_MAX = 200


def due_of(payload: Mapping[str, Any]) -> int | None:
    """When a task is to be run, as unix ms; None: at once, or it says nothing that is a time."""
    eta = (payload.get("headers") or {}).get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None
    if not isinstance(eta, datetime):
        return None
    return int((eta if eta.tzinfo else eta.replace(tzinfo=UTC)).timestamp() * 1000)


def key_of(payload: Mapping[str, Any]) -> str | None:
    """A task's id."""
    found = (payload.get("headers") or {}).get("id")
    return found if isinstance(found, str) and len(found) <= _KEY_LENGTH_MAX else None


def tag_of(routing_key: str) -> str | None:
    """The tag of a message with that routing key; None: it cannot be one."""
    return routing_key if _TAG.fullmatch(routing_key) else None


def sent_later(message: Message, due_unix_ms: int | None, *, now_unix_ms: int) -> Message:
    """The message to be delivered when it is due, or as late as brokers may keep it."""
    if due_unix_ms is None or due_unix_ms <= now_unix_ms:
        return message
    latest = now_unix_ms + DELAY_MS_MAX
    return replace(message, delivery_unix_ms=min(due_unix_ms, latest))


def priority_of(payload: Mapping[str, Any]) -> int:
    """0 to 9; more is more urgent."""
    found = (payload.get("properties") or {}).get("priority")
    return max(0, min(9, found)) if isinstance(found, int) else 0
