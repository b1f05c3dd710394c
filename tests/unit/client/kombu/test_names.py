"""Names of queues and exchanges as names of topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.kombu.names import (
    LENGTH_MAX,
    escaped,
    topic_of_exchange,
    topic_of_queue,
    unescaped,
)
from paceline.wire.names import check_topic_name

NAMES = st.text(min_size=1, max_size=40)


@pytest.mark.parametrize("name", ["celery", "high-priority", "a.b_c", "Queue_1", "0"])
def test_usual_names_stay_as_they_are(name: str) -> None:
    assert escaped(name) == name


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("celery@host", "celery_.40host"),
        ("%RETRY%x", "_.25RETRY_.25x"),
        (".hidden.", "_.2ehidden_.2e"),
        ("a_.b", "a_.5f.b"),
        ("TBW102", "_.54BW102"),
        ("Grüße", "Gr_.c3_.bc_.c3_.9fe"),
    ],
)
def test_what_a_topic_cannot_be_called_is_escaped(name: str, topic: str) -> None:
    assert escaped(name) == topic
    assert unescaped(topic) == name


@given(NAMES)
def test_every_name_makes_a_topics_name_that_can_be_read_back(name: str) -> None:
    topic = escaped(name)

    assert check_topic_name(topic) == topic
    assert len(topic) <= LENGTH_MAX
    assert "_.h" in topic or unescaped(topic) == name


@given(NAMES, NAMES)
def test_two_queues_never_share_a_topic(one: str, other: str) -> None:
    made = {
        topic_of_queue(one),
        topic_of_exchange(one),
        topic_of_queue(other),
        topic_of_exchange(other),
    }

    assert len(made) == (2 if one == other else 4)


def test_a_long_name_is_cut_and_stays_its_own() -> None:
    first, second = "x" * 300, "x" * 301

    assert len(escaped(first)) <= LENGTH_MAX
    assert escaped(first) != escaped(second)
    assert check_topic_name("n" * 63 + "%" + topic_of_exchange(first))
