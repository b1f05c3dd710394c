"""What a permission is for, taken out: a refused message is nowhere (S4)."""

from typing import Any

from paceline_broker.service.produce.send import Sender
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


class _Nobody:
    """A sink that tells nobody."""

    def produced(self, request_id: int, answer: Any) -> None: ...

    def failed(self, request_id: int, error: Any) -> None: ...


def _refused_is_stored() -> list[Patch]:
    """A master looks for the permission when it answers, and has stored the message by then. The
    producer uses its number again, so that the next message seems to be stored, too (S1)."""
    send_checked = Sender.send_checked

    def store_and_refuse(
        sender: Sender, batch: Any, header: Any, sink: Any, request_id: int
    ) -> None:
        send_checked(sender, batch, header, sink, request_id)
        known = sender._routes.sendable
        here = known.get(header.topic_id)
        if here is None or here.writes or not here.reads:
            return
        known[header.topic_id] = here._replace(writes=here.reads)
        try:
            send_checked(sender, batch, header, _Nobody(), request_id)
        finally:
            known[header.topic_id] = here

    return [(Sender, "send_checked", store_and_refuse)]


PERMITS = (
    Mutant(
        rule="S4-permit",
        meaning="what is refused for want of a permission is stored",
        patches=_refused_is_stored,
        **of_moment("permits", "S4"),
    ),
)
"""Judged by the script of permissions."""
