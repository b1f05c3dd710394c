"""Names of a client that is in a namespace: what it sends, and what it is shown."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.client.views import view_changes

from paceline.errors import BadNameError
from paceline.types import ConsumerGroupName, TopicId, TopicName
from paceline.wire.calls import groups, messages, offsets, pop
from paceline.wire.calls.request import Request
from paceline.wire.calls.table import CALLS
from paceline.wire.cluster import ClusterView
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.controller_calls.table import CALLS as CONTROLLER_CALLS
from paceline.wire.controller_calls.topics import CreateTopic, ListTopics, RemapQueue
from paceline.wire.names import AUDIT_TOPIC, SYSTEM_TOPICS, check_readable_topic_name
from paceline.wire.namespaces import Namespace, TopicNames
from paceline.wire.topics import TopicView

SHOP = Namespace("shop")

names = st.from_regex(r"[ab_-]([ab._-]{0,4}[ab_-])?|RETRY|DLQ", fullmatch=True)
spaces = st.from_regex(r"[ab_-]([ab._-]{0,4}[ab_-])?", fullmatch=True)
full_names = st.one_of(names, st.builds("{}%{}".format, spaces, names))
full_topics = st.one_of(
    full_names,
    st.builds("{}{}".format, st.sampled_from(["%RETRY%", "%DLQ%"]), full_names),
    st.sampled_from(SYSTEM_TOPICS),
)


@given(spaces, full_topics)
def test_a_topic_that_is_shown_means_the_same_topic(space: str, full: str) -> None:
    namespace = Namespace(space)

    assert namespace.full_topic(namespace.own_topic(full)) == full


@given(spaces, names, names)
def test_a_name_of_a_program_is_in_its_namespace(space: str, topic: str, group: str) -> None:
    namespace = Namespace(space)

    for own in (topic, f"%RETRY%{group}", f"%DLQ%{group}"):
        full = namespace.full_topic(own)
        assert check_readable_topic_name(full) == full
        assert namespace.own_topic(full) == own
        assert namespace.full_topic(full) == full
    assert namespace.own_group(namespace.full_group(group)) == group


@given(spaces, spaces, full_topics, full_topics)
def test_no_name_of_one_namespace_is_one_of_another(
    one: str, other: str, name: str, another: str
) -> None:
    mine, others = Namespace(one).full_topic(name), Namespace(other).full_topic(another)

    is_given_full = "%" in name or "%" in another or {name, another} & set(SYSTEM_TOPICS)
    if one != other and not is_given_full:
        assert mine != others


@pytest.mark.parametrize(
    ("own", "full"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("%DLQ%paceline.delay", "%DLQ%paceline.delay"),
        ("paceline_REPLY_TOPIC", "paceline_REPLY_TOPIC"),
        ("TRANS_CHECK_MAX_TIME_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
        ("farm%orders", "farm%orders"),
        ("%RETRY%farm%g", "%RETRY%farm%g"),
        ("%orders", "orders"),
        ("%RETRY%%g", "%RETRY%g"),
        ("paceline.delay", "shop%paceline.delay"),
    ],
)
def test_topics_have_full_names_and_own_ones(own: str, full: str) -> None:
    assert SHOP.full_topic(own) == full
    assert SHOP.own_topic(full) == own
    assert Namespace().full_topic(full) == Namespace().own_topic(full) == full


def test_groups_have_full_names_and_own_ones() -> None:
    assert SHOP.full_group("TBW102") == "shop%TBW102"
    assert SHOP.own_group("shop%TBW102") == "TBW102"
    assert SHOP.full_group("paceline.delay") == "paceline.delay", "the system's"
    assert SHOP.own_group("g1") == "g1", "a broker group is called so"
    with pytest.raises(BadNameError):
        Namespace("a%b")


FULL_HEARTBEAT = groups.Heartbeat(
    group="shop%g",
    client_id="c",
    topics=["shop%a", "%RETRY%shop%g", "farm%b"],
    owned=[(1, "g1", 0)],
    generation=0,
    filters={"shop%a": "TagA"},
)
FULL_OFFSETS = [
    offsets.CommitRow(topic="shop%a", queue=0, offset=1),
    offsets.CommitRow(topic_id=7, queue=0, offset=1),
]


@pytest.mark.parametrize(
    ("own", "full"),
    [
        (
            msgspec.structs.replace(
                FULL_HEARTBEAT, group="g", topics=["a", "%RETRY%g", "farm%b"], filters={"a": "TagA"}
            ),
            FULL_HEARTBEAT,
        ),
        (
            offsets.Commit(
                group="g",
                offsets=[offsets.CommitRow(topic="a", queue=0, offset=1), FULL_OFFSETS[1]],
            ),
            offsets.Commit(group="shop%g", offsets=FULL_OFFSETS),
        ),
        (
            offsets.CloneOffsets(group="g", source="h", topic="a"),
            offsets.CloneOffsets(group="shop%g", source="shop%h", topic="shop%a"),
        ),
        (
            pop.Receive(
                group="g", client_id="c", topics=["a", pop.FilteredTopic(topic="b", expression="x")]
            ),
            pop.Receive(
                group="shop%g",
                client_id="c",
                topics=["shop%a", pop.FilteredTopic(topic="shop%b", expression="x")],
            ),
        ),
        (messages.Delays(topic=None), messages.Delays(topic=None)),
        (
            RemapQueue(topic="a", logical_queue=0, group="g1"),
            RemapQueue(topic="shop%a", logical_queue=0, group="g1"),
        ),
        (
            CreateTopic(topic="a", queues={"g1": 1}),
            CreateTopic(topic="shop%a", queues={"g1": 1}),
        ),
    ],
)
def test_requests_go_out_with_full_names(own: Request[Any], full: Request[Any]) -> None:
    assert SHOP.request(own) == full
    assert SHOP.request(full) == full
    assert Namespace().request(own) is own


NAMED = ("topic", "topics", "filters", "group", "groups", "source", "owner", "consumer_group")
OF_BROKERS = {
    ("create_topic", "groups"),
    ("alter_topic", "groups"),
    ("remap_queue", "group"),
}
"""Fields with broker groups, of requests that also name topics."""


def named_fields(calls: Iterable[type[Request[Any]]]) -> Iterable[tuple[type[Request[Any]], str]]:
    for call in calls:
        for field in msgspec.structs.fields(call):
            if field.encode_name in NAMED and (call.call_name(), field.encode_name) not in (
                OF_BROKERS
            ):
                yield call, field.encode_name


@pytest.mark.parametrize(("call", "field"), list(named_fields(CALLS.values())))
def test_each_field_of_a_call_that_has_names_is_wrapped(
    call: type[Request[Any]], field: str
) -> None:
    assert field in {need.field for need in (*(call.needs or ()), *call.also_names)}


def test_each_topic_of_a_controllers_request_is_wrapped() -> None:
    """`group` is a broker group there, but where the right is on a consumer group."""
    for call, field in named_fields(CONTROLLER_CALLS.values()):
        if field.startswith("topic"):
            assert field in {need.field for need in (*(call.needs or ()), *call.also_names)}, call


def test_answers_come_in_with_own_names() -> None:
    answer = {
        "topic": "shop%a",
        "group": "shop%g",
        "members": [{"topics": ["shop%a", "b", "farm%c"], "filters": {"shop%a": "topic"}}],
        "message": {"topic": "%DLQ%shop%g", "group": "g1", "properties": {"topic": "shop%a"}},
        "rows": [{"topic": {"topic": "shop%a", "attributes": {"group": "shop%g"}}}],
        "inconsistent_topics": ["shop%a"],
        "version": 3,
    }

    assert SHOP.answer(FULL_HEARTBEAT, answer) == {
        "topic": "a",
        "group": "g",
        "members": [{"topics": ["a", "%b", "farm%c"], "filters": {"a": "topic"}}],
        "message": {"topic": "%DLQ%g", "group": "g1", "properties": {"topic": "shop%a"}},
        "rows": [{"topic": {"topic": "a", "attributes": {"group": "shop%g"}}}],
        "inconsistent_topics": ["a"],
        "version": 3,
    }
    assert Namespace().answer(FULL_HEARTBEAT, answer) is answer


def test_lists_have_what_is_in_the_namespace() -> None:
    rows = [{"topic": name} for name in ("a", "farm%a", "shop%a", "%RETRY%shop%g", "%RETRY%g")]

    found = SHOP.answer(ListTopics(), {"version": 1, "topics": rows})

    assert found == {"version": 1, "topics": [{"topic": "a"}, {"topic": "%RETRY%g"}]}


def a_topic(name: str, topic_id: int) -> TopicView:
    return TopicView(topic=TopicName(name), topic_id=TopicId(topic_id), queues={}, write_queues={})


def test_a_view_lists_the_namespace_and_finds_the_others_by_their_full_names() -> None:
    topics = ["a", "shop%a", "farm%a", "%RETRY%g", "%RETRY%shop%g", "paceline_REPLY_TOPIC"]
    view = ClusterView(
        cluster_id="c",
        version=1,
        topics={TopicName(name): a_topic(name, number) for number, name in enumerate(topics, 1)},
        consumer_groups={
            ConsumerGroupName(name): ConsumerGroupView(group=ConsumerGroupName(name))
            for name in ("g", "shop%g", "farm%g")
        },
    )

    seen = SHOP.view(view)

    assert sorted(seen.topics) == ["%RETRY%g", "a", "paceline_REPLY_TOPIC"]
    assert [seen.topics[TopicName(name)].topic_id for name in ("a", "%RETRY%g")] == [2, 5]
    assert list(seen.consumer_groups) == ["g"]
    farm, mine = TopicName("farm%a"), TopicName("shop%a")
    assert farm in seen.topics
    assert (seen.topics[farm].topic_id, seen.topics[mine].topic) == (3, mine)
    found = seen.topics.get(farm)
    assert found is not None
    assert found.topic == farm
    assert seen.topics.get(TopicName("b")) is None
    assert TopicName("b") not in seen.topics
    with pytest.raises(KeyError):
        seen.topics[TopicName("b")]
    assert TopicNames().of(seen) == {
        2: "a", 3: "farm%a", 5: "%RETRY%g", 6: "paceline_REPLY_TOPIC"
    }  # fmt: skip
    assert Namespace().view(view) is view
    assert TopicNames().of(view)[TopicId(1)] == "a"


NAMES = ["a", "b", "shop%a", "shop%b", "farm%a", "%RETRY%shop%g", AUDIT_TOPIC]
named = st.dictionaries(
    st.sampled_from(NAMES),
    st.integers(1, 3),
)


@given(st.lists(named, min_size=2, max_size=6))
def test_changes_lead_to_the_view_that_the_namespace_gives(rounds: list[dict[str, int]]) -> None:
    """Whatever topics come, go, and are made again with another id."""
    views = [
        ClusterView(
            cluster_id="c",
            version=version,
            topics={
                TopicName(name): a_topic(name, 10 * n + NAMES.index(name))
                for name, n in each.items()
            },
            consumer_groups={
                ConsumerGroupName(name): ConsumerGroupView(group=ConsumerGroupName(name))
                for name in each
                if not name.startswith("%") and name != AUDIT_TOPIC
            },
        )
        for version, each in enumerate(rounds)
    ]
    seen, names = SHOP.view(views[0]), TopicNames()
    names.of(seen)
    for before, view in pairwise(views):
        seen, whole = view_changes(before, view).applied_to(seen), SHOP.view(view)

        assert seen == whole
        assert list(seen.topics) == list(whole.topics)
        for name in view.topics:
            assert seen.topics.get(name) == whole.topics.get(name)
        assert names.of(seen) == TopicNames().of(whole)


@pytest.mark.parametrize("name", [*SYSTEM_TOPICS, AUDIT_TOPIC])
def test_what_is_in_no_namespace_keeps_its_name(name: str) -> None:
    namespace = Namespace("shop")

    assert namespace.full_topic(name) == namespace.own_topic(name) == name
