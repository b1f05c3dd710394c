"""Pure: what hooks around sending and consuming were told, and what they refuse: S41."""

from collections import Counter, defaultdict
from typing import TypeAlias

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.hooked import (
    AFTER_CONSUME,
    AFTER_SEND,
    BEFORE_CONSUME,
    BEFORE_SEND,
    BEGIN,
    END,
    REFUSED,
    HookCall,
)
from paceline_chaos.history.model import Deliver, Outcome, Pop, Queue, Seen, Send

_AFTER = {BEFORE_SEND: AFTER_SEND, BEFORE_CONSUME: AFTER_CONSUME}
_Call: TypeAlias = tuple[str, int]
_Given: TypeAlias = tuple[str, Queue | None, Seen]


class _Told:
    """What hooks were told, by session and call."""

    def __init__(self, evidence: Evidence) -> None:
        calls = [entry for entry in evidence.entries if isinstance(entry, HookCall)]
        self.names = {call.name for call in calls if call.what == BEGIN}
        self.ended = {call.name for call in calls if call.what == END}
        self.by_word: defaultdict[str, list[HookCall]] = defaultdict(list)
        for call in calls:
            self.by_word[call.what].append(call)

    def of(self, word: str) -> dict[_Call, HookCall]:
        """The first of each call."""
        found: dict[_Call, HookCall] = {}
        for call in self.by_word[word]:
            found.setdefault((call.name, call.call), call)
        return found


def hooks_are_told_of_everything_once(evidence: Evidence) -> Findings:
    """S41, for each producer and member that has hooks:
    (a) each call of a hook after something follows one before it, and comes once; when the session
    has closed, none is missing;
    (b) an acknowledged send is in exactly one batch that hooks were told of as stored, at the place
    that the application was told, between asking and answer; a send that failed is in none;
    (c) each message that was processed or received was told of before, once for each time; and a
    member with a listener, or that polls, was given what the hooks were told of as handed out;
    (d) what a hook of the sender or of a broker refuses is never acknowledged, and is in no log.
    O(n)."""
    found = Findings("S41")
    told = _Told(evidence)
    _calls_are_paired(told, found)
    _sends_are_told(evidence, told, found)
    _handed_is_told(evidence, told, found)
    _refused_is_nowhere(evidence, found)
    return found


def _calls_are_paired(told: _Told, found: Findings) -> None:
    for before_word, after_word in _AFTER.items():
        before = told.of(before_word)
        after = told.of(after_word)
        for word in (before_word, after_word):
            counts = Counter((call.name, call.call) for call in told.by_word[word])
            firsts = before if word == before_word else after
            for key, count in counts.items():
                if count > 1:
                    found.violate(f"{key[0]}: {word} came {count} times of one call", firsts[key])
        for key, call in after.items():
            begun = before.get(key)
            if begun is None or begun.number > call.number:
                found.violate(f"{call.name}: {after_word} without {before_word}", call, begun)
        for key, call in before.items():
            if key not in after and call.name in told.ended:
                found.violate(f"{call.name} closed, and {after_word} never came", call)


def _sends_are_told(evidence: Evidence, told: _Told, found: Findings) -> None:
    before = told.of(BEFORE_SEND)
    stored: defaultdict[tuple[str, str], list[tuple[HookCall, int]]] = defaultdict(list)
    for call in told.by_word[AFTER_SEND]:
        if call.error is None:
            for index, value in enumerate(call.values):
                stored[call.name, value].append((call, index))
    for send in evidence.sends:
        if send.session not in told.names:
            continue
        found.judged += 1
        calls = stored.get((send.session, send.value), [])
        if send.outcome is Outcome.FAIL and calls:
            found.violate(
                f"hooks were told that {send.value} is stored; it failed", send, calls[0][0]
            )
        if send.outcome is not Outcome.OK:
            continue
        if len(calls) != 1:
            told_of = calls[-1][0] if calls else None
            found.violate(
                f"{send.value} was acknowledged; hooks were told {len(calls)} times", send, told_of
            )
            continue
        call, index = calls[0]
        begun = before.get((call.name, call.call))
        if not _is_same_place(send, call, index):
            found.violate(f"hooks were told another place of {send.value}", send, call)
        if call.at_us > send.answered_us or call.at_us < send.asked_us:
            found.violate(f"hooks were not told of {send.value} while it was sent", send, call)
        if begun is not None and send.value in begun.values and begun.at_us < send.asked_us:
            found.violate(f"hooks knew {send.value} before it was sent", send, begun)


def _is_same_place(send: Send, call: HookCall, index: int) -> bool:
    if send.queue != call.queue or send.offset is None or call.offset is None:
        return False
    return send.offset == (call.offset + index if call.offset >= 0 else -1)


def _handed_is_told(evidence: Evidence, told: _Told, found: Findings) -> None:
    begun: defaultdict[_Given, list[HookCall]] = defaultdict(list)
    for call in told.by_word[BEFORE_CONSUME]:
        for message in call.messages:
            begun[call.name, call.queue, message].append(call)
    given: defaultdict[_Given, list[Deliver | Pop]] = defaultdict(list)
    everything: list[Deliver | Pop] = [*evidence.delivers, *evidence.pops]
    for entry in everything:
        if entry.member in told.names:
            given[entry.member, entry.queue, entry.message].append(entry)
    for key, entries in given.items():
        calls = begun.get(key, [])
        entries.sort(key=_given_us)
        for place, entry in enumerate(entries):
            found.judged += 1
            if place >= len(calls) or calls[place].at_us > _given_us(entry):
                found.violate(f"{key[0]} was given {key[2].value}; no hook was told of it", entry)
    pops = {pop.member for pop in evidence.pops}  # the workload does not enter all of these
    after = told.of(AFTER_CONSUME)
    for key, calls in begun.items():
        ends = [after.get((call.name, call.call)) for call in calls]
        handed = [call for call in ends if call is not None and call.error is None]
        if key[0] not in pops and len(handed) > len(given.get(key, [])):
            found.violate(f"hooks were told that {key[0]} has {key[2].value}", *handed)


def _given_us(entry: Deliver | Pop) -> int:
    """A listener has it when it is called; a receiver when its receive ends."""
    return entry.answered_us if isinstance(entry, Pop) else entry.asked_us


def _refused_is_nowhere(evidence: Evidence, found: Findings) -> None:
    refused = {
        send.value: send
        for send in evidence.sends
        if send.properties and REFUSED in send.properties
    }
    found.judged += len(refused)
    for send in refused.values():
        if send.outcome is Outcome.OK:
            found.violate(f"{send.value} was to be refused, and was acknowledged", send)
    if not refused:
        return
    for dump in evidence.all_dumps:
        for batch in dump.batches:
            for value, _ in batch.messages:
                if value in refused:
                    found.violate(
                        f"{value} was to be refused, and is in the log of {dump.node}",
                        refused[value],
                        dump,
                    )
