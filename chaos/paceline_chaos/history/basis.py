"""Pure: what all entries of a history have, and what most of them speak of."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """How an operation ended for the client that asked."""

    OK = "ok"
    FAIL = "fail"
    """Definitely not done: the effect must never show (S4)."""
    UNKNOWN = "unknown"
    """Done or not, now or later: a lost connection, a timeout, the end of the run."""


class Queue(NamedTuple):
    """One queue of the cluster, as people name it."""

    topic: str
    group: str
    queue: int


class Seen(NamedTuple):
    """One message as somebody saw it at an offset."""

    offset: int
    value: str
    """What the sender called it ("c3-17": client and number), unique in a history."""
    crc: int
    """crc32c of the whole body as it was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all entries of a history have."""

    number: int
    """Place in the history, rising with the time of entry; how violations name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Event):
    """What one client asked and what came of it; entered when it is answered or given up."""

    client: str
    asked_us: int
    answered_us: int
    """For an UNKNOWN one: when the client gave up."""
    outcome: Outcome
    error: str | None = None
    """Code of the error (`PacelineError.code`) if it was not OK."""
    node: str | None = None
    """The node that answered, where the client knows it."""
    access_key: str | None = None
    """What the client has shown to say who it is; "" = nothing, None = nobody has noted it, and
    whether it may is not judged (S31)."""
    source: str = ""
    """Address that the client comes from, where its rights may hang on that."""


class Found(NamedTuple):
    """All that the checkers ask of a row of an answer."""

    group: str
    """Broker group."""
    queue: int
    offset: int
    value: str
    """What its body says that it is called, and crc32c of that body."""
    crc: int
    key: str
    """ "" = none."""
    message_id: str
    unique_key: str
    store_unix_ms: int
