"""Pins of reads: asked of masters, and never a reason for a read to fail."""

from collections.abc import Iterator

import orjson
import pytest
from tests.support.service.fakes import a_view
from tests.support.spark.offsets import queue
from tests.support.spark.stub import Stub, a_stub, ok, refusal

from paceline.errors import OffsetOutOfRangeError
from paceline.spark.brokers import Brokers
from paceline.spark.options import Access
from paceline.spark.pinning import owner_of, pin, unpin

OWNER = owner_of("read", "x")
PATH = f"/v1/pins/{OWNER}"


@pytest.fixture
def master() -> Iterator[Stub]:
    with a_stub() as stub:
        view = a_view().to_json()
        for replica in view["groups"][0]["replicas"]:
            replica["client_address"] = stub.address
        stub.on["/v1/routes"] = lambda body: ok(view)
        yield stub


def test_pin_names_the_queues_and_where_reading_begins(master: Stub) -> None:
    master.on[PATH] = lambda body: ok({})
    starts = {queue("orders", 1): 7, queue("orders", 0): 5}
    with Brokers(Access(endpoints=(master.address,))) as brokers:
        pin(brokers, OWNER, starts, lease_seconds=60)
        unpin(brokers, OWNER, starts)

    put, delete = [body for path, body in master.asked if path == PATH]
    assert orjson.loads(put) == {
        "lease_ms": 60_000,
        "queues": [
            {"topic": "orders", "queue": 0, "offset": 5},
            {"topic": "orders", "queue": 1, "offset": 7},
        ],
    }
    assert delete == b""


def test_refused_pin_is_logged_and_nothing_more(
    master: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    master.on[PATH] = lambda body: refusal(OffsetOutOfRangeError("deleted"))
    with Brokers(Access(endpoints=(master.address,))) as brokers:
        pin(brokers, OWNER, {queue("orders", 0): 5}, lease_seconds=60)
        unpin(brokers, OWNER, {queue("orders", 0): 5})

    assert [record.message for record in caplog.records] == ["not_pinned"]


def test_owners_are_names_that_pins_take() -> None:
    assert owner_of("export", "/a path/ü").startswith("spark-export-")
    assert len(owner_of("export", "x" * 5000)) < 127
