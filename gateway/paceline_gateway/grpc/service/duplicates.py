"""Sends that a client repeats: the same message id gets the same result.

Clients of some languages repeat a send at once, with the message's id, also while the first one is
under way. What certainly was not stored may be sent again; what is under way, or is stored, is not
sent a second time, as long as it is remembered: the latest so many of each client.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from paceline_gateway.connected_clients import ClientKey
from paceline_gateway.grpc.stubs.messaging_pb2 import SendResultEntry
from paceline_gateway.grpc.stubs.resources_pb2 import Code

REMEMBERED_MAX = 4096
"""Of one client: more than it can have in the air, and some seconds of what went before."""
CLIENTS_MAX = 1024
"""Whose sends are remembered: those that have sent last."""

Outcome: TypeAlias = "asyncio.Future[SendResultEntry]"
_Of = OrderedDict[tuple[str, str], Outcome]


class Duplicates:
    """Owned by the sending of one gateway."""

    def __init__(self) -> None:
        self._clients: OrderedDict[ClientKey, _Of] = OrderedDict()

    def once(
        self, key: ClientKey, topic: str, message_id: str, send: Callable[[], Outcome]
    ) -> Outcome:
        """The outcome of the message, which is sent if it was not."""
        known = self._clients.get(key)
        if known is None:
            known = self._clients[key] = OrderedDict()
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        self._clients.move_to_end(key)
        name = topic, message_id
        outcome = known.get(name)
        if outcome is not None and not _is_to_repeat(outcome):
            return outcome
        outcome = known[name] = send()
        while len(known) > REMEMBERED_MAX:
            known.popitem(last=False)
        return outcome

    def forget(self, key: ClientKey) -> None:
        """A client has gone."""
        self._clients.pop(key, None)


def _is_to_repeat(outcome: Outcome) -> bool:
    """It has failed, or nobody knows: the client decides."""
    if not outcome.done():
        return False
    return outcome.cancelled() or outcome.result().status.code != Code.OK
