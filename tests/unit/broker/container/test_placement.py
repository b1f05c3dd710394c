"""Which brokers a machine runs, and which settings of a container are refused."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.types import GroupName
from paceline_broker.container.app import broker_settings
from paceline_broker.container.config import ContainerConfig
from paceline_broker.container.placement import Placed, brokers_of, ports_count

CONFIG = ContainerConfig(
    machines=("10.0.0.1", "10.0.0.2", "10.0.0.3"),
    machine=2,
    broker_config="broker.toml",
    data_dir="/data",
)


@given(sets=st.integers(1, 4), cores=st.integers(1, 20), replicas=st.integers(1, 5))
def test_every_core_is_the_preferred_master_of_a_group(
    sets: int, cores: int, replicas: int
) -> None:
    machines = range(1, sets * replicas + 1)
    placed = {
        machine: brokers_of(machine, groups_per_machine=cores, replicas=replicas)
        for machine in machines
    }
    everywhere = [each for brokers in placed.values() for each in brokers]

    groups = Counter(each.group for each in everywhere)
    assert len(groups) == cores * len(machines)
    assert set(groups.values()) == {replicas}
    for brokers in placed.values():
        assert len({each.group for each in brokers}) == len(brokers)
        assert [each.preference for each in brokers].count(1) == cores
        numbers = sorted(each.number for each in brokers)
        assert 2 * len(numbers) == ports_count(groups_per_machine=cores, replicas=replicas)
        assert numbers == list(range(len(brokers)))
    for group in groups:
        of_group = [each for each in everywhere if each.group == group]
        assert sorted(each.preference for each in of_group) == list(range(1, replicas + 1))
        assert len({each.number for each in of_group}) == 1


def test_masters_of_a_machine_that_fails_go_to_all_others_of_its_set() -> None:
    second = Counter(
        machine
        for machine in (1, 2, 3)
        for each in brokers_of(machine, groups_per_machine=4, replicas=3)
        if each.preference == 2
    )
    assert second == {1: 4, 2: 4, 3: 4}


def test_a_broker_has_its_own_folder_and_ports() -> None:
    assert broker_settings(CONFIG, Placed(GroupName("m2-2"), 1, 3)) == {
        "group": "m2-2",
        "data_dir": "/data/m2-2",
        "listen": "10.0.0.2:7806",
        "replication_listen": "10.0.0.2:7807",
        "election_priority": "1",
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"machines": ()}, "machines has 0 hosts"),
        ({"machines": ("a", "b", "c", "d")}, "give a multiple of 3"),
        ({"machines": ("a", "b", "a")}, "names a host twice"),
        ({"machine": 4}, "machine is 4, but machines has 3 hosts"),
        ({"first_port": 65_534, "groups_per_machine": 2}, "leaves no room for 12 ports"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        replace(CONFIG, **changes).validate()  # type: ignore[arg-type]


def test_ports_that_the_cores_of_this_machine_need_are_counted() -> None:
    config = replace(CONFIG, first_port=65_500)
    with pytest.raises(ConfigError, match="leaves no room"):
        broker_settings(config, brokers_of(2, groups_per_machine=16, replicas=3)[-1])
