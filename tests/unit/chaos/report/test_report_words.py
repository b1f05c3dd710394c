"""Entries as sentences."""

from typing import Any

import pytest

from paceline_chaos.history.hooked import AFTER_SEND, HookCall
from paceline_chaos.history.model import (
    Commit,
    ControllerDump,
    CreateTopic,
    Decision,
    Deliver,
    DescribeTopic,
    Entry,
    FaultEvent,
    Lock,
    Outcome,
    Phase,
    Probe,
    Pull,
    QueryOffset,
    QueryRange,
    Queue,
    ReplicaDump,
    Seen,
    Send,
    Stall,
    Unlock,
)
from paceline_chaos.report.words import actor, moment_us, sentence

QUEUE = Queue("orders", "g1", 0)
BY: dict[str, Any] = {
    "number": 1,
    "client": "client-1",
    "asked_us": 1,
    "answered_us": 2,
    "outcome": Outcome.OK,
}
GROUP: dict[str, Any] = {"consumer_group": "readers", "queue": QUEUE}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            Send(**BY, topic="orders", key="k", value="c-1", crc=1, queue=QUEUE, offset=4, epoch=2),
            "sent c-1 to orders, key k: acknowledged orders g1/0 @ 4 in epoch 2",
        ),
        (
            Send(
                **{**BY, "outcome": Outcome.UNKNOWN},
                topic="orders",
                key=None,
                value="c-1",
                crc=1,
                error="PEER",
            ),
            "sent c-1 to orders: outcome unknown (PEER)",
        ),
        (
            HookCall(
                number=1,
                at_us=2,
                client="client-1",
                name="s-1",
                what=AFTER_SEND,
                call=3,
                values=("a", "b"),
                queue=QUEUE,
                offset=4,
            ),
            "hooks of s-1: after_send 3 of [a, b] in orders g1/0 @ 4",
        ),
        (
            Pull(**BY, queue=QUEUE, offset=3, messages=(Seen(3, "c-1", 1),), start=0, end=9),
            "pulled from orders g1/0 @ 3: c-1 @ 3 [0, 9)",
        ),
        (
            Deliver(**BY, **GROUP, member="m", message=Seen(3, "c-1", 1), token=5),
            "readers/m was handed c-1 @ 3 of orders g1/0 under token 5: done",
        ),
        (
            Commit(**BY, **GROUP, member="m", offset=4),
            "readers committed orders g1/0 @ 4: done",
        ),
        (
            QueryOffset(**BY, **GROUP, offset=4, maybe_stale=True),
            "asked what readers has committed in orders g1/0: 4 (maybe stale)",
        ),
        (QueryRange(**BY, queue=QUEUE, start=0, end=9), "the range of orders g1/0: [0, 9)"),
        (Lock(**BY, **GROUP, member="m", token=7, lease_ms=100), "token 7 for 100 ms"),
        (Unlock(**BY, **GROUP, member="m", token=7), "gave back the lock 7 of orders g1/0"),
        (CreateTopic(**BY, topic="t", queues={}, topic_id=3), "created topic t: id 3"),
        (DescribeTopic(**BY, topic="t"), "looked up topic t: none"),
        (
            Probe(
                number=1,
                at_us=5,
                node="g1-b1",
                group="g1",
                replica=1,
                incarnation=3,
                role="master",
                epoch=2,
                is_open=True,
                start=0,
                end=2000,
                flushed=10,
                confirm=5,
            ),
            "master in epoch 2, open, start 3; log [0, 2,000), flushed 10, confirm 5",
        ),
        (
            Decision(
                number=1, at_us=5, node="c1", index=9, kind="set_changed", members={"group": "g1"}
            ),
            "applied set_changed at index 9: group g1",
        ),
        (
            FaultEvent(number=1, at_us=5, kind="kill", target="c1", is_begin=False),
            "kill ends",
        ),
        (Stall(number=1, at_us=5, for_us=70_000), "stood still for 70 ms"),
        (Phase(number=1, at_us=5, name="heal", broken=("c1",)), "phase heal, c1 stay broken"),
        (
            ReplicaDump(
                number=1,
                node="g1-b1",
                group="g1",
                replica=1,
                start=0,
                confirm=5,
                end=9,
                batches=(),
                damage="bad crc",
            ),
            "log at the end: [0, 9), confirm 5, 0 batches, damaged: bad crc",
        ),
        (
            ControllerDump(number=1, node="c1", index=4, digest="ab", replayed_digest="cd"),
            "index 4, digest ab, replayed cd",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_entry_is_a_sentence(entry: Entry, expected: str) -> None:
    assert expected in sentence(entry)
    assert isinstance(actor(entry), str)
    assert (moment_us(entry) is None) == isinstance(entry, ReplicaDump | ControllerDump)
