"""Pure: what hooks of an application were told (S41)."""

from dataclasses import dataclass

from paceline_chaos.history.basis import Event, Queue, Seen

BEGIN, END = "begin", "end"
BEFORE_SEND, AFTER_SEND = "before_send", "after_send"
BEFORE_CONSUME, AFTER_CONSUME = "before_consume", "after_consume"
REFUSED = "refused"
"""The property of messages that a hook refuses: one of the sender, or one of the brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall(Event):
    """A hook was called; or a producer or member that has hooks begins, or has closed."""

    at_us: int
    client: str
    name: str
    """Of the producer (`Send.session`) or member."""
    what: str
    """One of the words above."""
    call: int = 0
    """Which before and after belong together, in this session."""
    values: tuple[str, ...] = ()
    """Of the messages of a batch."""
    messages: tuple[Seen, ...] = ()
    """Those that are handed to the member."""
    queue: Queue | None = None
    offset: int | None = None
    """Of the first message that was stored; -1: a duplicate of unknown place."""
    error: str | None = None
    """Why the batch failed, or the listener."""
