"""Rules of consumer groups that are moved, that poll, or that keep their offsets (R33, R34)."""

from typing import Any

from paceline.consumer.lite_pull import LitePullConsumer
from paceline.consumer.offsets.local_offsets import LocalOffsets
from paceline.records.header import SOURCE_INDEX_BITS
from paceline_broker.projections import offsets
from paceline_broker.projections.send_backs import SendBacks
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment

_AHEAD = 3


def _generation_unchecked() -> list[Patch]:
    """A commit of the time before a reset counts like any other."""
    decide = offsets._decide

    def decide_without(request: Any, entry: Any, *rest: Any) -> Any:
        return decide(request, entry._replace(generation=None), *rest)

    return [(offsets, "_decide", decide_without)]


def _polled_is_processed() -> list[Patch]:
    """What a poll returned counts as processed before the application has looked at it."""
    take = LitePullConsumer._take

    def take_and_finish(consumer: LitePullConsumer, messages_max: int) -> Any:
        found = take(consumer, messages_max)
        consumer._finish()
        return found

    return [(LitePullConsumer, "_take", take_and_finish)]


def _file_is_ahead() -> list[Patch]:
    """A broadcasting member's file says more than was processed."""
    document = LocalOffsets._document

    def document_ahead(store: LocalOffsets, known: dict[Any, int]) -> dict[str, Any]:
        return document(store, {key: offset + _AHEAD for key, offset in known.items()})

    return [(LocalOffsets, "_document", document_ahead)]


def _resent_anew() -> list[Patch]:
    """Who asks again for a dead letter gets another message of it; send-backs are as ever."""
    made = SendBacks.made

    def made_for(
        state: SendBacks, topic_id: int, source: int, *, group: str, key: int
    ) -> int | None:
        found = made(state, topic_id, source)
        if found is None or found >> SOURCE_INDEX_BITS < state._resets.get((group, key), 0):
            return None
        return found

    return [
        (SendBacks, "made", lambda state, topic_id, source: None),
        (SendBacks, "made_for", made_for),
    ]


def _mutant(rule: str, meaning: str, patches: Any, *caught_by: str) -> Mutant:
    return Mutant(
        rule=rule,
        meaning=meaning,
        patches=patches,
        **of_moment("groups", *caught_by),
    )


GROUPS = (
    _mutant(
        "R33-generation",
        "a commit of before a reset undoes it",
        _generation_unchecked,
        "S21",
        "S22",
    ),
    _mutant("S21-poll", "what was polled counts as processed", _polled_is_processed, "S21"),
    _mutant("S35", "a broadcasting member's file is ahead of it", _file_is_ahead, "S35"),
    _mutant("R34-resend", "a dead letter is resent as often as asked", _resent_anew, "S29"),
)
"""Judged by the script of groups whose masters and members die."""
