"""Rules of messages that are sent back (R34), taken out; judged by the seeds of the world (S29)."""

from typing import Any

from paceline.consumer.process.failure import SendBacker
from paceline_broker.projections.send_backs import SendBacks
from paceline_broker.service.retry.send_back import SendBack
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _always_anew() -> list[Patch]:
    """Whoever asks again gets another retry."""
    return [(SendBacks, "made_for", lambda state, topic_id, source, **lane: None)]


def _resets_not_saved() -> list[Patch]:
    """A checkpoint does not say which queues were reset."""
    restore = SendBacks.restore

    def without(snapshot: memoryview, resets: list[list[Any]]) -> SendBacks:
        return restore(snapshot, [])

    return [(SendBacks, "restore", staticmethod(without))]


def _resets_unnoted() -> list[Patch]:
    """A reset allows nothing anew."""
    return [(SendBacks, "note_reset", lambda state, *of: None)]


def _dies_one_attempt_early() -> list[Patch]:
    """The last attempt is never made."""
    new = SendBack._new

    def new_early(
        service: Any, request: Any, row: Any, topics: Any, source: Any, *rest: Any
    ) -> Any:
        times, now = rest
        early = times + 1 if request.max_reconsume_times == times + 1 else times
        return new(service, request, row, topics, source, early, now)

    return [(SendBack, "_new", new_early)]


def _answered_before_it_is_asked() -> list[Patch]:
    """A consumer takes its message for sent back, whatever the broker says."""
    from paceline.consumer.process.failure import SentBack

    def at_once(backer: Any, key: Any, message: Any, done: Any, **how: Any) -> None:
        done(SentBack("retry", 1))

    return [(SendBacker, "send_back", at_once)]


RETRIES: tuple[Mutant, ...] = (
    Mutant(
        rule="R28-reset",
        meaning="after a reset a message cannot be sent back again",
        patches=_resets_unnoted,
        **of_moment("sent-back-again"),
    ),
    Mutant(
        rule="R14-reset",
        meaning="a checkpoint forgets that a reset allows to send back again",
        patches=_resets_not_saved,
        **of_moment("sent-back-again"),
    ),
    Mutant(
        rule="R34-send-back",
        meaning="a message that is sent back again is retried twice",
        caught_by=frozenset({"S29"}),
        patches=_always_anew,
        bed="world",
    ),
    Mutant(
        rule="S29-attempts",
        meaning="a message dies one attempt before its last",
        caught_by=frozenset({"S29"}),
        patches=_dies_one_attempt_early,
        bed="world",
    ),
    Mutant(
        rule="S21-send-back",
        meaning="a message counts as sent back before the broker has it",
        caught_by=frozenset({"S21"}),
        patches=_answered_before_it_is_asked,
        bed="world",
    ),
)
"""Judged by the seeds of the world."""
