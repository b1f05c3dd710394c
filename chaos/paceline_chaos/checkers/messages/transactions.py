"""Pure: transactions: S24, which is what R34 promises of them."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from paceline.errors import TransactionNotFoundError
from paceline.wire.names import TRANS_CHECK_MAX_TIME_TOPIC
from paceline_chaos.checkers.evidence.bounds import SECOND_US
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import (
    BeginTransaction,
    Deliver,
    EndTransaction,
    Event,
    Outcome,
    Pop,
    Pull,
    ReplicaDump,
)

CHECKED_US = 15 * SECOND_US
"""So long after healing, and after its half, an open transaction has been asked about."""


def transactions_are_atomic(evidence: Evidence) -> Findings:
    """S24: for each message m of a transaction: if m was read, or stands in a queue of any
    replica's log, some commit of m was asked for before (by a producer, or for a check), and no
    rollback of m was answered well; a commit and a rollback of m are never both answered well; if a
    commit was, m is in H, unless its group is lossy or has deleted what it appended then (that it
    is there once is S5's). A half that was stored, and that nobody asked to end, is asked about
    within `CHECKED_US` of healing if clients go on so long, nothing stays broken, and its group was
    seen with an open master since (one that waits for its operator asks nobody); nobody is asked
    more often than the world's `transaction_check_max`, over failovers too; what was given up after
    that does not show, unless its group is lossy. Who asks to end a half that was stored is not
    told that there is none; where messages are deleted, only who asks first, and for one that
    nobody was asked about. Of a half of somebody with an access key L13 says when it is asked
    about. O(n)."""
    found = Findings("S24")
    begun = {begin.value: begin for begin in evidence.begins}
    if not begun:
        return found
    found.judged = len(begun)
    found.counters["transactions.checks"] = len(evidence.checks)
    ends: defaultdict[str, list[EndTransaction]] = defaultdict(list)
    for end in evidence.ends:
        ends[end.value].append(end)
    for value, mine in ends.items():
        _is_ended_one_way(found, value, mine)
    _what_shows_was_committed(evidence, found, begun, ends)
    _what_was_committed_is_there(evidence, found, begun, ends)
    _what_is_open_is_asked_about(evidence, found, begun, ends)
    _what_was_begun_is_known(evidence, found, begun, ends)
    _checks_are_counted(evidence, found)
    return found


def _ok(ends: list[EndTransaction], *, is_commit: bool) -> EndTransaction | None:
    return next(
        (end for end in ends if end.is_commit is is_commit and end.outcome is Outcome.OK), None
    )


def _is_ended_one_way(found: Findings, value: str, ends: list[EndTransaction]) -> None:
    commit, rollback = _ok(ends, is_commit=True), _ok(ends, is_commit=False)
    if commit is not None and rollback is not None:
        found.violate(f"{value} was committed and rolled back", commit, rollback)


def _what_shows_was_committed(
    evidence: Evidence,
    found: Findings,
    begun: dict[str, BeginTransaction],
    ends: dict[str, list[EndTransaction]],
) -> None:
    asked: dict[str, int] = {}
    for value, mine in ends.items():
        times = [end.asked_us for end in mine if end.is_commit and end.outcome is not Outcome.FAIL]
        if times:
            asked[value] = min(times)
    told: set[str] = set()
    for entry, value in _shown(evidence, begun):
        if value in told:
            continue
        limit_us = None if isinstance(entry, ReplicaDump) else entry.answered_us
        asked_us = asked.get(value)
        rollback = _ok(ends.get(value, []), is_commit=False)
        if asked_us is None or (limit_us is not None and asked_us > limit_us):
            told.add(value)
            found.violate(f"{value} shows, and nobody had asked to commit it", begun[value], entry)
        elif rollback is not None:
            told.add(value)
            found.violate(f"{value} shows, and was rolled back", rollback, entry)


def _shown(
    evidence: Evidence, begun: dict[str, BeginTransaction]
) -> Iterator[tuple[Pull | Deliver | Pop | ReplicaDump, str]]:
    """Every sight of a transaction's message in its topic."""
    for pull in evidence.pulls:
        for row in pull.messages:
            if row.value in begun and begun[row.value].topic == pull.queue.topic:
                yield pull, row.value
    for deliver in evidence.delivers:
        value = deliver.message.value
        if value in begun and begun[value].topic == deliver.queue.topic:
            yield deliver, value
    for pop in evidence.pops:
        if pop.message.value in begun and begun[pop.message.value].topic == pop.queue.topic:
            yield pop, pop.message.value
    for dump in evidence.all_dumps:
        for batch in dump.batches:
            if batch.queue is None or evidence.is_lossy(dump.group):
                continue
            for value, _ in batch.messages:
                if value in begun and begun[value].topic == batch.queue.topic:
                    yield dump, value


def _what_was_committed_is_there(
    evidence: Evidence,
    found: Findings,
    begun: dict[str, BeginTransaction],
    ends: dict[str, list[EndTransaction]],
) -> None:
    if not evidence.is_over:
        return
    stored: set[str] = set()
    given_up: set[str] = set()
    for queue, log in evidence.logs.items():
        is_given_up = queue.topic == TRANS_CHECK_MAX_TIME_TOPIC
        if is_given_up and evidence.is_lossy(queue.group):
            continue  # a half that is repeated over an unclean epoch is another one (R21)
        (given_up if is_given_up else stored).update(
            value for value in log.values if value in begun
        )
    found.counters["transactions.checked_out"] = len(given_up)
    for value in given_up & stored:
        found.violate(f"{value} was given up after its checks, and shows", begun[value])
    for value, mine in ends.items():
        commit, begin = _ok(mine, is_commit=True), begun.get(value)
        if commit is None or begin is None or value in stored:
            continue
        group = begin.group or ""
        # A commit that succeeds may be the repetition of one of which nobody heard.
        since_us = min(
            end.asked_us for end in mine if end.is_commit and end.outcome is not Outcome.FAIL
        )
        is_kept = group in evidence.truth and evidence.kept_since_us(group) <= since_us
        if is_kept and not evidence.is_lossy(group):
            proof: list[Event] = [commit, evidence.truth[group]]
            found.violate(f"{value} was committed, and in the end it is not there", *proof)


def _what_was_begun_is_known(
    evidence: Evidence,
    found: Findings,
    begun: dict[str, BeginTransaction],
    ends: dict[str, list[EndTransaction]],
) -> None:
    checked = {check.value for check in evidence.checks}
    for value, mine in ends.items():
        begin = begun.get(value)
        if begin is None or begin.outcome is not Outcome.OK or begin.group not in evidence.truth:
            continue
        if evidence.is_lossy(begin.group):
            continue
        if evidence.allowances.deleted_below(begin.group):  # of the ended ones, too
            mine = [] if value in checked else [min(mine, key=lambda end: end.asked_us)]
        for end in mine:
            if end.error == TransactionNotFoundError.code:
                found.violate(f"{value} was begun, and its end was told there is none", begin, end)


def _checks_are_counted(evidence: Evidence, found: Findings) -> None:
    limit = evidence.world.get("transaction_check_max")
    if limit is None or any(map(evidence.is_lossy, evidence.groups)):
        return
    counts = Counter(check.value for check in evidence.checks)
    for check in evidence.checks:
        if counts[check.value] > int(limit):
            count = counts.pop(check.value)
            found.violate(f"producers were asked {count} times about {check.value}", check)


def _what_is_open_is_asked_about(
    evidence: Evidence,
    found: Findings,
    begun: dict[str, BeginTransaction],
    ends: dict[str, list[EndTransaction]],
) -> None:
    heal, over = evidence.phase("heal"), evidence.phase("over")
    if heal is None or over is None or evidence.broken or evidence.faults_after(heal.at_us):
        return
    checked = {check.value for check in evidence.checks}
    for value, begin in begun.items():
        if begin.outcome is not Outcome.OK or value in ends or value in checked:
            continue
        if begin.access_key is not None and begin.producer_group:
            continue  # its producers may lack the right to be asked (L13)
        if evidence.is_lossy(begin.group or ""):
            continue
        since_us = max(begin.answered_us, heal.at_us)
        if over.at_us - since_us > CHECKED_US and not _was_closed(evidence, begin.group, since_us):
            found.violate(f"nobody was asked what became of {value}", begin, over)


def _was_closed(evidence: Evidence, group: str | None, since_us: int) -> bool:
    """Whether none of the group's nodes was seen as its open master, though they were looked at."""
    seen = [p for p in evidence.probes if p.group == group and p.at_us >= since_us]
    return bool(seen) and not any(probe.role == "master" and probe.is_open for probe in seen)
