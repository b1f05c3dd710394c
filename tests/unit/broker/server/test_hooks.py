"""The operator's code in a broker: checks before a put, watchers of requests, at both doors."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.support.http.door import a_batch, a_door
from tests.support.http.stream_client import RawStream
from tests.support.service.fakes import until

from paceline.errors import ConfigError, ForbiddenError
from paceline.platform.ports import Buffer
from paceline.records.decode import BatchView
from paceline.records.header import BatchHeader
from paceline.wire.stream import Operation
from paceline_broker.service.hooks import Hooks, RequestContext, load_hooks
from paceline_broker.service.request_times import register

MESSAGES = "/v1/topics/orders/messages"


def tea_only(header: BatchHeader, batch: Buffer) -> None:
    bodies = [bytes(body) for body in BatchView(batch).bodies()]
    if b"bug" in bodies:
        raise LookupError("a bug of the check")
    if any(body != b"tea" for body in bodies):
        raise ForbiddenError("we store tea only")


class Watcher:
    def __init__(self, *, raises: bool = False) -> None:
        self.began: list[str] = []
        self.ended: list[tuple[str, str, str | None]] = []
        self._raises = raises

    def before_request(self, request: RequestContext) -> None:
        self.began.append(request.operation)
        if self._raises:
            raise LookupError("a bug of the watcher")

    def after_request(self, request: RequestContext) -> None:
        self.ended.append((request.endpoint, request.operation, request.code))
        if self._raises:
            raise LookupError("a bug of the watcher")


async def test_a_check_refuses_batches_at_every_door_and_nothing_of_them_is_stored() -> None:
    hooks = Hooks()
    hooks.before_put(tea_only)
    async with a_door(hooks=hooks) as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.PRODUCE, a_batch(b"tea"))
        assert (await stream.answer())[2] == 0
        end = door.log.end
        stream.ask(2, Operation.PRODUCE, a_batch(b"tea", b"coffee"))
        _, _, status, body = await stream.answer()
        assert (status, b"tea only" in body) == (1, True)
        document = {"messages": [{"body": "tea", "key": "1"}, {"body": "coffee", "key": "2"}]}
        answer = await door.ask("POST", MESSAGES, document)
        assert (answer[0], answer[1]["code"]) == (403, "FORBIDDEN")
        answer = await door.ask("POST", MESSAGES, {"messages": [{"body": "bug"}]})
        assert (answer[0], answer[1]["code"]) == (403, "FORBIDDEN")
        assert "LookupError" not in answer[1]["detail"]
        assert door.log.end == end
        assert (await door.ask("POST", MESSAGES, {"messages": [{"body": "tea"}]}))[0] == 200
        stream.close()

    assert hooks.errors == 1


@pytest.mark.parametrize("raises", [False, True])
async def test_watchers_hear_of_each_request_once_with_its_outcome(raises: bool) -> None:
    hooks, watcher = Hooks(), Watcher(raises=raises)
    hooks.around_requests(watcher)
    async with a_door(hooks=hooks) as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.PRODUCE, a_batch(b"x"))
        assert (await stream.answer())[2] == 0
        stream.ask(2, Operation.PRODUCE, a_batch(b"x", topic_id=99))
        stream.ask(3, Operation.CALL, b"{}")
        await stream.answer()
        await stream.answer()
        assert (await door.ask("GET", "/v1/status"))[0] == 200
        assert (await door.ask("GET", "/v1/topics/nosuch/queues/0/messages?offset=0"))[0] == 404
        stream.ask(4, Operation.CALL, b'{"call": "heartbeat"}')
        await stream.answer()
        stream.close()
        await until(lambda: any("stream" in name for name in watcher.began))

    assert [row for row in watcher.ended if row[0] == "stream"][:1] == [("stream", "PRODUCE", None)]
    assert sorted(row[1:] for row in watcher.ended if row[0] == "stream" and row[2]) == [
        ("CALL", "BAD_REQUEST"),
        ("CALL", "BAD_REQUEST"),
        ("PRODUCE", "TOPIC_NOT_FOUND"),
    ]
    over_http = [row[1:] for row in watcher.ended if row[0] == "http"]
    assert over_http[:2] == [
        ("GET /v1/status", None),
        ("GET /v1/topics/{topic}/queues/{queue}/messages", "TOPIC_NOT_FOUND"),
    ]
    assert len(watcher.began) == len(watcher.ended)
    assert hooks.errors == (2 * len(watcher.began) if raises else 0)


async def test_a_request_whose_connection_is_lost_is_ended_too() -> None:
    hooks, watcher = Hooks(), Watcher()
    hooks.around_requests(watcher)
    async with a_door(hooks=hooks, is_automatic=False) as door:
        stream = await RawStream.open(door.port)
        stream.ask(1, Operation.PRODUCE, a_batch(b"x"))
        await until(lambda: "PRODUCE" in watcher.began)
        stream.close()
        await until(lambda: ("stream", "PRODUCE", "CONNECTION_LOST") in watcher.ended)


async def test_request_times_are_metrics() -> None:
    hooks = Hooks()
    register(hooks)
    async with a_door(hooks=hooks) as door:
        assert (await door.ask("POST", MESSAGES, {"messages": [{"body": "x"}]}))[0] == 200
        async with door.session.get(f"http://127.0.0.1:{door.port}/metrics") as answer:
            text = await answer.text()

    line = next(
        line for line in text.splitlines() if line.startswith("paceline_service_operations_total{")
    )
    assert 'operation="POST /v1/topics/{topic}/messages"' in line
    assert 'code="OK"' in line
    assert "paceline_service_operation_seconds_total{" in text


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module of the operator."""
    made = ModuleType("operators_hooks")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_functions_of_the_configuration_are_called_with_the_hooks(module: ModuleType) -> None:
    module.register = lambda hooks: hooks.before_put(tea_only)  # type: ignore[attr-defined]

    assert load_hooks(["operators_hooks:register"]).put == [tea_only]


@pytest.mark.parametrize(
    "name", ["operators_hooks", "operators_hooks:nosuch", "operators_hooks:fails", "no.such:f", ":"]
)
def test_a_hook_that_cannot_be_used_stops_the_start(module: ModuleType, name: str) -> None:
    def fails(hooks: Hooks) -> None:
        raise LookupError("a bug")

    module.fails = fails  # type: ignore[attr-defined]

    with pytest.raises(ConfigError, match="hooks: "):
        load_hooks([name])
