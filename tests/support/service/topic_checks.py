"""What tests of topic checks share with others."""

from dataclasses import replace
from typing import Any

from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench, until
from tests.support.service.send import Answers

from paceline.types import TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.topics import (
    TopicView,
)


def altered(bench: Bench, **changes: Any) -> TopicView:
    """The topic "orders" (4 queues) is another one in a newer view."""
    view = bench.service.routes.view
    assert view is not None
    orders = view.topics[TopicName("orders")]
    topic = replace(orders, **changes)
    topics = {**view.topics, topic.topic: topic}
    newer: ClusterView = replace(view, version=view.version + 1, topics=topics)
    bench.service.view_changed(newer)
    return topic


async def sent(bench: Bench, **arguments: Any) -> Any:
    """The answer to one batch."""
    sink = Answers()
    bench.service.sender.send(a_batch(b"x", **arguments), sink, 0)
    await until(lambda: bool(sink.answers))
    [(_, answer)] = sink.answers
    return answer
