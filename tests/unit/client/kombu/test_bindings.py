"""Which queues an exchange's messages go to, by the attributes of topics."""

import pytest

from paceline.kombu.bindings import (
    DIRECT,
    FANOUT,
    TOPIC,
    Binding,
    RoutingTable,
    bindings_of,
    fanouts_of,
    topic_attributes,
)
from paceline.types import GroupName, TopicId, TopicName
from paceline.wire.topics import TopicView


def a_topic(name: str, attributes: dict[str, str]) -> TopicView:
    return TopicView(
        topic=TopicName(name),
        topic_id=TopicId(1),
        queues={GroupName("g1"): 1},
        attributes=attributes,
    )


def a_queue(name: str, *bindings: Binding) -> TopicView:
    bound = dict(binding.attribute for binding in bindings)
    return a_topic(name, {**topic_attributes(queue=name), **bound})


@pytest.mark.parametrize(
    ("pattern", "wanted", "unwanted"),
    [
        ("stock.*.eur", ["stock.a.eur"], ["stock.eur", "stock.a.b.eur", "stock.a.usd"]),
        ("stock.#", ["stock", "stock.a", "stock.a.b"], ["stocks", "x.stock"]),
        ("#", ["", "a", "a.b"], []),
        ("#.eur", ["eur", "a.eur", "a.b.eur"], ["eur.a", "neur"]),
        ("a.b", ["a.b"], ["a", "a.b.c"]),
        ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["a.b", "ac"]),
    ],
)
def test_patterns_of_topic_exchanges_are_amqps(
    pattern: str, wanted: list[str], unwanted: list[str]
) -> None:
    binding = Binding("x", TOPIC, pattern)

    assert [key for key in wanted + unwanted if binding.wants(key)] == wanted


def test_a_direct_binding_wants_its_key_and_fanout_everything() -> None:
    assert [key for key in ("a", "b") if Binding("x", DIRECT, "a").wants(key)] == ["a"]
    assert Binding("x", FANOUT, "a").wants("b")


def test_bindings_are_read_back_from_attributes_and_a_second_time_changes_nothing() -> None:
    one, other = Binding("x", DIRECT, "a"), Binding('y"é', TOPIC, "b.#")
    attributes = dict([one.attribute, other.attribute, one.attribute])

    assert set(bindings_of({**attributes, "owner": "shop"})) == {one, other}
    assert len(attributes) == 2


def test_each_queue_that_wants_a_message_gets_one() -> None:
    table = RoutingTable.of(
        [
            a_queue("both", Binding("x", TOPIC, "a.#"), Binding("x", TOPIC, "#")),
            a_queue("some", Binding("x", TOPIC, "b")),
            a_queue("other", Binding("y", DIRECT, "a.c")),
            a_topic("foreign", {}),
        ]
    )

    assert table.queues("x", "a.c") == ["both"]
    assert table.queues("x", "b") == ["both", "some"]
    assert table.queues("z", "b") == []


def test_queues_of_a_fanout_exchange_have_no_copies_but_read_its_topic() -> None:
    queue = a_queue("news", Binding("x", FANOUT, ""), Binding("y", FANOUT, ""))
    exchange = a_topic("x_.x", topic_attributes(exchange="x"))
    table = RoutingTable.of([queue, exchange])

    assert table.queues("x", "") == []
    assert table.exchanges == {"x"}
    assert fanouts_of(queue.attributes) == ["x_.x", "y_.x"]
