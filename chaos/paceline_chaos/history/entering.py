"""Entries that several harnesses make alike, and a question they all ask of a history."""

from collections.abc import Iterable, Mapping
from typing import Any

from paceline.records.decode import BatchView
from paceline.records.header import Kind
from paceline_chaos.history.model import History, Outcome, Probe, Send
from paceline_chaos.history.recorder import Recorder


def enter_probe(
    recorder: Recorder, node: str, status: Mapping[str, Any], *, asked_us: int | None = None
) -> None:
    """Enter what a broker says of itself (`/v1/status`).

    `asked_us`: when it was asked, if the answer took a while: it was so some time between then and
    now. None: it is so now.
    """
    moment = {} if asked_us is None else {"at_us": asked_us}
    recorder.add(
        Probe,
        **moment,
        node=node,
        group=str(status["group"]),
        replica=status["replica_id"],
        incarnation=status["incarnation"],
        role=status["role"],
        epoch=status["epoch"],
        is_open=status["is_open"],
        start=status["start"],
        end=status["end"],
        flushed=status["flushed"],
        confirm=status["confirm"],
    )


def are_acknowledged(history: History, senders: Iterable[str], *, since_us: int) -> bool:
    """Whether every sender had something acknowledged that it asked for since then."""
    wanted = set(senders)
    for entry in reversed(history.entries):
        if isinstance(entry, Send) and entry.outcome is Outcome.OK:
            if entry.answered_us < since_us:
                return False
            if entry.asked_us >= since_us:
                wanted.discard(entry.client)
        if not wanted:
            return True
    return False


def given_up(view: BatchView) -> int:
    """Below this nothing is kept, as the retention record `view` says; 0 for all else (R26)."""
    if view.header.kind != Kind.RETENTION:
        return 0
    return int(view.document()["log_start"] or 0)
