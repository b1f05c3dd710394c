"""Pure: the bounds of RocketMQ's protocol, as its proxy has them (5.5)."""

from collections.abc import Mapping

from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.stubs.resources_pb2 import Code

BODY_BYTES_MAX = 4 * 1024 * 1024
PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16 * 1024
MESSAGE_GROUP_LENGTH_MAX = 64
MESSAGES_MAX = 32
"""Of one receive."""
ENTRIES_MAX = 1024
"""Of one request."""
INVISIBLE_MS = 60_000
INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 10_000, 12 * 3600 * 1000
RENEW_MS_MAX = 3 * 3600 * 1000
"""So long a message that its client has not acknowledged stays invisible by itself."""
POLL_MS_MIN, POLL_MS_MAX = 5_000, 20_000
POLL_SLACK_MS = 500
"""Of a call's deadline, for the way back."""
CLIENT_PROPERTIES_MAX = 32
CLIENT_PROPERTY_KEY_MAX, CLIENT_PROPERTY_VALUE_MAX = 64, 256
CLIENT_PROPERTIES_BYTES_MAX = 4 * 1024


def poll_ms(asked_ms: int | None, deadline_ms: int | None) -> int:
    """How long a receive waits: as asked, within the bounds and the call's time; Refused."""
    wait_ms = POLL_MS_MAX if asked_ms is None else asked_ms
    wait_ms = max(POLL_MS_MIN, min(POLL_MS_MAX, wait_ms))
    if deadline_ms is None:
        return wait_ms
    if deadline_ms <= POLL_SLACK_MS:
        raise Refused(
            Code.ILLEGAL_POLLING_TIME,
            f"the call ends in {deadline_ms} ms: give a receive more than {POLL_SLACK_MS} ms",
        )
    return min(wait_ms, deadline_ms - POLL_SLACK_MS)


def check_invisible(invisible_ms: int) -> int:
    """An invisible time that a receive asks for; Refused."""
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise Refused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible duration of {invisible_ms} ms is not from {INVISIBLE_MS_MIN} ms to"
            f" {INVISIBLE_MS_MAX} ms",
        )
    return invisible_ms


def check_changed_invisible(invisible_ms: int) -> int:
    """One that a change asks for: 0 gives the message back; Refused."""
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise Refused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible duration of {invisible_ms} ms is not from 0 to {INVISIBLE_MS_MAX} ms",
        )
    return invisible_ms


def check_user_properties(properties: Mapping[str, str]) -> None:
    """Those of a message; Refused."""
    if len(properties) > PROPERTIES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(properties)} properties are more than {PROPERTIES_MAX}",
        )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties of {size} bytes are over {PROPERTIES_BYTES_MAX}",
        )


def check_client_properties(properties: Mapping[str, str]) -> None:
    """Those of a client's settings; Refused."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if (
        len(properties) > CLIENT_PROPERTIES_MAX
        or size > CLIENT_PROPERTIES_BYTES_MAX
        or any(len(name) > CLIENT_PROPERTY_KEY_MAX for name in properties)
        or any(len(value) > CLIENT_PROPERTY_VALUE_MAX for value in properties.values())
    ):
        raise Refused(
            Code.INVALID_CLIENT_PROPERTIES,
            f"client_properties hold at most {CLIENT_PROPERTIES_MAX} entries with keys of"
            f" {CLIENT_PROPERTY_KEY_MAX} and values of {CLIENT_PROPERTY_VALUE_MAX} characters,"
            f" {CLIENT_PROPERTIES_BYTES_MAX} bytes together",
        )


def check_count(count: int, what: str) -> None:
    """How many entries a request has; Refused."""
    if not count:
        raise Refused(Code.BAD_REQUEST, f"there are no {what} in the request")
    if count > ENTRIES_MAX:
        raise Refused(Code.BAD_REQUEST, f"{count} {what} are more than {ENTRIES_MAX}")
