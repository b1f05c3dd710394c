"""What a world is made of, drawn from its seed: nodes, groups, clients, settings.

The draws are weighted towards the usual (three controllers, three replicas, fsync), but every seed
may be a corner: one controller, one replica, five replicas of which four must be in sync, timers
so short that healthy nodes are suspected. Everything is printed as one JSON line.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline_chaos.cluster_sim.jobs.names import JOBS

MIB = 1024 * 1024
KIB = 1024
_SMALL_SEGMENTS = (64 * KIB, 128 * KIB, 256 * KIB)
"""Less than the product allows: logs of half a minute then have many segments."""
_SMALL_SHARE = 1 / 3
_RETENTION_SHARE = 0.5
"""Of worlds with small segments: those in which the oldest go (R26)."""
LOAD_MS = 20_000
"""Of worlds that judge the product, by seed alone."""
CALM_MS = 14_000
"""Half of it is over when the last fault may still be felt; then windows of 5 s fit in."""
_CALM_SHARE = 0.35
SCRUB_MS = 2_000
"""A flipped bit is to be found, and mended, while the world lasts (R24, L8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Settings of brokers and controllers that are times; ms. Defaults as shipped."""

    heartbeat_interval_ms: int = 300
    heartbeat_timeout_ms: int = 1500
    replica_lag_ms_max: int = 2000
    slave_timeout_ms: int = 3000
    election_open_timeout_ms: int = 3000
    progress_timeout_ms: int = 6000
    checkpoint_interval_ms: int = 10_000
    lock_lease_ms: int = 60_000
    acting_settle_ms: int = 3000


FAST = Timers(
    heartbeat_interval_ms=100,
    heartbeat_timeout_ms=600,
    replica_lag_ms_max=600,
    slave_timeout_ms=800,
    election_open_timeout_ms=1500,
    progress_timeout_ms=3000,
    checkpoint_interval_ms=1000,
    lock_lease_ms=2000,
    acting_settle_ms=1200,
)
"""About three times as much happens in a virtual second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client process and the jobs it does at the same time."""

    name: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What a world is made of."""

    seed: int
    controllers: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]
    """Broker group -> names of its brokers."""
    clients: tuple[Client, ...]
    durability: str
    min_in_sync_replicas: int
    segment_size_bytes: int
    body_bytes_max: int
    queues: int
    """Of the topic that clients use, in each group."""
    think_ms: float
    """Mean pause of a client between two requests."""
    delay_ms: float
    """Mean delay of the network, one way."""
    sync_ms: float
    """How long a sync takes: on a slow disk more is unsynced when the power goes."""
    load_ms: int
    calm_ms: int
    """Of load once everything is whole again: time to see that it goes on (L2, L5)."""
    timers: Timers
    scrub_ms: int = SCRUB_MS
    """Time from one verification of a whole log to the next."""
    log_bytes_max: int = 0
    """Above this size a master gives up the oldest segments (R26); 0: nothing is given up."""
    learners: tuple[str, ...] = ()
    """Brokers that replicate and are never members (R18)."""

    escapes: bool = False
    """An acting master sends what is due to another group (R36). Not drawn: where retention takes a
    message after it was read, nothing is left to say whether it had the mark."""
    is_deserted: bool = False
    """All members of a group are away for a while, and one that is none is there (R36)."""

    @property
    def reads_replicas(self) -> bool:
        """Whether brokers send all consumers to replicas."""
        return random.Random(f"{self.seed}/slow-reads").random() < _SLOW_READS_SHARE

    @property
    def brokers(self) -> dict[str, str]:
        """Broker -> its group."""
        return {name: group for group, names in self.groups.items() for name in names}

    @property
    def has_hooks(self) -> bool:
        """Whether brokers have a hook before what they store (S41)."""
        return any("hook" in client.jobs for client in self.clients)

    @property
    def has_floods(self) -> bool:
        """Whether somebody hostile is there; brokers then have less for all clients (ADR 18)."""
        return any("flood" in client.jobs for client in self.clients)

    @property
    def has_rights(self) -> bool:
        """Whether an operator switches rights on and off, and changes them (S31)."""
        return any(_OPERATORS_OF_RIGHTS & set(client.jobs) for client in self.clients)

    @property
    def has_grpc(self) -> bool:
        """Whether clients of RocketMQ's gRPC protocol are there, and their gateways."""
        return any({"grpc", "tenant-doors"} & set(client.jobs) for client in self.clients)

    @property
    def lock_lease_ms(self) -> int:
        """That brokers grant at most. Clients of the remoting protocol cannot say how long a lock
        is to be theirs: gateways ask for a minute, in which no world would see one end."""
        if any("remoting" in client.jobs for client in self.clients):
            return FAST.lock_lease_ms
        return self.timers.lock_lease_ms

    @property
    def has_rescue(self) -> bool:
        """Whether an operator goes on with what is left when all members of a group are dead."""
        return any("rescue" in client.jobs for client in self.clients)

    @property
    def replicas(self) -> int:
        """Of each group, those that may be members."""
        first = next(iter(self.groups.values()))
        return len([name for name in first if name not in self.learners])

    def nodes(self) -> list[str]:
        """All servers."""
        return [*self.controllers, *self.brokers]

    def host_of(self, name: str) -> str:
        """Address of the machine of a node or client."""
        if name in self.controllers:
            return f"127.0.0.{11 + self.controllers.index(name)}"
        brokers = list(self.brokers)
        if name in brokers:
            return f"127.0.0.{31 + brokers.index(name)}"
        return f"127.0.0.{101 + [client.name for client in self.clients].index(name)}"

    def to_line(self) -> str:
        """One JSON line, for people and programs."""
        return json.dumps(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def draw_topology(seed: int, *, load_ms: int = LOAD_MS) -> Topology:
    """The topology of a seed."""
    dice = random.Random(f"topology-{seed}")
    replicas = dice.choices((1, 2, 3, 4, 5), (1, 1, 12, 1, 2))[0]
    group_count = dice.choices((1, 2), (4, 1))[0] if replicas <= 3 else 1
    controllers = dice.choices((1, 3, 5), (2, 12, 1))[0]
    groups = {
        f"g{group}": tuple(f"g{group}-b{number}" for number in range(1, replicas + 1))
        for group in range(1, group_count + 1)
    }
    minimum = (replicas + 1) // 2
    if dice.random() < 0.2:
        minimum = dice.randint(1, replicas)
    clients = _with_hasty(_draw_clients(dice), random.Random(f"hasty-{seed}"))
    for job, share in _SENDING_SHARES:
        if random.Random(f"{job}-{seed}").random() < share:
            clients = _with_job(clients, job)
    if 2 <= minimum < replicas and random.Random(f"rescue-{seed}").random() < _RESCUE_SHARE:
        clients = _with_job(clients, "rescue")
    if random.Random(f"pop-{seed}").random() < _POP_SHARE:
        clients = _with_job(clients, "pop")
    if random.Random(f"delay-{seed}").random() < _DELAY_SHARE:
        clients = _with_job(clients, "delay")
    if random.Random(f"transact-{seed}").random() < _TRANSACT_SHARE:
        clients = _with_job(clients, "transact")
    if random.Random(f"inorder-{seed}").random() < _INORDER_SHARE:
        first, *others = _with_job(clients, "inorder")
        clients = (first, *_with_job(tuple(others), "inorder"))
    clients = _with_group_jobs(clients, seed, group_count)
    clients = _with_others(clients, seed)
    calm_ms = CALM_MS if random.Random(f"calm-{seed}").random() < _CALM_SHARE else 0
    drawn = Topology(
        seed=seed,
        controllers=tuple(f"c{number}" for number in range(1, controllers + 1)),
        groups=groups,
        clients=clients,
        durability=dice.choices(("fsync", "memory"), (3, 1))[0],
        min_in_sync_replicas=minimum,
        segment_size_bytes=_draw_segments(MIB * dice.choice((1, 1, 1, 4)), seed),
        body_bytes_max=dice.choice((40, 200, 1000, 8000)),
        queues=dice.choice((1, 2, 4)),
        think_ms=dice.choice((60.0, 100.0, 150.0)),
        delay_ms=dice.choice((0.1, 0.5, 0.5, 2.0, 8.0)),
        sync_ms=dice.choice((0.3, 2.0, 12.0, 12.0)),
        load_ms=load_ms,
        calm_ms=calm_ms,
        timers=dice.choice((Timers(), FAST, FAST)),
    )
    drawn = _with_learners(_perhaps_deserted(drawn))
    log_bytes = _draw_log_bytes(drawn.segment_size_bytes, random.Random(f"retention-{seed}"))
    return replace(drawn, log_bytes_max=log_bytes)


def _with_group_jobs(
    clients: tuple[Client, ...], seed: int, group_count: int
) -> tuple[Client, ...]:
    """What consumer groups do beside the usual; each drawn apart."""
    for job, share in (("move", _MOVE_SHARE), ("broadcast", _BROADCAST_SHARE)):
        if random.Random(f"{seed}/{job}").random() < share:
            clients = (*clients[:-1], Client(name=clients[-1].name, jobs=(*clients[-1].jobs, job)))
    if group_count > 1 and random.Random(f"{seed}/remap").random() < _REMAP_SHARE:
        clients = (*clients[:-1], Client(name=clients[-1].name, jobs=(*clients[-1].jobs, "remap")))
    if random.Random(f"{seed}/fail").random() < _FAIL_SHARE:
        clients = _with_job(clients, "fail")
    for job, share in _READING_SHARES:
        if random.Random(f"{seed}/{job}").random() < share:
            clients = _with_job(clients, job)
    if random.Random(f"{seed}/queries").random() < _QUERY_SHARE:
        clients = _with_job(clients, "query")
    return clients


def _with_others(clients: tuple[Client, ...], seed: int) -> tuple[Client, ...]:
    """Who does not go with everybody."""
    jobs = {job for client in clients for job in client.jobs}
    is_altered = random.Random(f"alter-{seed}").random() < _ALTER_SHARE
    is_altered = is_altered and not jobs & _NOT_BESIDE_ALTER
    if is_altered:
        clients = _with_job(clients, "alter")
    elif random.Random(f"{seed}/hook").random() < _HOOK_SHARE:
        clients = _with_job(clients, "hook")
    if random.Random(f"{seed}/rights").random() < _RIGHTS_SHARE:
        does_work = random.Random(f"{seed}/tenant-work").random() < _TENANT_WORK_SHARE
        clients = _with_rights(clients, does_work=does_work)
    elif not is_altered and random.Random(f"{seed}/grpc").random() < _DOORS_SHARE:
        # As others that transact and delay.
        [doors] = random.Random(f"{seed}/doors").choices(_DOORS, _DOOR_WEIGHTS)
        for door in doors:
            clients = _with_job(clients, door)
    return clients


def _with_learners(topology: Topology) -> Topology:
    """Perhaps one more broker in each group that is never a member."""
    dice = random.Random(f"learners-{topology.seed}")
    if topology.replicas > _REPLICAS_BESIDE_LEARNERS or dice.random() >= _LEARNER_SHARE:
        return topology
    learners = {group: f"{group}-b{len(names) + 1}" for group, names in topology.groups.items()}
    groups = {group: (*names, learners[group]) for group, names in topology.groups.items()}
    return replace(topology, groups=groups, learners=tuple(learners.values()))


def _perhaps_deserted(topology: Topology) -> Topology:
    """With clients that commit, lock and read meanwhile, and nobody who elects by force."""
    dice = random.Random(f"deserted-{topology.seed}")
    is_fitting = 2 <= topology.min_in_sync_replicas < topology.replicas
    if not is_fitting or topology.has_rescue or dice.random() >= _DESERTED_SHARE:
        return topology
    first, second, *others = topology.clients
    jobs = tuple(sorted({*second.jobs, "push", "pull", "ordered"}))
    clients = (first, Client(name=second.name, jobs=jobs), *others)
    return replace(topology, clients=clients, is_deserted=True)


def _draw_log_bytes(segment_bytes: int, dice: random.Random) -> int:
    """Of small segments so many go that retention meets everything else."""
    if segment_bytes >= MIB or dice.random() >= _RETENTION_SHARE:
        return 0
    return segment_bytes * dice.choice((2, 3, 6))


def _draw_segments(large: int, seed: int) -> int:
    """Apart from all other draws, which stay what they were."""
    dice = random.Random(f"segments-{seed}")
    return dice.choice(_SMALL_SEGMENTS) if dice.random() < _SMALL_SHARE else large


_POP_SHARE = 0.3
_FAIL_SHARE = 0.2
_DELAY_SHARE = 0.4
_TRANSACT_SHARE = 0.4
_MOVE_SHARE = 0.2
_BROADCAST_SHARE = 0.2
_REMAP_SHARE = 0.6
"""Of worlds with two broker groups: logical queues move between them."""
_READING_SHARES = (("lite", 0.2), ("resend", 0.3), ("filter", 0.15), ("beyond", 0.3))
"""`resend` finds something to do where push consumers are."""
_HOOK_SHARE = 0.2
"""Of worlds in which no topic changes; all brokers of these have a hook, too."""
_QUERY_SHARE = 0.25
_SLOW_READS_SHARE = 0.3
"""Worlds in which everything counts as far behind, so that consumers read from replicas."""
_JOB_WEIGHTS = (2, 1, 2, 3, 2, 3, 2, 2, *(0,) * (len(JOBS) - 8))
"""How often another client has each of `JOBS`; the last ones are drawn apart."""
_ALTER_SHARE = 0.8
_NOT_BESIDE_ALTER = frozenset({"delay", "transact", "move", "broadcast", "lite", "filter"})
"""A queue that is gone makes dead letters of what waits for it (R35), and who keeps his offsets to
himself, or is moved back, is asked by nobody: other matters than a topic that changes."""
_HASTY_SHARE = 0.4
_RIGHTS_SHARE = 0.15
"""Worlds with users and rights: the operator who changes them, and tenants at two addresses."""
_DOORS_SHARE = 0.25
"""Worlds with clients of RocketMQ's protocols, of those in which they may be."""
_DOORS, _DOOR_WEIGHTS = (("grpc",), ("remoting",), ("grpc", "remoting")), (2, 2, 1)
_TENANT_WORK_SHARE = 0.5
"""Of these: those in which tenants transact, lock and consume, and the operator rests at times; in
the others they come through gateways, too."""
_OPERATORS_OF_RIGHTS = frozenset({"rights", "rights-rests", "keys"})
_INORDER_SHARE = 0.3
"""Worlds with two members of the library's ordered consumer."""
_LEARNER_SHARE = 0.2
_REPLICAS_BESIDE_LEARNERS = 3
"""Larger worlds cost enough as they are."""
_DESERTED_SHARE = 0.3
_SENDING_SHARES = (("ways", 0.5), ("request", 0.25))
"""Worlds in which the first client also sends in other ways, and asks and answers."""
_RESCUE_SHARE = 0.1
"""Worlds in which all members of a group die, and the operator makes another replica master."""


def _draw_clients(dice: random.Random) -> tuple[Client, ...]:
    """A sender and a reader in any case; the others by chance."""
    fixed = [("send",), ("read",)]
    drawn = [
        tuple(sorted(set(dice.choices(JOBS, _JOB_WEIGHTS, k=dice.choice((1, 2, 3))))))
        for _ in range(dice.randint(1, 4))
    ]
    return tuple(
        Client(name=f"client-{number}", jobs=jobs)
        for number, jobs in enumerate([*fixed, *drawn], start=1)
    )


def _with_hasty(clients: tuple[Client, ...], dice: random.Random) -> tuple[Client, ...]:
    """Perhaps the first one sends in haste, too."""
    if dice.random() >= _HASTY_SHARE:
        return clients
    return _with_job(clients, "hasty")


def _with_rights(clients: tuple[Client, ...], *, does_work: bool) -> tuple[Client, ...]:
    """Two tenants, and the operator beside the second one."""
    first, second, *others = clients
    tenants = ("tenant", "tenant-work" if does_work else "tenant-doors")
    operator = "rights-rests" if does_work else "rights"
    return (
        Client(name=first.name, jobs=(*first.jobs, *tenants)),
        Client(name=second.name, jobs=(*second.jobs, *tenants, operator)),
        *others,
    )


def _with_job(clients: tuple[Client, ...], job: str) -> tuple[Client, ...]:
    """The first one does it, too."""
    first, *others = clients
    return (Client(name=first.name, jobs=(*first.jobs, job)), *others)
