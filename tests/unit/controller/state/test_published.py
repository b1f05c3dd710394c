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


def answer(machine: Machine, version: int) -> bytes:
    """What a receiver that has the view of that version is sent."""
    changes = machine.changes_since(version)
    return orjson.dumps((machine.view() if changes is None else changes).to_json())


class Receiver:
    """Takes what is newer, in whatever order it comes."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view

    def take(self, text: bytes) -> None:
        document = orjson.loads(text)
        if "since" in document:
            changes = ViewChanges.from_json(document)
            if changes.follows(self.view):
                self.view = changes.applied_to(self.view)
        else:
            view = ClusterView.from_json(document)
            if view.version > self.view.version:
                self.view = view


@settings(max_examples=60, deadline=None)
@given(steps)
def test_receivers_have_at_each_version_what_the_whole_view_is(history: list[Any]) -> None:
    driver, other = a_group(), Machine()
    other.restore(driver.machine.snapshot())
    behind: list[tuple[dict[str, Any], int]] = []
    versions = {driver.machine.version: whole(driver.machine)}
    receivers = [Receiver(driver.machine.view()) for _ in range(3)]
    sent: list[tuple[Receiver, bytes]] = []
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
        sent.append((asking, answer(source, asking.view.version)))
        while sent and chance.random() < 0.6:
            receiver, text = sent.pop(chance.randrange(len(sent)))
            receiver.take(text)
        for receiver in receivers:
            assert receiver.view == versions[receiver.view.version]


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
    monkeypatch.setattr(published, "NAMES_MAX", 8)
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


def test_topic_ids_that_a_presented_store_takes_are_told_by_a_new_version() -> None:
    """R38: two views of one version are one view."""
    driver = a_group()
    driver.raw({"kind": "remove_group", "group": "g1", "is_forced": False})
    before = driver.machine.view()

    driver.do(presentation(1, topic_id_max=7))

    assert driver.machine.view().version == before.version + 1
    assert driver.machine.view().topic_id_max > 7
