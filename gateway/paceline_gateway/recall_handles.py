"""Pure: what a client takes a delayed message back by, and the id that it then expects.

RocketMQ's remoting clients read in a handle which broker they have to ask: it is the base64 of
`v1 TOPIC BROKER_NAME DUE MESSAGE_ID`. Ours has the handle of the cluster in the place of DUE, which
no client reads. The message id is the one that the client was given when it sent the message; the
cluster does not keep it where a recall finds it.
"""

import base64
import binascii
from typing import NamedTuple

from paceline.errors import BadRequestError
from paceline.wire.message_ids import RECALL, parse_handle

_VERSION = "v1"


class Recallable(NamedTuple):
    """What is in a handle."""

    handle: str
    """Of the cluster: `Producer.recall` takes it."""
    message_id: str
    """As its sender knows it; empty: that of the cluster."""


def make_recall_handle(topic: str, handle: str, message_id: str) -> str:
    """The handle for a client, of the cluster's handle. `message_id` may be empty."""
    group = parse_handle(RECALL, handle).group
    text = " ".join((_VERSION, topic, group, handle, message_id))
    return base64.urlsafe_b64encode(text.encode()).decode()


def read_recall_handle(text: str) -> Recallable:
    """What `make_recall_handle` made, or a handle of the cluster. BadRequestError."""
    if "." in text:  # base64 has none
        return Recallable(text, "")
    try:
        plain = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode()
        version, _, _, handle, message_id = plain.split(" ", 4)
        if version != _VERSION:
            raise ValueError(f"its version is {version[:8]}, not {_VERSION}")
    except (ValueError, binascii.Error) as error:
        raise BadRequestError(
            f"this is no recall handle, it was cut or made up: {error}", field="recallHandle"
        ) from error
    return Recallable(handle, message_id)
