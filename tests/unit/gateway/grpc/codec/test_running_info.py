"""What consumers tell of themselves."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import BadRequestError, PeerError
from paceline_gateway.grpc.codec.running_info import known_info, read_running_info
from paceline_gateway.grpc.stubs.resources_pb2 import FilterType
from paceline_gateway.remoting.codec.frames import json_with_texts_for_keys


def test_objects_that_are_keys_become_texts() -> None:
    text = (
        b'{"a":[{"x":1},{"y":"}{,{"}],"m":{{"q":1,"s":"{\\"}"}:{"v":[1,{"w":2}]},'
        b' {"q":2} : 3},"n":{7:{"z":0}}}'
    )

    assert json_with_texts_for_keys(text) == {
        "a": [{"x": 1}, {"y": "}{,{"}],
        "m": {'{"q":1,"s":"{\\"}"}': {"v": [1, {"w": 2}]}, '{"q":2}': 3},
        "n": {"7": {"z": 0}},
    }


@given(st.binary() | st.text('{}[],:"\\1 ').map(str.encode))
def test_any_bytes_are_json_or_refused(content: bytes) -> None:
    with contextlib.suppress(BadRequestError):
        json_with_texts_for_keys(content)


@given(st.binary() | st.text('{}[],:"\\1 ').map(str.encode))
def test_any_answer_is_read_or_the_clients_fault(content: bytes) -> None:
    with contextlib.suppress(PeerError):
        read_running_info(content)


@pytest.mark.timeout(30)
def test_what_has_very_many_objects_is_refused_at_once() -> None:
    for endless in (b"{" * 4_000_000, b'{"' + b'\\"' * 2_000_000):
        with pytest.raises(PeerError, match="cannot be read"):
            read_running_info(endless)


@pytest.mark.parametrize(
    "wrong",
    [
        b"[]",
        b'{"mqTable":{"x":{}}}',
        b'{"mqTable":{{"topic":"t","brokerName":"b","queueId":4294967296}:{}}}',
        b'{"mqTable":{{"topic":"t","brokerName":"b","queueId":1}:{"commitOffset":1e99}}}',
        b'{"statusTable":{"t":{"pullRT":"fast"}}}',
    ],
)
def test_an_answer_that_is_none_is_the_clients_fault(wrong: bytes) -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        read_running_info(wrong)


def test_an_answer_may_say_little() -> None:
    info, stacks = read_running_info(b'{"properties":{"PROP_THREADPOOL_CORE_SIZE":20}}')

    assert dict(info.properties) == {"PROP_THREADPOOL_CORE_SIZE": "20"}
    assert stacks == ""


def test_a_consumer_is_described_by_what_brokers_know_of_it() -> None:
    row = {
        "version": "5.2.0",
        "since_unix_ms": 1_700_000_000_000,
        "topics": ["all", "some", "sql"],
        "filters": {"some": "a || b", "sql": "SQL92: x > 1"},
        "mode": "ordered",
    }

    info = known_info(row, is_ordered=False)

    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["PROP_CONSUMER_START_TIMESTAMP"] == "1700000000000"
    wanted = {topic: (each.type, each.expression) for topic, each in info.subscriptions.items()}
    assert wanted["all"] == (FilterType.TAG, "*")
    assert wanted["some"] == (FilterType.TAG, "a || b")
    assert wanted["sql"] == (FilterType.SQL, "x > 1")
