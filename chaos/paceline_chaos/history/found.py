"""Pure: one message as a query answered it."""

from typing import NamedTuple


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
