"""A history is recorded, written, read again the same, and nothing else is taken for one."""

import io
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConflictError, PacelineError
from paceline_chaos.history.basis import Found
from paceline_chaos.history.codec import HistoryFormatError, HistoryWriter, load, save
from paceline_chaos.history.model import (
    ControllerDump,
    Decision,
    Event,
    Find,
    History,
    Lock,
    Outcome,
    Phase,
    Pull,
    Queue,
    ReplicaDump,
    Seen,
    Send,
    StoredBatch,
)
from paceline_chaos.history.recorder import UNFINISHED, Recorder

Q = Queue("orders", "g1", 0)


class Ticks:
    """A clock that goes on by one each time it is read."""

    def __init__(self) -> None:
        self.at_us = 0

    def __call__(self) -> int:
        self.at_us += 1
        return self.at_us


def recorder(sink: Any = None) -> Recorder:
    return Recorder(Ticks(), {"seed": 7}, sink=sink)


def asking(to: Recorder, value: str = "c1-1") -> Any:
    return to.asking(Send, client="c1", topic="orders", key=None, value=value, crc=9)


def sample() -> History:
    made = recorder()
    asking(made).ok(queue=Q, offset=4, epoch=2)
    made.add(
        Pull,
        client="c2",
        asked_us=5,
        outcome=Outcome.OK,
        queue=Q,
        offset=4,
        messages=(Seen(4, "c1-1", 9),),
    )
    made.add(
        Lock,
        client="c2",
        asked_us=6,
        outcome=Outcome.OK,
        consumer_group="shop",
        member="m",
        queue=Q,
        token=(3 << 64) | 17,
    )
    made.add(
        Decision,
        node="c1",
        index=4,
        kind="master_elected",
        members={"group": "g1", "sync_state_set": {2, 1}},
    )
    made.add(Phase, name="heal", broken=("g1-b2",))
    batch = StoredBatch(
        position=0,
        size=96,
        epoch=2,
        kind="NORMAL",
        crc=1,
        queue=Q,
        messages=(("c1-1", 9),),
    )
    made.add(
        ReplicaDump, node="b1", group="g1", replica=1, start=0, confirm=96, end=96, batches=(batch,)
    )
    made.add(ControllerDump, node="c1", index=4, digest="ab")
    row = Found("g1", 0, 4, "c1-1", 9, "k", "g1:0:0", "p:0", 17)
    made.add(
        Find,
        client="c2",
        asked_us=9,
        outcome=Outcome.OK,
        topic="orders",
        by="key",
        wanted="k",
        found=(row,),
    )
    return made.history


def lines(history: History) -> list[bytes]:
    file = io.BytesIO()
    save(history, file)
    return file.getvalue().splitlines(keepends=True)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    history = sample()
    decision = history.entries[3]
    assert isinstance(decision, Decision)

    save(history, tmp_path / "h.jsonl")
    again = load(tmp_path / "h.jsonl")

    assert again.world == history.world
    assert again.entries[:3] == history.entries[:3]
    assert again.entries[4:] == history.entries[4:]
    assert again.entries[3].members["sync_state_set"] == [1, 2]  # type: ignore[union-attr]


def test_entries_are_on_the_disk_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path, {"seed": 7}) as writer:
        made = recorder(sink=writer.write)
        asking(made).ok(queue=Q, offset=0)

        assert load(path).entries == made.history.entries


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.replace(b'"send"', b'"sent"'), "unknown entry 'sent'"),
        (lambda line: line.replace(b'"crc":9', b'"crc":"9"'), "crc: '9' is not of type int"),
        (lambda line: line.replace(b'"crc":9', b'"crc":true'), "crc: True is not of type int"),
        (lambda line: line.replace(b'"crc":9', b'"crx":9'), "unknown member 'crx'"),
        (lambda line: line.replace(b'"crc":9,', b""), "member 'crc' is missing"),
        (lambda line: line.replace(b'"ok"', b'"fine"'), "outcome: 'fine' is not"),
        (lambda line: line.replace(b'"number":0', b'"number":1'), "number 1, expected 0"),
        (lambda line: line.replace(b',"g1",0]', b',"g1"]'), "queue: not enough values"),
        (lambda line: b"[]\n", "not a JSON object"),
        (lambda line: line[:-9] + b"\n", "unexpected control character"),
        (lambda line: line[:-1], "cut short"),
    ],
)
def test_malformed_line_is_named(change: Any, said: str) -> None:
    head, line, *_ = lines(sample())

    with pytest.raises(HistoryFormatError, match=f"line 2: .*({said})"):
        load(io.BytesIO(head + change(line)))


@pytest.mark.parametrize("head", [b"", b"{}\n", b'{"entry":"world","version":9,"world":{}}\n'])
def test_file_without_the_head_of_a_history_is_refused(head: bytes) -> None:
    with pytest.raises(HistoryFormatError, match="line 1"):
        load(io.BytesIO(head))


def test_torn_end_may_be_allowed() -> None:
    whole = b"".join(lines(sample()))

    history = load(io.BytesIO(whole[:-5]), is_torn_end_allowed=True)

    assert len(history.entries) == len(sample().entries) - 1


def test_error_says_whether_it_was_done() -> None:
    made = recorder()
    for error in (ConflictError("no"), PacelineError("bug"), TimeoutError()):
        with pytest.raises(type(error)), asking(made):
            raise error

    outcomes = [(entry.outcome, entry.error) for entry in made.history.entries]  # type: ignore[union-attr]
    assert outcomes == [
        (Outcome.FAIL, "CONFLICT"),
        (Outcome.UNKNOWN, "INTERNAL"),
        (Outcome.UNKNOWN, "TimeoutError"),
    ]


def test_what_happens_in_one_instant_has_an_order() -> None:
    made = Recorder(lambda: 5, {})
    first, second = asking(made, "c1-1"), asking(made, "c1-2")

    second.ok(queue=Q, offset=1)
    first.ok(queue=Q, offset=0)

    times = [(e.asked_us, e.answered_us) for e in made.history.entries]  # type: ignore[union-attr]
    assert times == [(6, 7), (5, 8)]


def test_first_outcome_counts() -> None:
    made = recorder()
    with asking(made) as asked:
        asked.ok(queue=Q, offset=0)
        asked.unknown("late")

    assert [entry.outcome for entry in made.history.entries] == [Outcome.OK]  # type: ignore[union-attr]


def test_operation_of_a_killed_client_is_entered_at_the_end() -> None:
    heard: list[Event] = []
    made = recorder(sink=heard.append)
    asking(made, "c1-1").ok(queue=Q, offset=0)
    asking(made, "c1-2")

    made.close()

    assert [(e.value, e.error) for e in made.history.entries if isinstance(e, Send)] == [
        ("c1-1", None),
        ("c1-2", UNFINISHED),
    ]
    assert heard == made.history.entries
