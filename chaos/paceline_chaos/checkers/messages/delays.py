"""Pure: delayed messages: S25. That each is stored at most once is S5's, as for every message."""

from collections.abc import Iterator

from paceline.errors import BadRequestError
from paceline_chaos.checkers.evidence.bounds import SECOND_US
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.evidence.recorded import CLOCK_KINDS, role_of
from paceline_chaos.history.model import Deliver, Outcome, Pull, Recall, Send

EARLY_US = 2_000
"""Brokers count in whole ms."""
DELAY_MS_MAX = 3 * 24 * 3600 * 1000
"""The longest delay that brokers take by their default."""
_SKEW_MS = 60_000
"""They take a minute more, as a client's clock may be ahead of theirs."""
LATE_US = 3 * SECOND_US
"""Whoever gets an answer so long after a message was due finds it delivered."""


def delayed_messages_come_once_and_in_time(evidence: Evidence) -> Findings:
    """S25, for each send m with delay d, asked for at t:
    early: whoever saw m was answered at t + d or later (2 ms of rounding; not judged once the clock
    of a broker, or of most controllers, was changed: R29 bounds how far that reaches);
    recalled: if a recall of m was answered with success, nobody has seen m and no truth has it (but
    escaped: an acting master may not have heard of the recall, R36);
    lost: if m was acknowledged and no recall may have hit it, and the same group acknowledged
    something asked for 3 s after t + d or later, m is in its queue in the end; with a negative d,
    a time that was over already, 3 s after t;
    limits: a delay above `DELAY_MS_MAX` and a minute is not acknowledged, one up to it not refused.
    O(n)."""
    found = Findings("S25")
    delayed = {send.value: send for send in evidence.sends if send.delay_ms}
    if not delayed:
        return found
    recalled = {recall.value: recall for recall in evidence.recalls if recall.outcome is Outcome.OK}
    doubtful = {recall.value for recall in evidence.recalls if recall.outcome is not Outcome.FAIL}
    _judge_sightings(evidence, found, delayed, recalled)
    stored = {value for log in evidence.logs.values() for value in log.values}
    _judge_recalled(evidence, found, delayed, recalled)
    _judge_lost(evidence, found, delayed, doubtful, stored)
    _judge_limits(found, delayed)
    return found


def _judge_limits(found: Findings, delayed: dict[str, Send]) -> None:
    for value, send in delayed.items():
        is_too_long = send.delay_ms > DELAY_MS_MAX + _SKEW_MS
        if is_too_long and send.outcome is Outcome.OK:
            found.violate(f"a delay of {send.delay_ms} ms was taken, for {value}", send)
        if send.delay_ms <= DELAY_MS_MAX and send.error == BadRequestError.code:
            found.violate(f"a delay of {send.delay_ms} ms was refused, for {value}", send)


def _judge_recalled(
    evidence: Evidence,
    found: Findings,
    delayed: dict[str, Send],
    recalled: dict[str, Recall],
) -> None:
    stored = {
        value
        for queue, log in evidence.logs.items()
        for offset, value in enumerate(log.values, start=log.start)
        if (queue, offset) not in evidence.escaped
    }
    for value, recall in recalled.items():
        send = delayed.get(value)
        if send is None or send.queue is None or evidence.is_lossy(send.queue.group):
            continue
        found.judged += 1
        found.counters["recalled"] += 1
        if value in stored:
            truth = evidence.truth.get(send.queue.group)
            found.violate(f"{value} was taken back, and is in its queue", send, recall, truth)


def _judge_sightings(
    evidence: Evidence,
    found: Findings,
    delayed: dict[str, Send],
    recalled: dict[str, Recall],
) -> None:
    clocks_changed_us = evidence.clocks_right_until_us("broker", "controller")
    for entry, offset, value in _sightings(evidence):
        send = delayed.get(value)
        if send is None or evidence.is_lossy(entry.queue.group):
            continue
        if value in recalled and (entry.queue, offset) not in evidence.escaped:
            found.violate(f"{value} was taken back, and was read", send, recalled[value], entry)
        if entry.answered_us >= clocks_changed_us:
            found.counters["early_not_judged"] += 1
            continue
        found.judged += 1
        early = _too_early(send, entry)
        if early is not None:
            found.violate(early, send, entry)


def _too_early(send: Send, entry: Pull | Deliver) -> str | None:
    early_us = send.asked_us + 1000 * send.delay_ms - EARLY_US - entry.answered_us
    if early_us <= 0:
        return None
    return (
        f"{send.value} was to be delivered {send.delay_ms} ms after it was sent, and was read "
        f"{early_us // 1000} ms before that"
    )


def first_seen_early(evidence: Evidence) -> list[str]:
    """The first message that was seen too early, whatever the clocks did. For scripts in which the
    brokers must notice each clock that is wrong (R29)."""
    delayed = {send.value: send for send in evidence.sends if send.delay_ms}
    for entry, _, value in _sightings(evidence):
        early = _too_early(delayed[value], entry) if value in delayed else None
        if early is not None:
            return [early]
    return []


def _sightings(evidence: Evidence) -> Iterator[tuple[Pull | Deliver, int, str]]:
    for pull in evidence.pulls:
        for message in pull.messages:
            yield pull, message.offset, message.value
    for deliver in evidence.delivers:
        yield deliver, deliver.message.offset, deliver.message.value


def _judge_lost(
    evidence: Evidence,
    found: Findings,
    delayed: dict[str, Send],
    doubtful: set[str],
    stored: set[str | None],
) -> None:
    """A group that acknowledges has a master, and masters deliver."""
    last_asked: dict[str, Send] = {}
    for send in evidence.sends:
        if send.outcome is Outcome.OK and send.queue is not None and send.is_confirmed:
            before = last_asked.setdefault(send.queue.group, send)
            if send.asked_us > before.asked_us:
                last_asked[send.queue.group] = send
    are_wrong = {role_of(fault.target) for fault in evidence.faults if fault.kind in CLOCK_KINDS}
    for value, send in delayed.items():
        if send.outcome is not Outcome.OK or send.queue is None or value in doubtful:
            continue
        stored_us = send.asked_us + 1000 * max(send.delay_ms, 0)  # at the earliest
        is_kept = (
            evidence.has_truth(send.queue) and evidence.kept_since_us(send.queue.group) <= stored_us
        )
        # A client's clock says only what has passed; it has no say in a delay.
        if (
            are_wrong - (set() if send.delay_ms < 0 else {"client"})
            or not is_kept
            or not evidence.binding(send)
        ):
            continue
        due_us = send.answered_us + 1000 * max(send.delay_ms, 0)
        proof = last_asked[send.queue.group]
        if proof.asked_us < due_us + LATE_US:
            continue
        found.judged += 1
        if value not in stored:
            found.violate(
                f"{value} was acknowledged, was due {(proof.asked_us - due_us) // 1000} ms before "
                f"{proof.value} was sent, and is in no queue in the end",
                send,
                proof,
                evidence.truth[send.queue.group],
            )
