"""What is said of a message that a client sends again and again, and of its transaction."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from paceline.errors import OutcomeUnknownError, PacelineError
from paceline.wire.message_ids import RECALL, parse_handle
from paceline_chaos.cluster_sim.bodies import crc_of, value_of
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.history.model import BeginTransaction, CheckTransaction, EndTransaction, Send
from paceline_chaos.history.recorder import Asking
from paceline_gateway.recall_handles import read_recall_handle

ATTEMPTS = 3


@dataclass(slots=True, eq=False)
class Attempted:
    """One message on its way."""

    asking: Asking[Send]
    value: str
    delay_ms: int
    is_maybe: bool = False
    """An attempt may have stored it."""

    def failed(self, error: PacelineError) -> None:
        """The last attempt has failed."""
        if self.is_maybe:
            error = OutcomeUnknownError(error.message)
        self.asking.raised(error)


def recall_group(handle: str) -> str:
    """The broker group that has a delayed message, as a client's recall handle says."""
    return parse_handle(RECALL, read_recall_handle(handle).handle).group


def value_for(name: str, number: int) -> str:
    """What a program calls a message."""
    return f"{name}-{number}".replace("/", "-")


def beginning(
    around: Around, value: str, body: bytes, *, producer_group: str
) -> Asking[BeginTransaction]:
    """The entry of a half that is about to be sent."""
    return around.recorder.asking(
        BeginTransaction,
        client=around.client,
        topic=around.topic,
        value=value,
        crc=crc_of(body),
        producer_group=producer_group,
    )


async def end(
    around: Around, value: str, ask: Callable[[], Awaitable[PacelineError | None]]
) -> None:
    """End a transaction, until somebody has said what became of it. `ask`: one attempt; why it has
    failed."""
    with around.recorder.asking(
        EndTransaction, client=around.client, value=value, is_commit=is_committed(value)
    ) as asking:
        is_maybe = False
        for _ in range(ATTEMPTS):
            failed = await ask()
            if failed is None:
                asking.ok()
                return
            is_maybe |= not failed.is_definite
            if failed.is_definite:
                break
        assert failed is not None
        if is_maybe:
            asking.unknown(OutcomeUnknownError.code)
        else:
            asking.raised(failed)


def asked_about(around: Around, body: Any) -> str:
    """Somebody is asked about a transaction; what its message is called."""
    value = value_of(bytes(body))
    with around.recorder.asking(CheckTransaction, client=around.client, value=value) as asked:
        asked.ok()
    return value


def is_committed(value: str) -> bool:
    """What a transaction has come to, as the application's database says it: whoever is asked
    about it says the same."""
    return crc_of(value.encode()) % 4 != 0
