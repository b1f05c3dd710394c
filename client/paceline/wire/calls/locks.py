"""Pure: calls about queue locks (R33)."""

from typing import Annotated

from msgspec import Meta

from paceline.wire.calls.offsets import QueueOf
from paceline.wire.calls.request import (
    QUEUES_MAX,
    Answer,
    ClientId,
    LockToken,
    Request,
    Route,
    Text,
)
from paceline.wire.rights import SUB, on_group, on_topic

LEASE_MS_ASKED_MAX = 24 * 3600 * 1000
"""What is granted is at most the broker's `lock_lease_ms`, and the answer says how much."""


class LockRow(QueueOf, kw_only=True):
    """A queue to lock; with the token of a lock that is held, to go on with it."""

    token: LockToken | None = None


class LockedRow(Answer, kw_only=True):
    """A lock, as it is now."""

    topic_id: int
    queue: int
    code: str | None
    """null: held by this client. LOCK_HELD names the other holder; LOCK_FENCED: the token is not
    the present one."""
    token: Annotated[list[int], Meta(min_length=2, max_length=2)] | None
    """Only of one's own: with it one could commit in another's name."""
    holder: str | None
    expires_unix_ms: int | None


class Locked(Answer, kw_only=True, omit_defaults=True):
    """In the order asked."""

    queues: list[LockedRow]
    lease_ms: int | None = None
    """Granted."""


class Lock(Request[Locked], kw_only=True):
    """Lock queues for a client of a group.

    `code` of a row: null, this client holds the lock; LOCK_HELD, `holder` has it; LOCK_FENCED, the
    token is not the present one. A token is [epoch, position] and compares as a pair. A lock that
    is asked for with its token is renewed, without it it is a new grant. An epoch start renews
    every lease once (R33)."""

    routes = (Route("POST", "/v1/groups/{group}/locks"),)
    needs = (on_group(SUB), on_topic(SUB, field="queues"))
    group: Text
    client_id: ClientId
    queues: Annotated[list[LockRow], Meta(min_length=1, max_length=QUEUES_MAX)]
    lease_ms: Annotated[int, Meta(ge=1000, le=LEASE_MS_ASKED_MAX)] | None = None


class Unlock(Request[Locked], kw_only=True):
    """Give locks back."""

    routes = (Route("POST", "/v1/groups/{group}/unlock"),)
    needs = (on_group(SUB),)
    group: Text
    client_id: ClientId
    queues: Annotated[list[LockRow], Meta(min_length=1, max_length=QUEUES_MAX)]
