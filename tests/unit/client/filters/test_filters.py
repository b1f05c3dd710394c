"""Tags and SQL92: what is wanted, with three truth values, and what is no expression."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import BadRequestError
from paceline.filters import ALL, Subscription, make_filter, subscriptions
from paceline.filters.sql import SqlFilter
from paceline.message import received_messages
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch


def wants(expression: str, *, tag: str = "", key: str | None = None, **properties: str) -> bool:
    return SqlFilter(expression).matches(properties, tag=tag, key=key)


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a = 'x'", {"a": "x"}),
        ("a <> 'it''s'", {"a": "it"}),
        ("a = 5", {"a": "5.0"}),
        ("a > -1.5e1 AND a < .5", {"a": "-3"}),
        ("a between 1 and 3 and b = 'x'", {"a": "3", "b": "x"}),
        ("a NOT BETWEEN 1 AND 3", {"a": "5"}),
        ("a in ('p', 'q')", {"a": "q"}),
        ("a not in ('p', 'q')", {"a": "r"}),
        ("a is null", {}),
        ("a is not null or b = 1", {"a": ""}),
        ("a contains 'b' and a startswith 'a' and a endswith 'c'", {"a": "abc"}),
        ("not (a contains 'z') and a not startswith 'b'", {"a": "abc"}),
        ("a = TRUE and b", {"a": "true", "b": "True"}),
        ("a < b", {"a": "9", "b": "10"}),
        ("TAGS = 't' and KEYS is not null", {"tag": "t", "key": "k"}),
        ("not not a = 1", {"a": "1"}),
        ("TRUE", {}),
    ],
)
def test_messages_that_are_wanted(expression: str, properties: dict[str, Any]) -> None:
    assert wants(expression, **properties)
    assert not wants(f"NOT ({expression})", **properties)


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a > 5", {}),
        ("a > 5", {"a": "many"}),
        ("a = 5", {"a": "5x"}),
        ("a > 'x'", {"a": "y"}),
        ("a = TRUE", {"a": "yes"}),
        ("a in ('x')", {}),
        ("a contains 'x'", {}),
        ("a <> 'x'", {}),
        ("a", {}),
        ("a = 1 and b = 1", {"b": "1"}),
        ("a = 1 or b = 1", {"b": "2"}),
        ("a = 5", {"a": "nan"}),
    ],
)
def test_what_is_unknown_is_not_wanted_and_neither_is_its_opposite(
    expression: str, properties: dict[str, str]
) -> None:
    assert not wants(expression, **properties)
    assert not wants(f"NOT ({expression})", **properties)


def test_unknown_beside_certainty_is_certain() -> None:
    assert wants("a = 1 or b = 1", b="1")
    assert wants("not (a = 1 and b = 1)", b="2")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "ends too early"),
        ("a >", "ends too early"),
        ("a > > b", "at character 5"),
        ("a = 'x", "at character 5"),
        ("a in ()", "at character 7"),
        ("a in (1)", "at character 7"),
        ("a + 1 > 2", "at character 3"),
        ("a like 'x%'", "'like' is not understood at character 3"),
        ("a = " + "9" * 400, "is no number"),
        ("(" * 300 + "a" + ")" * 300, "200 parentheses"),
        ("NOT " * 300 + "a", "200 parentheses"),
        ("a = 'x' " * 2000, "8192 characters"),
        ("a; DROP TABLE b", "at character 2"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(expression: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=said) as refused:
        make_filter("SQL92", expression)
    assert refused.value.details["field"] == "filter"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab ()'=<>1.,-ANDORTI\n")), max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        found = SqlFilter(text)
    except BadRequestError:
        return
    assert found.matches({"a": "1", "b": "x"}) in (True, False)


def test_the_deepest_expression_that_is_taken_can_be_evaluated() -> None:
    assert wants("(" * 200 + "a = 1" + ")" * 200, a="1")
    assert wants("NOT " * 200 + "a = 1", a="1")


# -- batches --------------------------------------------------------------------------------------

TAGGED = BatchView(
    encode_batch(
        [b"0", b"1", b"2"],
        tags=["red", None, "blue"],
        properties=[{"n": "0"}, {"n": "1"}, None],
        born_unix_ms=1,
        topic_id=1,
        queue_id=0,
    )
)


@pytest.mark.parametrize(
    ("type_", "expression", "bodies"),
    [
        ("TAG", "*", [b"0", b"1", b"2"]),
        ("TAG", " red || green ", [b"0"]),
        ("TAG", "green", []),
        ("SQL92", "n >= 0", [b"0", b"1"]),
        ("SQL92", "TAGS = 'blue'", [b"2"]),
        ("SQL92", "n = 7", []),
    ],
)
def test_a_batch_is_wanted_if_one_of_its_records_is(
    type_: str, expression: str, bodies: list[bytes]
) -> None:
    wanted = make_filter(type_, expression)

    found = received_messages(TAGGED, topic="t", group="g", wanted=wanted)

    assert [message.body for message in found] == bodies
    assert wanted.wants_any(TAGGED) == bool(bodies)
    later = received_messages(TAGGED, topic="t", group="g", wanted=wanted, skip=1)
    assert [message.body for message in later] == [body for body in bodies if body != b"0"]


@pytest.mark.parametrize("expression", ["a | b", "a || ", "||", "a||b|c"])
def test_what_is_no_tag_expression_is_refused(expression: str) -> None:
    with pytest.raises(BadRequestError, match="tag expression"):
        make_filter("TAG", expression)


def test_filters_of_other_types_are_refused() -> None:
    with pytest.raises(BadRequestError, match="filter type"):
        make_filter("CLASS", "org.example.Filter")


def test_topics_may_be_named_alone() -> None:
    by_sql = Subscription.by_sql("b", "x = 1")

    assert subscriptions(["a", by_sql]) == [Subscription("a", ALL), by_sql]
    assert Subscription.by_tags("c", "*").filter is ALL


def test_an_expression_has_64_tests_at_most() -> None:
    many = " OR ".join(f"a = '{number}'" for number in range(64))
    assert make_filter("SQL92", many).terms == 64
    assert wants(f"a IN ({', '.join(repr(str(number)) for number in range(500))})", a="499")
    with pytest.raises(BadRequestError, match="up to 1024 words and signs"):
        make_filter("SQL92", "a IN (''" + ",''" * 600 + ")")

    with pytest.raises(BadRequestError, match="up to 64 tests") as refused:
        make_filter("SQL92", f"({many}) AND b BETWEEN 1 AND 2")
    assert refused.value.details["field"] == "filter"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["", "é", "x" * 9]), min_size=1, max_size=9), st.data())
def test_some_records_of_a_batch_are_those_of_all(texts: list[str], data: st.DataObject) -> None:
    view = BatchView(
        encode_batch(
            [text.encode() for text in texts],
            tags=texts,
            keys=texts,
            properties=[{"a": text} for text in texts],
            born_unix_ms=list(range(len(texts))),
            topic_id=1,
            queue_id=0,
        )
    )
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(texts) + 1)] * 2)))
    everything = list(view.records())
    wanted = SqlFilter("a CONTAINS 'x' OR KEYS = 'é'")

    assert list(view.records(first, end)) == everything[first:end]
    mask = [wanted.matches({"a": text}, key=text) for text in texts]
    assert (wanted.mask(view, first, end) or [True] * len(mask[first:end])) == mask[first:end]
    assert wanted.wants_any(view, first, end) == any(mask[first:end])
