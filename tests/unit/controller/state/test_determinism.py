"""INV-10: whatever is applied, machines stay equal, nothing raises, and the invariants hold."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.controller.builders import a_group
from tests.support.controller.random_commands import OPENINGS, commands

from paceline.types import ConsumerGroupName, ReplicaId, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline.wire.topic_commands import EnsureTopic
from paceline_controller.state import Machine, model
from paceline_controller.state.recovery import VERSIONS_SKIPPED
from paceline_controller.state.topic_commands import PutConsumerGroup


@settings(max_examples=150, deadline=None)
@given(st.lists(commands, min_size=10, max_size=60))
def test_machines_that_apply_the_same_stay_equal(history: list[dict[str, Any]]) -> None:
    one, other = Machine(), Machine()

    for index, command in enumerate([*OPENINGS, *history]):
        version = one.version
        epochs = numbers_of(one)
        text = orjson.dumps(command)
        assert one.apply(orjson.loads(text), index=index) == other.apply(
            orjson.loads(text), index=index
        )
        if index % 7 == 0:  # a node that restarts from its snapshot is no different
            restored = Machine()
            restored.restore(other.snapshot())
            other = restored
        check(one, version, epochs)

    assert one.digest() == other.digest()


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_anything_is_a_result(document: Any) -> None:
    result, events = Machine().apply(document, index=1)

    assert result["ok"] is False
    assert events == []


def numbers_of(machine: Machine) -> dict[str, tuple[int, int, int]]:
    return {
        name: (group.master_epoch, group.set_epoch, group.next_replica_id)
        for name, group in machine.groups.items()
    }


def check(machine: Machine, version: int, before: dict[str, tuple[int, int, int]]) -> None:
    """What must hold after every command, however odd."""
    assert machine.version in (version, version + 1, version + 1 + VERSIONS_SKIPPED)  # R38
    after = numbers_of(machine)
    for name, old in before.items():
        if name not in after:  # its operator has removed it
            continue
        assert all(new >= was for new, was in zip(after[name], old, strict=True)), name  # INV-4
    for group in machine.groups.values():
        assert group.sync_state_set <= set(group.replicas)
        assert (group.master_epoch == 0) == (not group.sync_state_set)  # R9: never to empty
        if group.master is not None:
            assert group.master in group.sync_state_set  # INV-5
            recorded = group.replicas[ReplicaId(group.master)].incarnation
            assert group.master_incarnation == recorded  # R1: a restart vacates
        if group.acting is not None:  # R36: no member, of this start, and only without a master
            assert group.master is None
            assert group.acting not in group.sync_state_set
            recorded = group.replicas[group.acting].incarnation
            assert group.acting_incarnation == recorded


def test_parts_of_a_state_are_bounded_and_tell_each_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "PART_ENTRIES", 8)
    driver = a_group()
    for number in range(30):
        driver.do(EnsureTopic(topic=TopicName(f"t{number}"), queues=1))
        group = ConsumerGroupName(f"c{number}")
        driver.do(PutConsumerGroup(group=group, settings=ConsumerGroupSettings(), is_new=True))
    one, other = driver.machine, Machine()
    other.restore(one.snapshot())  # its topics are in another order
    parts = range(100, 100 + 1 + len(one.topics) + 30)

    assert [one.digest_of_part(each) for each in parts] == [
        other.digest_of_part(each) for each in parts
    ]
    assert len(set(map(one.digest_of_part, parts))) > 4
    for name in (*one.topics, None):
        if name is None:
            found = other._state.consumer_groups
            found[ConsumerGroupName("c7")] = replace(
                found[ConsumerGroupName("c7")], settings=ConsumerGroupSettings(consume_enable=False)
            )
        else:
            other._state.topics[name].alterations += 1
        assert any(one.digest_of_part(each) != other.digest_of_part(each) for each in parts)
        other.restore(one.snapshot())
