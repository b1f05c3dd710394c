"""Sends that a client repeats: the same message id gets the same result.

Clients of some languages repeat a send at once, with the message's id, also while the first one is
under way. What certainly was not stored may be sent again; what is under way, or is stored, is not
sent a second time, as long as it is remembered: all that is under way, and the latest of the rest.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from paceline_gateway.connected_clients import ClientKey
from paceline_gateway.grpc.stubs.messaging_pb2 import SendResultEntry
from paceline_gateway.grpc.stubs.resources_pb2 import Code

REMEMBERED_MAX = 4096
"""Of one client: more than it can have in the air, and some seconds of what went before."""
REMEMBERED_OF_ALL_MAX = 128 * 1024
"""Of all clients: 170 MB. Beyond, those that have sent nothing for longest are forgotten first."""


class Outcome:
    """What becomes of one message, for the send and its repetitions."""

    __slots__ = ("_on_settled", "entry")

    def __init__(self, entry: SendResultEntry | None = None) -> None:
        self.entry = entry
        """None: it is under way."""
        self._on_settled: list[Callable[[], None]] = []

    def result(self) -> SendResultEntry:
        """Of one that is settled."""
        assert self.entry is not None
        return self.entry

    def settle(self, entry: SendResultEntry) -> None:
        """Its end; a second one changes nothing."""
        if self.entry is None:
            self.entry = entry
            for call in self._on_settled:
                call()
            self._on_settled.clear()

    @staticmethod
    def all_settled(outcomes: Sequence["Outcome"]) -> "asyncio.Future[None]":
        """Done when all of them are. One future for a batch: one for each message costs as much as
        sending it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = [outcome for outcome in outcomes if outcome.entry is None]
        count = len(left)

        def one_settled() -> None:
            nonlocal count
            count -= 1
            if not count and not done.done():
                done.set_result(None)

        for outcome in left:
            outcome._on_settled.append(one_settled)
        if not left:
            done.set_result(None)
        return done


_Of: TypeAlias = "OrderedDict[tuple[str, str, int], Outcome]"
"""By topic, message id and hash of the body."""
_NONE: _Of = OrderedDict()
_OK = Code.OK  # the enum looks a name up in Python, each time


class Duplicates:
    """Owned by the sending of one gateway."""

    def __init__(self) -> None:
        self._clients: OrderedDict[ClientKey, _Of] = OrderedDict()
        self._count = 0

    def once(
        self, key: ClientKey, topic: str, message_id: str, body: bytes, send: Callable[[], Outcome]
    ) -> Outcome:
        """The outcome of the message, which is sent if it was not. Another body is another message,
        whatever its id is: a client that uses an id twice loses nothing."""
        known = self._clients.get(key, _NONE)
        name = topic, message_id, hash(body)
        outcome = known.get(name)
        if outcome is not None and not _is_to_repeat(outcome):
            return outcome
        sent = send()
        known = self._clients.setdefault(key, OrderedDict())
        self._clients.move_to_end(key)
        known[name] = sent
        if outcome is None:
            self._count += 1
            if len(known) > REMEMBERED_MAX:
                self._forget_one(key, known)
            if self._count > REMEMBERED_OF_ALL_MAX:
                self._make_room()
        return sent

    def forget(self, key: ClientKey) -> None:
        """A client has gone."""
        self._count -= len(self._clients.pop(key, _NONE))

    def _make_room(self) -> None:
        for _ in range(len(self._clients)):
            key, known = next(iter(self._clients.items()))
            if self._forget_one(key, known):
                return
            self._clients.move_to_end(key)

    def _forget_one(self, key: ClientKey, known: _Of) -> bool:
        """The oldest one of a client that is not under way; False: all are."""
        for _ in range(len(known)):
            name, outcome = next(iter(known.items()))
            if outcome.entry is not None:
                del known[name]
                self._count -= 1
                if not known:
                    del self._clients[key]
                return True
            known.move_to_end(name)
        return False


def _is_to_repeat(outcome: Outcome) -> bool:
    """It has failed, or nobody knows: the client decides."""
    return outcome.entry is not None and outcome.entry.status.code != _OK
