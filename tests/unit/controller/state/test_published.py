"""The published view, made and told by what changed: as the whole one, whatever happens."""

from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.controller.builders import G1, Driver, a_group
from tests.support.controller.random_commands import kinds
from tests.support.controller.recovery_bed import presentation

from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline.wire.topic_commands import EnsureTopic
from paceline.wire.users import Mode
from paceline.wire.views.changes import ViewChanges
from paceline.wire.views.receiving import Ask, ReceivedView
from paceline.wire.views.scope import Scope
from paceline_controller.state import Machine, published
from paceline_controller.state.operator_commands import SetWritePermission
from paceline_controller.state.security_commands import SetSecurityMode
from paceline_controller.state.topic_commands import DeleteTopic, PutConsumerGroup

names = st.lists(st.sampled_from("abcdefg"), max_size=3)
steps = st.lists(st.tuples(kinds | names, st.integers(0, 2**32)), max_size=25)
"""A command, or names of topics that users make or delete; and what becomes of the news of it."""


def whole(machine: Machine) -> ClusterView:
    """Its view, made from nothing."""
    fresh = Machine()
    fresh.restore(machine.snapshot())
    return fresh.view()


def answer(machine: Machine, ask: Ask) -> bytes:
    """What who asks so is sent."""
    since = ask.since if ask.takes_changes else None
    changes = None if since is None else machine.changes_since(since, scope=ask.scope)
    if changes is not None:
        return orjson.dumps(changes.to_json())
    view = machine.view()
    return orjson.dumps((view if ask.scope is None else ask.scope.view(view)).to_json())


class Receiver:
    """Asks for all, or for what it uses: more with time; takes answers in whatever order."""

    def __init__(self, view: ClusterView, *topics: str) -> None:
        self.received = ReceivedView(lambda view: view)
        self.scope = Scope(topics=frozenset(map(TopicName, topics))) if topics else None
        self.received.want(self.scope)
        self.received.take(view if self.scope is None else self.scope.view(view), self.scope)

    def use(self, topic: str) -> None:
        if self.scope is not None:
            self.scope = Scope(topics=self.scope.topics | {TopicName(topic)})
            self.received.want(self.scope)

    def take(self, text: bytes, ask: Ask) -> None:
        view = self.received.read(orjson.loads(text), ask)
        if view is not None:
            self.received.take(view, ask.scope)

    def check(self, versions: dict[int, ClusterView]) -> None:
        """It has what the whole view is, of what it was shown."""
        view = self.received.view
        assert view is not None
        whole_view = versions[view.version]
        if self.scope is None:
            assert view == whole_view
            return
        shown = self.scope if self.received.is_complete else Scope(topics=frozenset(view.topics))
        assert view == shown.view(whole_view)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_receivers_have_at_each_version_what_the_whole_view_is(history: list[Any]) -> None:
    driver, other = a_group(), Machine()
    other.restore(driver.machine.snapshot())
    behind: list[tuple[dict[str, Any], int]] = []
    versions = {driver.machine.version: whole(driver.machine)}
    first = driver.machine.view()
    receivers = [Receiver(first), Receiver(first), Receiver(first, "a", "t"), Receiver(first, "b")]
    sent: list[tuple[Receiver, bytes, Ask]] = []
    for what, seed in history:
        chance = Random(seed)
        for command in [what] if isinstance(what, dict) else list(map(_toggle, what)):
            apply(driver, command, behind)
            if driver.machine.version not in versions:
                versions[driver.machine.version] = whole(driver.machine)
        if chance.random() < 0.6:  # else this controller falls behind
            for document, index in behind:
                other.apply(document, index=index)
            behind.clear()
        if chance.random() < 0.1:
            other = restarted(other)

        view = driver.machine.view()

        assert view == versions[view.version]
        assert list(view.topics) == sorted(view.topics)
        asking = chance.choice(receivers)
        source = chance.choice((other, driver.machine))
        if chance.random() < 0.2:
            asking.use(chance.choice("abcdefgtu"))
        ask = asking.received.ask()
        sent.append((asking, answer(source, ask), ask))
        while sent and chance.random() < 0.6:
            receiver, text, asked = sent.pop(chance.randrange(len(sent)))
            receiver.take(text, asked)
        for receiver in receivers:
            receiver.check(versions)
    for receiver in receivers:
        for _ in range(2):  # it asks for what it has none of, or across a gap, and then for news
            ask = receiver.received.ask()
            receiver.take(answer(driver.machine, ask), ask)
        assert receiver.received.is_complete
        receiver.check(versions)
        assert receiver.received.view is not None
        assert receiver.received.view.version == driver.machine.version


def apply(driver: Driver, command: dict[str, Any], log: list[tuple[dict[str, Any], int]]) -> None:
    """What the one machine applies, the other one will too."""
    if "toggle" in command:
        present = command["toggle"] in driver.machine.topics
        name = TopicName(command["toggle"])
        made = DeleteTopic(topic=name) if present else EnsureTopic(topic=name, queues=2)
        command = made.to_json()
    driver.raw(command)
    envelope = {
        "session": "s",
        "sequence": driver.sequence,
        "at": driver.now,
        "deadline": driver.now + 3000,
    }
    log.append(({**command, **envelope}, driver.sequence + 1))


def _toggle(name: str) -> dict[str, Any]:
    return {"toggle": name}


def restarted(machine: Machine) -> Machine:
    fresh = Machine()
    fresh.restore(machine.snapshot())
    return fresh


def test_one_more_topic_is_all_that_is_told() -> None:
    driver = a_group()
    before = driver.machine.view()

    driver.do(EnsureTopic(topic=TopicName("t"), queues=1))
    changes = driver.machine.changes_since(before.version)

    assert changes is not None
    assert (list(changes.topics), changes.groups, changes.consumer_groups) == (["t"], {}, {})
    assert driver.machine.view().groups[G1] is before.groups[G1]


def test_what_is_gone_is_named() -> None:
    driver = a_group()
    driver.do(EnsureTopic(topic=TopicName("t"), queues=1))
    group = ConsumerGroupName("c")
    driver.do(PutConsumerGroup(group=group, settings=ConsumerGroupSettings(), is_new=True))
    version = driver.machine.version

    driver.do(DeleteTopic(topic=TopicName("t")))
    driver.raw({"kind": "delete_consumer_group", "group": "c"})
    changes = driver.machine.changes_since(version)

    assert changes is not None
    assert changes.topics == dict.fromkeys(("t", "%RETRY%c", "%DLQ%c"))
    assert changes.consumer_groups == {"c": None}
    assert ViewChanges.from_json(orjson.loads(orjson.dumps(changes.to_json()))) == changes


def test_who_asks_for_what_is_not_kept_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "NAMES_MAX", 4)
    driver = a_group()
    old = driver.machine.version
    for name in "abcdef":
        driver.do(EnsureTopic(topic=TopicName(name), queues=1))

    assert driver.machine.changes_since(old) is None
    assert driver.machine.changes_since(driver.machine.version - 2) is not None
    assert driver.machine.changes_since(driver.machine.version + 1) is None
    assert restarted(driver.machine).changes_since(driver.machine.version - 1) is None


def test_a_wiped_group_changes_every_topic() -> None:
    driver = a_group()
    driver.do(EnsureTopic(topic=TopicName("t"), queues=1))
    version = driver.machine.version
    assert driver.machine.view().topics[TopicName("t")].write_queues == {G1: 1}

    driver.do(SetWritePermission(group=G1, is_writable=False))

    assert driver.machine.changes_since(version) is None
    assert driver.machine.view().topics[TopicName("t")].write_queues == {G1: 0}


def test_changed_rights_are_told_apart() -> None:
    driver = a_group()
    version = driver.machine.version

    driver.do(SetSecurityMode(mode=Mode.DRY_RUN))
    changes, later = driver.machine.changes_since(version), driver.machine.version
    driver.do(EnsureTopic(topic=TopicName("t"), queues=1))
    after = driver.machine.changes_since(later)

    assert changes is not None
    assert changes.are_rights
    assert after is not None
    assert not after.are_rights


def test_a_scope_is_concerned_by_its_names_and_by_what_concerns_all() -> None:
    driver = a_group()
    used, other = Scope(topics=frozenset([TopicName("t")])), Scope()
    version = driver.machine.version

    driver.do(EnsureTopic(topic=TopicName("t"), queues=1))
    assert driver.machine.concerns(version, used)
    assert not driver.machine.concerns(version, other)

    driver.do(SetSecurityMode(mode=Mode.DRY_RUN))
    assert driver.machine.concerns(version, other)
    assert not driver.machine.concerns(driver.machine.version, used)
    changes = driver.machine.changes_since(version, scope=other)
    assert changes is not None
    assert not changes.topics


def test_topic_ids_that_a_presented_store_takes_are_told_by_a_new_version() -> None:
    """R38: two views of one version are one view."""
    driver = a_group()
    driver.raw({"kind": "remove_group", "group": "g1", "is_forced": False})
    before = driver.machine.view()

    driver.do(presentation(1, topic_id_max=7))

    assert driver.machine.view().version == before.version + 1
    assert driver.machine.view().topic_id_max > 7
