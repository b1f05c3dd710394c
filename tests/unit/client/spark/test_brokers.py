"""The blocking way to brokers: which replica is asked, what is repeated, what is refused."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from tests.support.service.fakes import a_view
from tests.support.spark.brokers import a_batch
from tests.support.spark.stub import Stub, a_stub, fetched, ok, refusal

from paceline.errors import (
    BadRequestError,
    ConfigError,
    NotMasterError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    OverloadedError,
    PeerError,
    UnauthenticatedError,
)
from paceline.net.connect import Credentials
from paceline.queues import QueueName
from paceline.spark.brokers import Brokers, replica_order
from paceline.spark.options import Access
from paceline.spark.pinning import pin
from paceline.types import GroupName, QueueId, TopicName

GROUP = GroupName("g1")


@pytest.fixture
def nodes() -> Iterator[list[Stub]]:
    """Three brokers, the first of them master; all answer the routes."""
    with a_stub() as one, a_stub() as two, a_stub() as three:
        found = [one, two, three]
        view = a_view().to_json()
        for stub, replica in zip(found, view["groups"][0]["replicas"], strict=True):
            replica["client_address"] = stub.address
        for stub in found:
            stub.on["/v1/routes"] = lambda body: ok(view)
        yield found


def brokers_of(nodes: list[Stub], *, timeout_ms: int = 300, number: int = 0) -> Brokers:
    endpoints = tuple(stub.address for stub in nodes)
    return Brokers(Access(endpoints=endpoints, retry_timeout_ms=timeout_ms), number=number)


def test_replicas_come_first_and_the_master_last() -> None:
    group = a_view().groups[GROUP]
    ids = {replica.client_address: key for key, replica in group.replicas.items()}

    assert [ids[address] for address in replica_order(group, 0)] == [2, 3, 1]
    assert [ids[address] for address in replica_order(group, 2)] == [3, 2, 1]


def test_read_goes_on_to_another_replica_when_one_is_gone_or_behind(nodes: list[Stub]) -> None:
    def gone(body: bytes) -> tuple[int, bytes]:
        raise ConnectionError

    nodes[1].on["/v1/fetch"] = gone
    nodes[2].on["/v1/fetch"] = lambda body: fetched()  # nothing there yet
    nodes[0].on["/v1/fetch"] = lambda body: fetched(a_batch(4), a_batch(6))
    with brokers_of(nodes) as brokers:
        found = brokers.fetch(GROUP, 1, 0, 5, bytes_max=1000)

    assert [view.header.base_queue_offset for view in found.views] == [4, 6]


def test_damaged_answer_is_asked_of_another_replica(nodes: list[Stub]) -> None:
    whole = a_batch(0)
    broken = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    nodes[1].on["/v1/fetch"] = lambda body: fetched(broken)
    nodes[2].on["/v1/fetch"] = lambda body: fetched(whole)
    with brokers_of(nodes) as brokers:
        found = brokers.fetch(GROUP, 1, 0, 0, bytes_max=1000)

    assert len(found.views) == 1
    assert [path for path, _ in nodes[2].asked].count("/v1/fetch") == 1


@pytest.mark.parametrize(
    "batch", [a_batch(7), a_batch(0, topic_id=2)], ids=["gap", "another topic"]
)
def test_answer_that_was_not_asked_for_is_never_taken(nodes: list[Stub], batch: bytes) -> None:
    for stub in nodes:
        stub.on["/v1/fetch"] = lambda body: fetched(batch)
    with brokers_of(nodes) as brokers, pytest.raises(PeerError, match="asked was"):
        brokers.fetch(GROUP, 1, 0, 0, bytes_max=1000)


def test_nobody_there_is_said_after_the_time_to_retry() -> None:
    access = Access(endpoints=("127.0.0.1:1",), retry_timeout_ms=50)

    with Brokers(access) as brokers, pytest.raises(PeerError, match="is the cluster up"):
        brokers.view()


def test_retries_can_be_counted_beside_the_time(nodes: list[Stub]) -> None:
    for stub in nodes:
        stub.on["/v1/fetch"] = lambda body: fetched()  # nothing there yet
    endpoints = (nodes[0].address,)
    access = Access(endpoints=endpoints, retry_timeout_ms=3_600_000, num_retries=1)
    with Brokers(access) as brokers, pytest.raises(PeerError, match="numRetries 1"):
        brokers.fetch(GROUP, 1, 0, 0, bytes_max=1000)

    for stub in nodes:
        assert [path for path, _ in stub.asked].count("/v1/fetch") == 2


def test_wrong_credentials_are_said_at_once(nodes: list[Stub]) -> None:
    nodes[0].on["/v1/routes"] = lambda body: refusal(UnauthenticatedError("no such token"))

    with brokers_of(nodes[:1], timeout_ms=60_000) as brokers, pytest.raises(UnauthenticatedError):
        brokers.view()


def test_token_is_sent_from_its_file_and_a_missing_file_is_named(
    nodes: list[Stub], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    endpoints = (nodes[0].address,)
    with Brokers(Access(endpoints=endpoints, token_file=str(path))) as brokers:
        brokers.view()

    assert nodes[0].headers[-1]["Authorization"] == "Bearer secret"
    with pytest.raises(BadRequestError, match="tokenFile"):
        Brokers(Access(endpoints=endpoints, token_file=str(tmp_path / "none")))


def test_an_access_key_is_shown_and_in_plain_text_on_the_own_machine_only(
    nodes: list[Stub],
) -> None:
    key = Credentials(access_key="pk1", secret_key="sk_1")
    with Brokers(Access(endpoints=(nodes[0].address,), credentials=key)) as brokers:
        brokers.view()

    assert nodes[0].headers[-1]["Authorization"] == "Bearer pk1.sk_1"
    elsewhere = Access(endpoints=("192.0.2.1:1",), credentials=key)
    with Brokers(elsewhere) as brokers, pytest.raises(ConfigError, match="nothing was sent"):
        brokers.view()


@pytest.mark.parametrize(("given", "told"), [("shop", ""), (None, "shop")])
def test_names_are_in_the_namespace_that_was_given_or_the_first_view_tells(
    nodes: list[Stub], given: str | None, told: str
) -> None:
    view = orjson.loads(nodes[0].on["/v1/routes"](b"")[1])
    [topic] = [row for row in view["topics"] if row["topic"] == "orders"]
    view["topics"].append({**topic, "topic": "shop%orders", "topic_id": 99})
    for stub in nodes:
        stub.on["/v1/routes"] = lambda body: ok({**view, **({"namespace": told} if told else {})})
        for path in ("/v1/topics/shop%25orders/queues/0/batches", "/v1/pins/shop%25spark-1"):
            stub.on[path] = lambda body: ok({})
    with Brokers(Access(endpoints=(nodes[0].address,), namespace=given)) as brokers:
        assert brokers.view().topics[TopicName("orders")].topic_id == 99
        brokers.store(GROUP, "orders", 0, b"")
        queue = QueueName(TopicName("orders"), GROUP, QueueId(0))
        pin(brokers, "spark-1", {queue: 3}, lease_seconds=60)

    asked = dict(request for stub in nodes for request in stub.asked)
    rows = orjson.loads(asked["/v1/pins/shop%25spark-1"])["queues"]
    assert rows == [{"topic": "shop%orders", "queue": 0, "offset": 3}]
    assert "/v1/topics/shop%25orders/queues/0/batches" in asked


def test_store_follows_the_master_and_repeats_the_same_bytes(nodes: list[Stub]) -> None:
    """R32: an attempt of unknown outcome is repeated, byte for byte, until it is sure."""
    path = "/v1/topics/orders/queues/0/batches"
    answers = iter(
        [
            refusal(NotMasterError("moved", master=None)),
            refusal(OverloadedError("full", retry_after_ms=1)),
            refusal(OutcomeUnknownError("who knows")),
            ok({"duplicate": True, "offset": 4}),
        ]
    )
    nodes[0].on[path] = lambda body: next(answers)
    with brokers_of(nodes, timeout_ms=10_000) as brokers:
        answer = brokers.store(GROUP, "orders", 0, b"the batch")

    assert answer["duplicate"]
    assert [body for asked, body in nodes[0].asked if asked == path] == [b"the batch"] * 4


def test_store_that_is_not_sure_in_time_says_so(nodes: list[Stub]) -> None:
    path = "/v1/topics/orders/queues/0/batches"
    nodes[0].on[path] = lambda body: refusal(OutcomeUnknownError("who knows"))
    with brokers_of(nodes, timeout_ms=100) as brokers, pytest.raises(OutcomeUnknownError):
        brokers.store(GROUP, "orders", 0, b"x")


def test_store_never_repeats_what_is_refused_for_good(nodes: list[Stub]) -> None:
    path = "/v1/topics/orders/queues/0/batches"
    nodes[0].on[path] = lambda body: refusal(OutOfOrderSequenceError("gap", expected=3))
    with brokers_of(nodes, timeout_ms=60_000) as brokers, pytest.raises(OutOfOrderSequenceError):
        brokers.store(GROUP, "orders", 0, b"x")

    assert len([asked for asked, _ in nodes[0].asked if asked == path]) == 1


def test_unreadable_authority_is_named(tmp_path: Path) -> None:
    access = Access(endpoints=("h:1",), is_tls=True, tls_ca=str(tmp_path / "none.pem"))

    with pytest.raises(BadRequestError, match="tlsCa"):
        Brokers(access)
