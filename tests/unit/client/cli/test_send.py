"""`paceline send` and its readers."""

import asyncio
import os
import re
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.client.fake_log import Fault
from tests.unit.client.cli.conftest import Runner

from paceline.cli.send.input import CsvReader, JsonLinesReader, Row, RowReader, TextReader
from paceline.cli.send.source import blocks
from paceline.errors import BadRequestError, CorruptBatchError, TooLargeError
from paceline.records.header import MESSAGE_BYTES_MAX
from paceline.wire.stream import PRODUCE_FLAG_UNCONFIRMED


def stored(paceline: Runner) -> list[bytes]:
    """All bodies of `orders`, by queue."""

    def read() -> list[bytes]:
        cluster = paceline.cluster
        return [body for queue in (0, 1) for body in cluster.bodies(queue=queue)]

    return list(paceline.on_cluster(lambda _: read()))


def test_a_text_is_acknowledged_with_its_place(paceline: Runner) -> None:
    said = paceline("send", "orders", "hello")
    (document,) = paceline.json("send", "orders", "again", "--key", "k", "--tag", "t")

    assert said.exit_code == 0
    assert re.fullmatch(r"sent to orders: group g1, queue [01], offset 0\n", said.stdout)
    assert document.keys() == {
        "topic", "group", "queue", "offset", "epoch", "duplicate", "confirmed",
        "recall_handle", "message_id", "unique_key",
    }  # fmt: skip
    assert document["confirmed"] is True
    assert sorted(stored(paceline)) == [b"again", b"hello"]


def test_what_may_still_be_lost_says_so(paceline: Runner) -> None:
    """R37."""

    def weaken() -> None:
        for log in paceline.cluster.logs.values():
            log.new_flags = PRODUCE_FLAG_UNCONFIRMED

    paceline.on_cluster(lambda _: weaken())

    said = paceline("send", "orders", "hello")
    (document,) = paceline.json("send", "orders", "again")

    assert said.stdout.endswith(", offset 0, not confirmed: a failover may still lose it\n")
    assert document["confirmed"] is False


def test_key_tag_and_properties_arrive(paceline: Runner) -> None:
    arguments = ("--key", "k", "--tag", "t", "--property", "a=1=2", "--property", "b=")
    paceline("send", "orders", "hello", *arguments)

    (message,) = paceline.json("pull", "orders")

    assert (message["key"], message["tag"]) == ("k", "t")
    assert message["properties"] == {"a": "1=2", "b": ""}


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_every_line_of_stdin_is_a_message(paceline: Runner, dash: tuple[str, ...]) -> None:
    outcome = paceline("send", "orders", *dash, "--key", "k", stdin=b"one\r\n\ntwo\xff\nthree")

    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("sent 4, acknowledged 4 in ")
    assert stored(paceline) == [b"one", b"", b"two\xff", b"three"]


def test_csv_rows_become_json_keyed_by_a_column(paceline: Runner, tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text('\ufefftail,note\nN1,"say ""hi"",\nplease"\nNA,\n', encoding="utf-8")

    (summary,) = paceline.json("send", "orders", "--csv", str(file), "--key-column", "tail")
    messages = paceline.json("pull", "orders")

    assert (summary["sent"], summary["acknowledged"], summary["failed"]) == (2, 2, 0)
    bodies = {message["key"]: orjson.loads(message["body"]) for message in messages}
    assert bodies == {
        "N1": {"tail": "N1", "note": 'say "hi",\nplease'},
        "NA": {"tail": "NA", "note": ""},
    }


def test_json_lines_keep_their_bytes_and_order(paceline: Runner) -> None:
    lines = b'{"id":7, "n":1}\n\n {"id":7,"n":2} \n'

    outcome = paceline("send", "orders", "--jsonl", "-", "--key-column", "id", stdin=lines)

    assert outcome.exit_code == 0, outcome.stderr
    assert stored(paceline) == [b'{"id":7, "n":1}', b'{"id":7,"n":2}']


def test_a_wrong_line_stops_the_upload_after_what_came_before(paceline: Runner) -> None:
    outcome = paceline("send", "orders", "--jsonl", "-", "--key", "k", stdin=b"1\n{nope\n3\n")

    assert outcome.exit_code == 2
    assert outcome.stdout.startswith("sent 1, acknowledged 1 in ")
    assert outcome.stderr.startswith("paceline: line 2 is not JSON: ")
    assert stored(paceline) == [b"1"]


def test_a_refused_batch_is_counted_and_reported(paceline: Runner) -> None:
    def refuse(cluster: object) -> None:
        fault = Fault(refuse=CorruptBatchError("no such luck"))
        paceline.cluster.fault = lambda broker, header: fault

    paceline.on_cluster(refuse)
    outcome = paceline("send", "orders", "-", stdin=b"one\ntwo\n")

    assert outcome.exit_code == 2
    assert outcome.stdout.startswith("sent 2, acknowledged 0 in ")
    assert outcome.stderr == "paceline: no such luck\n"


def test_many_lines_pass_in_bounded_memory(
    paceline: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.send.command.UNSETTLED_MESSAGES_MAX", 50)
    monkeypatch.setattr("paceline.cli.send.source.BLOCK_BYTES", 100)
    lines = [b"line %d" % number for number in range(500)]

    outcome = paceline("send", "orders", "--key", "k", stdin=b"\n".join(lines))

    assert outcome.stdout.startswith("sent 500, acknowledged 500 in ")
    assert stored(paceline) == lines


async def test_a_pipe_gives_what_is_written_at_once() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file:
        source = blocks(file)
        async with asyncio.timeout(5):
            os.write(writing, b"one\n")
            first = await anext(source)
            os.write(writing, b"two\n")
            second = await anext(source)
            os.close(writing)
            rest = [block async for block in source]
        assert os.get_blocking(reading)

    assert (first, second, rest) == (b"one\n", b"two\n", [])


def rows(reader: RowReader, *parts: bytes) -> list[Row]:
    found: list[Row] = []
    for part in parts:
        found.extend(reader.feed(part))
    found.extend(reader.finish())
    return found


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)), st.integers(1, 9))
def test_lines_do_not_depend_on_how_blocks_are_cut(lines: list[bytes], size: int) -> None:
    content = b"".join(line + b"\n" for line in lines)
    parts = [content[at : at + size] for at in range(0, len(content), size)]

    found = rows(TextReader(), *parts)

    assert [row.body for row in found] == [line.removesuffix(b"\r") for line in lines]


@given(
    st.lists(st.tuples(*(st.text(max_size=6).filter(lambda text: "\r" not in text),) * 2)),
    st.integers(1, 9),
)
def test_csv_of_any_text_is_read_back(cells: list[tuple[str, str]], size: int) -> None:
    quoted = [[f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row] for row in cells]
    content = "\r\n".join(["a,b", *(",".join(row) for row in quoted)]).encode()
    parts = [content[at : at + size] for at in range(0, len(content), size)]

    found = rows(CsvReader(key_column=None), *parts)

    assert [tuple(orjson.loads(row.body).values()) for row in found] == cells


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty: its first line must name the columns"),
        (b"a,a\n", "column 'a' is there twice"),
        (b"b\n", "there is no column 'a'; the columns are b"),
        (b"a,b\n1\n", "line 2 has 1 fields, the header 2"),
        (b'a,b\n"1,2\n3,4\n', "line 2 begins a quoted field that has no end"),
        (b'a,b\n"1"x,2\n', "line 2 is not CSV"),
        (b"a,b\n\xff,2\n", "line 2 is not UTF-8"),
    ],
)
def test_wrong_csv_is_refused_with_its_line(content: bytes, sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        rows(CsvReader(key_column="a"), content)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"1\n", "line 1 is not an object, so it has no key"),
        (b'{"k":[]}\n', "line 1 has no text or number as 'k'"),
        (b"{}\nNaN\n", "line 2 is not JSON"),
    ],
)
def test_wrong_json_lines_are_refused_with_their_line(content: bytes, sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        rows(JsonLinesReader(key_member="k"), content)


def test_an_endless_line_is_refused_before_it_fills_memory() -> None:
    reader = TextReader()
    block = bytes(1024 * 1024)

    with pytest.raises(TooLargeError, match="line 1 is over 4194304 bytes"):
        rows(reader, *[block] * (MESSAGE_BYTES_MAX // len(block) + 2))
