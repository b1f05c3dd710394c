"""The judge of clients' programs: a history that deserves each complaint, and one that does not."""

import pytest
from interop.jobs import Job, expected, recalled
from interop.judge import Event

from interop import judge

JOB = Job(
    scenario="send",
    topic="orders",
    count=4,
    tags=["a", ""],
    groups=["one", "two"],
    keys=1,
    properties={"color": "red"},
)


def sent(*indexes: int, **fields: object) -> list[Event]:
    return [
        {"event": "sent", "body": f"m-{index}", "message_id": f"id-{index}", **fields}
        for index in indexes
    ]


def came(*indexes: int, **fields: object) -> list[Event]:
    """Deliveries as they should be, but for the fields that are named."""
    return [
        {
            "event": "received",
            "body": f"m-{index}",
            "message_id": f"id-{index}",
            "tag": "a" if index % 2 == 0 else None,
            "keys": [f"m-{index}-k0"],
            "properties": {"color": "red", "index": str(index)},
            "attempt": 1,
            "message_group": ["one", "two"][index % 2],
            "at_unix_ms": 10_000,
            **fields,
        }
        for index in indexes
    ]


def test_a_job_says_which_messages_its_sender_sends() -> None:
    job = Job(scenario="send-transaction", topic="t", count=3, answers=["commit", "rollback"])

    assert list(expected(job)) == ["m-0:commit", "m-1:rollback", "m-2:commit"]
    assert recalled(Job(scenario="send-recall", topic="t", count=4)) == {"m-1", "m-3"}
    assert list(expected(Job(scenario="send", topic="t", count=1, body_size=6))) == ["m-0..."]


def test_what_was_acknowledged_and_never_came_is_lost() -> None:
    assert judge.lost(sent(0, 1), came(1, 0, 0)) == []
    assert judge.lost(sent(0, 1), came(1)) == ["acknowledged and never delivered: m-0"]


def test_what_nobody_sent_is_a_stranger() -> None:
    assert judge.strangers(JOB, came(0, 3)) == []
    assert judge.strangers(JOB, came(4)) == ["never sent: m-4"]


def test_deliveries_of_one_attempt_beyond_the_first_are_counted() -> None:
    assert judge.duplicates(came(0, 1) + came(0, attempt=2)) == {}
    assert judge.duplicates(came(0, 0, 0, 1)) == {"m-0": 2}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tag", "b"),
        ("keys", []),
        ("properties", {"index": "0"}),
        ("message_group", None),
        ("message_id", "other"),
    ],
)
def test_what_came_otherwise_than_it_was_sent_is_told(field: str, value: object) -> None:
    assert judge.changed(JOB, sent(0), came(0)) == []

    (complaint,) = judge.changed(JOB, sent(0), came(0, **{field: value}))

    assert complaint.startswith(field.replace("_", " "))


def test_order_counts_within_a_message_group_and_for_first_deliveries() -> None:
    assert judge.out_of_order(JOB, came(1, 0, 2, 3, 0)) == []
    assert judge.out_of_order(JOB, came(2, 1, 0, 3)) == ["one: 0 came after 2"]


def test_a_delayed_message_has_its_time() -> None:
    due = sent(0, due_unix_ms=10_500)

    assert judge.early(due, came(0), tolerance_ms=500) == []
    assert judge.early(due, came(0), tolerance_ms=400) == ["m-0 came 500 ms too early"]
    assert judge.late(due, came(0, at_unix_ms=11_000), tolerance_ms=500) == []
    assert judge.late(due, came(0, at_unix_ms=11_001), tolerance_ms=500) == [
        "m-0 came 501 ms too late"
    ]


def test_a_recall_is_told_and_holds() -> None:
    told: list[Event] = [
        *sent(0, 1, 2, 3),
        *({"event": "recalled", "body": f"m-{n}", "message_id": f"id-{n}"} for n in (1, 3)),
    ]
    other = [*told[:-1], {**told[-1], "message_id": "ours"}]

    assert judge.recalled_in_vain(JOB, told, came(0, 2)) == []
    assert judge.recalled_in_vain(JOB, told[:-1], came(0, 2)) == ["not recalled: m-3"]
    assert judge.recalled_in_vain(JOB, told, came(0, 1)) == ["recalled and delivered: m-1"]
    assert judge.recalled_in_vain(JOB, other, came(0, 2)) == [
        "m-3 was sent as id-3, recalled as ours"
    ]


TRANSACTIONS = Job(
    scenario="send-transaction",
    topic="t",
    count=4,
    answers=["commit", "rollback", "check-commit", "check-rollback"],
)
HALF: list[Event] = [
    {"event": "sent", "body": body, "message_id": f"id-{index}"}
    for index, body in enumerate(expected(TRANSACTIONS))
]


def delivered(*told: str) -> list[Event]:
    return [{"event": "received", "body": body, "attempt": 1} for body in told]


def test_a_transaction_comes_if_and_only_if_it_was_committed() -> None:
    good = delivered("m-0:commit", "m-2:check-commit")
    wrong = [*good, *delivered("m-3:check-rollback")]

    assert judge.wrong_outcomes(TRANSACTIONS, HALF, good) == []
    assert judge.wrong_outcomes(TRANSACTIONS, HALF, good[:1]) == [
        "committed and never delivered: m-2:check-commit"
    ]
    assert judge.wrong_outcomes(TRANSACTIONS, HALF, wrong) == [
        "rolled back and delivered: m-3:check-rollback"
    ]


def test_a_transaction_without_an_answer_is_asked_about() -> None:
    asked: list[Event] = [
        {"event": "checked", "message_id": f"id-{index}", "answer": "commit"} for index in (2, 3)
    ]

    assert judge.unchecked(TRANSACTIONS, HALF + asked) == []
    assert judge.unchecked(TRANSACTIONS, HALF + asked[:1]) == [
        "never asked about: m-3:check-rollback"
    ]


def test_attempts_are_counted_from_1() -> None:
    first, second, third = (came(0, attempt=attempt) for attempt in (1, 2, 3))

    assert judge.wrong_attempts(first + second + second, count=2) == []
    assert judge.wrong_attempts(first + third, count=2) == ["attempts of m-0: [1, 3]"]
    assert judge.wrong_attempts(first, count=2) == ["attempts of m-0: [1]"]


def test_a_clients_failures_are_told_with_their_message() -> None:
    events: list[Event] = [
        {"event": "failed", "body": "m-0", "error": "no route"},
        {"event": "failed", "body": "", "error": "no start"},
    ]

    assert judge.failures(events) == ["m-0: no route", "the client: no start"]
