"""Pure: which brokers a machine runs, when every machine is to have masters on all its cores.

Machines stand in sets of as many as a group has replicas. Each machine of a set is the preferred
master of `groups_per_machine` groups, and all machines of the set hold a replica of each. So the
machines of a set share the load of one that fails, sets have nothing to do with each other, and a
set that is added moves no replica of those before.
"""

from typing import NamedTuple

from paceline.types import GroupName


class Placed(NamedTuple):
    """One broker of a machine."""

    group: GroupName
    preference: int
    """1: its group's master is to be here; 2: if that machine is away; and so on."""
    number: int
    """Of its pair of ports, from 0: the same on all machines of the set."""


def brokers_of(machine: int, *, groups_per_machine: int, replicas: int) -> list[Placed]:
    """What runs on a machine, which is counted from 1."""
    first = (machine - 1) // replicas * replicas
    own = machine - 1 - first
    placed = []
    for member in range(replicas):
        preference = (own - member) % replicas + 1
        for core in range(groups_per_machine):
            group = GroupName(f"m{first + member + 1}-{core + 1}")
            placed.append(Placed(group, preference, member * groups_per_machine + core))
    return placed


def ports_count(*, groups_per_machine: int, replicas: int) -> int:
    """Ports that a machine needs, one after the other."""
    return 2 * groups_per_machine * replicas
