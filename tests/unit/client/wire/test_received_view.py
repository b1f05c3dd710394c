"""Views out of the answers of several controllers, in any order, of what a client uses."""

from dataclasses import replace
from random import Random

import pytest
from tests.support.client.views import view_changes

from paceline.sorted_map import SortedMap
from paceline.types import ConsumerGroupName, GroupName, TopicId, TopicName
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.views.changes import ViewChanges
from paceline.wire.views.receiving import Ask, ReceivedView
from paceline.wire.views.scope import SCOPE_BYTES_MAX, Scope

NAMES = "abcdefgh"
KEPT = 5
"""Versions that controllers know the changes of."""


class Cluster:
    """Its views; topics come and go at random."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.views = [ClusterView(cluster_id="a", version=1)]

    def change(self) -> None:
        last, name = self.views[-1], TopicName(self._random.choice(NAMES))
        topic = None
        if name not in last.topics or self._random.random() < 0.5:
            queues = {GroupName("g1"): self._random.randrange(1, 9)}
            topic = TopicView(topic=name, topic_id=TopicId(last.version), queues=queues)
        self.views.append(
            ClusterView(
                cluster_id="a",
                version=last.version + 1,
                topics=SortedMap(last.topics).changed({name: topic}),
            )
        )

    def answer(self, ask: Ask, lag: int) -> dict[str, object]:
        """Of a controller that is so many versions behind."""
        view = self.views[max(0, len(self.views) - 1 - lag)]
        since = ask.since or 0
        if ask.takes_changes and view.version - KEPT < since <= view.version:
            changes = self._changes(since, view)
            return (changes if ask.scope is None else ask.scope.changes(changes)).to_json()
        return (view if ask.scope is None else ask.scope.view(view)).to_json()

    def _changes(self, since: int, view: ClusterView) -> ViewChanges:
        """Also what became another in between and is as it was: the receiver may have it."""
        steps = zip(self.views[since - 1 :], self.views[since : view.version], strict=False)
        names = {name for before, after in steps for name in view_changes(before, after).topics}
        return replace(
            view_changes(view, view),
            since=since,
            topics={name: view.topics.get(name) for name in names},
        )


def scope(*topics: str) -> Scope:
    return Scope(topics=frozenset(map(TopicName, topics)))


def take(received: ReceivedView, document: dict[str, object], ask: Ask) -> bool:
    view = received.read(document, ask)
    return view is not None and received.take(view, ask.scope)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_always_what_the_cluster_was_of_what_is_used(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(random)
    received = ReceivedView(lambda view: view)
    used = {random.choice(NAMES)}
    complete: set[TopicName] = set()
    sent: list[tuple[dict[str, object], Ask]] = []
    for _ in range(200):
        for _ in range(random.choice((0, 1, 1, 2, 9))):
            cluster.change()
        if random.random() < 0.1:
            used.add(random.choice(NAMES))
        received.want(None if len(used) == len(NAMES) else scope(*used))
        ask = received.ask()
        sent.append((cluster.answer(ask, random.choice((0, 0, 1, 3))), ask))
        while sent and random.random() < 0.7:
            before = received.view
            is_newer = take(received, *sent.pop(random.randrange(len(sent))))
            assert is_newer == (received.view is not before)
            if received.is_complete:
                complete = set(map(TopicName, used))
        if received.view is not None and received.is_complete:
            whole = cluster.views[received.view.version - 1]
            shown = whole if received.wanted is None else received.wanted.view(whole)
            assert received.view == shown
        elif received.view is not None:  # what was shown once is shown as it was at its version
            whole = cluster.views[received.view.version - 1]
            assert complete <= used
            for name in complete:
                assert received.view.topics.get(name) == whole.topics.get(name)
    for _ in range(3):  # what is wanted; or all, after a gap; then news
        ask = received.ask()
        take(received, cluster.answer(ask, 0), ask)
    assert received.is_complete
    assert received.view is not None
    assert received.view.version == cluster.views[-1].version


def test_what_is_used_next_is_shown_at_the_same_version() -> None:
    cluster = Cluster(Random(0))
    cluster.change()
    received = ReceivedView(lambda view: view)
    received.want(scope())
    first = received.ask()
    take(received, cluster.answer(first, 0), first)
    assert received.is_complete

    received.want(scope(*NAMES))
    assert not received.is_complete
    ask = received.ask()

    assert ask.since == 1
    assert not ask.is_news
    assert take(received, cluster.answer(ask, 0), ask)
    assert received.view == cluster.views[-1]
    assert received.is_complete


def test_a_scope_stands_in_a_request_and_is_bounded() -> None:
    some = Scope(
        topics=frozenset([TopicName("t"), TopicName("%RETRY%g")]),
        consumer_groups=frozenset([ConsumerGroupName("g")]),
    )

    assert Scope.from_parameters(some.parameters()) == some
    assert Scope.from_parameters(Scope().parameters()) == Scope()
    assert Scope.from_parameters({"from": "1"}) is None
    assert scope("t" * SCOPE_BYTES_MAX).is_too_long is False
    with pytest.raises(Exception, match="leave both parameters out"):
        Scope.from_parameters({"topics": "t" * (SCOPE_BYTES_MAX + 1)})


def test_nothing_else_is_kept_of_a_controller_that_knows_no_scopes() -> None:
    cluster = Cluster(Random(0))
    received = ReceivedView(lambda view: view)
    received.want(scope("a"))
    for _ in range(20):
        cluster.change()
        ask = received.ask()
        assert take(received, cluster.answer(replace(ask, scope=None), 0), ask)
        assert received.view == scope("a").view(cluster.views[-1])
