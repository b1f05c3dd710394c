"""Pure: whether what programs told is what was promised.

Each judge returns complaints, sentences with the values; none is good. Events are the programs' own
(interop/README.md), of any number of them, in the order in which each told them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from interop.jobs import Expected, Job, expected, recalled

Event = Mapping[str, Any]


def of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    """The events of one kind, in their order."""
    return [event for event in events if event["event"] == kind]


def bodies(events: Iterable[Event], kind: str) -> set[str]:
    """The bodies that events of a kind name."""
    return {event["body"] for event in of_kind(events, kind)}


def failures(events: Iterable[Event]) -> list[str]:
    """What the client told its user that did not work."""
    return [
        f"{event['body'] or 'the client'}: {event['error']}" for event in of_kind(events, "failed")
    ]


def lost(sent: Sequence[Event], received: Sequence[Event]) -> list[str]:
    """Acknowledged messages that nobody got."""
    missing = bodies(sent, "sent") - bodies(received, "received")
    return [f"acknowledged and never delivered: {body}" for body in sorted(missing)]


def strangers(job: Job, received: Sequence[Event]) -> list[str]:
    """Deliveries of what nobody sent."""
    unknown = bodies(received, "received") - expected(job).keys()
    return [f"never sent: {body[:80]}" for body in sorted(unknown)]


def duplicates(received: Sequence[Event]) -> dict[str, int]:
    """How often beyond the first time a message came with the same attempt."""
    seen = Counter((event["body"], event["attempt"]) for event in of_kind(received, "received"))
    counts: Counter[str] = Counter()
    for (body, _), count in seen.items():
        counts[body] += count - 1
    return {body: count for body, count in counts.items() if count}


def changed(job: Job, sent: Sequence[Event], received: Sequence[Event]) -> list[str]:
    """Tags, keys, properties, groups and ids that came otherwise than they were sent."""
    wanted = expected(job)
    ids = {event["body"]: event["message_id"] for event in of_kind(sent, "sent")}
    complaints = []
    for event in of_kind(received, "received"):
        message = wanted.get(event["body"])
        if message is None:
            continue
        for what, before, after in _fields(message, event, ids.get(event["body"])):
            if before != after:
                complaints.append(f"{what} of {message.body[:80]} was {before!r}, is {after!r}")
    return complaints


def _fields(
    message: Expected, event: Event, message_id: str | None
) -> Iterable[tuple[str, object, object]]:
    yield "tag", message.tag, event.get("tag") or None
    yield "keys", message.keys, frozenset(event.get("keys") or ())
    told = event.get("properties") or {}
    # A remoting client shows system properties beside the user's.
    yield (
        "properties",
        dict(message.properties),
        {name: told[name] for name in message.properties if name in told},
    )
    if "message_group" in event:
        yield "message group", message.message_group, event["message_group"] or None
    if message_id is not None:
        yield "message id", message_id, event["message_id"]


def out_of_order(job: Job, received: Sequence[Event]) -> list[str]:
    """First deliveries that came before that of an earlier message of the message group.

    A delivery that is repeated says nothing: at least once means that.
    """
    wanted = expected(job)
    last: dict[str | None, int] = {}
    seen: set[str] = set()
    complaints = []
    for event in of_kind(received, "received"):
        message = wanted.get(event["body"])
        if message is None or message.body in seen:
            continue
        seen.add(message.body)
        before = last.get(message.message_group, -1)
        if message.index < before:
            complaints.append(f"{message.message_group}: {message.index} came after {before}")
        last[message.message_group] = max(before, message.index)
    return complaints


def early(sent: Sequence[Event], received: Sequence[Event], *, tolerance_ms: int) -> list[str]:
    """Delayed messages that came before their time."""
    due = {event["body"]: event["due_unix_ms"] for event in of_kind(sent, "sent")}
    complaints = []
    for event in of_kind(received, "received"):
        missing_ms = due.get(event["body"], 0) - event["at_unix_ms"]
        if missing_ms > tolerance_ms:
            complaints.append(f"{event['body']} came {missing_ms} ms too early")
    return complaints


def late(sent: Sequence[Event], received: Sequence[Event], *, tolerance_ms: int) -> list[str]:
    """Delayed messages whose first delivery came long after their time."""
    due = {event["body"]: event["due_unix_ms"] for event in of_kind(sent, "sent")}
    first: dict[str, int] = {}
    for event in of_kind(received, "received"):
        first.setdefault(event["body"], event["at_unix_ms"])
    return [
        f"{body} came {at - due[body]} ms too late"
        for body, at in first.items()
        if body in due and at - due[body] > tolerance_ms
    ]


def recalled_in_vain(job: Job, sent: Sequence[Event], received: Sequence[Event]) -> list[str]:
    """What was recalled and came, or under another id than it was sent, and what should have been
    recalled and was not."""
    told = bodies(sent, "recalled")
    complaints = [f"not recalled: {body}" for body in sorted(recalled(job) - told)]
    came = told & bodies(received, "received")
    complaints += [f"recalled and delivered: {body}" for body in sorted(came)]
    ids = {event["body"]: event["message_id"] for event in of_kind(sent, "sent")}
    return complaints + [
        f"{event['body']} was sent as {ids[event['body']]}, recalled as {event['message_id']}"
        for event in of_kind(sent, "recalled")
        if event["message_id"] != ids[event["body"]]
    ]


def wrong_outcomes(job: Job, sent: Sequence[Event], received: Sequence[Event]) -> list[str]:
    """Transactions: what was committed comes, what was rolled back never does."""
    came = bodies(received, "received")
    stored = bodies(sent, "sent")
    complaints = []
    for message in expected(job).values():
        is_commit = (message.answer or "").removeprefix("check-") == "commit"
        if is_commit and message.body in stored and message.body not in came:
            complaints.append(f"committed and never delivered: {message.body}")
        if not is_commit and message.body in came:
            complaints.append(f"rolled back and delivered: {message.body}")
    return complaints


def unchecked(job: Job, sent: Sequence[Event]) -> list[str]:
    """Transactions without an answer whose producer was never asked."""
    stored = {event["message_id"]: event["body"] for event in of_kind(sent, "sent")}
    asked = {stored.get(event["message_id"]) for event in of_kind(sent, "checked")}
    waiting = {
        message.body
        for message in expected(job).values()
        if (message.answer or "").startswith("check-")
    }
    return [f"never asked about: {body}" for body in sorted(waiting & {*stored.values()} - asked)]


def wrong_attempts(received: Sequence[Event], *, count: int) -> list[str]:
    """Messages whose deliveries are not the attempts 1 to `count`, in this order."""
    attempts: dict[str, list[int]] = defaultdict(list)
    for event in of_kind(received, "received"):
        if event["attempt"] not in attempts[event["body"]]:
            attempts[event["body"]].append(event["attempt"])
    wanted = list(range(1, count + 1))
    return [f"attempts of {body}: {told}" for body, told in attempts.items() if told != wanted]


def unselected(
    job: Job, received: Sequence[Event], select: Callable[[Expected], bool]
) -> list[str]:
    """Messages that a filter should have held back, or let through and did not."""
    wanted = {message.body for message in expected(job).values() if select(message)}
    return differences(wanted, bodies(received, "received"))


def differences(wanted: Collection[str], came: Collection[str]) -> list[str]:
    """What is in one set and not in the other."""
    return [f"did not come: {body}" for body in sorted({*wanted} - {*came})] + [
        f"should not have come: {body}" for body in sorted({*came} - {*wanted})
    ]
