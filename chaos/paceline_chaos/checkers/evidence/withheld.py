"""Pure: when a group's masters grant no queue lock, because an acting master may have (R36)."""

from collections.abc import Iterable, Iterator

from paceline_chaos.checkers.evidence.recorded import Recorded

Span = tuple[int, int]
"""From, until: microseconds of the history's clock."""


def withheld_spans(recorded: Recorded, group: str) -> list[Span]:
    """R36: the epoch that opens first after an acting master was allowed to grant locks grants none
    for `withheld_us`, and an epoch that begins meanwhile none for as long again: "meanwhile" is log
    time, which surely is past the end once a message that was sent after it is acknowledged.
    Of an epoch that never opened the start record may be in the log: the next one still waits.
    O(rulings + acknowledgements)."""
    acks = sorted(
        (send.answered_us, send.asked_us)
        for send in recorded.acks
        if send.queue is not None and send.queue.group == group
    )
    spans: list[Span] = []
    is_due, begun_us, until_us = False, None, None
    log_us, taken = 0, 0
    for ruling in recorded.rulings_of(group, "acting_locks_opened", "master_elected", _OPENED):
        while taken < len(acks) and acks[taken][0] <= ruling.at_us:
            log_us = max(log_us, acks[taken][1])
            taken += 1
        if ruling.kind == "acting_locks_opened":
            is_due = True
        elif ruling.kind == "master_elected":
            is_renewed = until_us is not None and log_us < until_us
            if begun_us is None and (is_due or is_renewed):
                begun_us = ruling.at_us
        elif begun_us is not None:
            until_us = ruling.at_us + recorded.bounds.withheld_us
            spans.append((begun_us, until_us))
            is_due, begun_us = False, None
    return spans


def outside(spans: Iterable[Span], start_us: int, end_us: int) -> Iterator[Span]:
    """What is left of a stretch without the spans, in order."""
    at_us = start_us
    for from_us, until_us in sorted(spans):
        if from_us >= end_us:
            break
        if from_us > at_us:
            yield at_us, from_us
        at_us = max(at_us, until_us)
    if at_us < end_us:
        yield at_us, end_us


_OPENED = "epoch_opened"
