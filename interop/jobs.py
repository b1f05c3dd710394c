"""Pure: what a client's program is told to do, and which messages it then sends.

interop/README.md has the contract of the programs, in whatever language they are written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

Value = TypeVar("Value")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer wants of its topic."""

    type: str = "tag"
    """tag or sql"""
    expression: str = "*"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one program. Every field is in its JSON document."""

    scenario: str
    endpoint: str = ""
    """HOST:PORT for clients of gRPC; several are separated by semicolons."""
    nameserver: str = ""
    """The same for remoting clients."""
    topic: str
    group: str = ""
    """The consumer group; of a remoting producer, its producer group."""
    access_key: str = "nobody"
    """Not empty: two clients refuse to start without, and nobody checks it while rights are off."""
    secret_key: str = "nothing"
    tls: bool = False
    tls_ca: str = ""
    """Path of the authority, for clients that check whose certificate it is: Python's and Node's,
    which are told by gRPC's own variable of the environment."""
    instance: str | None = None
    """Of a Java remoting client: its id is address@instance. None: one of its process."""
    namespace: str = ""

    # Senders.
    count: int = 0
    prefix: str = "m"
    """Message i, from 0, has the body "<prefix>-<i>", then a colon and its answer if it has one."""
    body_size: int = 0
    """Bodies shorter than that, in characters, are filled up with dots."""
    in_flight: int = 1
    """Of the scenario `load`: how many it sends at a time."""
    rate: float = 0
    """Messages a second; 0: one after the other without a pause."""
    tags: Sequence[str] = ()
    """Message i has the (i mod length)-th one, so have the next four. An empty tag is none."""
    groups: Sequence[str] = ()
    priorities: Sequence[int] = ()
    answers: Sequence[str] = ()
    """commit, rollback; check-commit, check-rollback: not answered until the server asks."""
    keys: int = 0
    """How many keys each message has: "<prefix>-<i>-k0" and so on."""
    properties: Mapping[str, str] = {}
    """Of every message; besides it has "index", which is i."""
    delay_ms: int = 0
    delay_level: int = 0
    """Instead of it, of remoting clients that have no exact delays."""

    # Queries of remoting clients.
    by: str = ""
    """key, unique-key or offset-id"""
    value: str = ""

    # Consumers.
    filter: Filter = Filter()
    max_retries: int = 0
    """Of a remoting client, which tells brokers; 0: its own default."""
    fail_first: int = 0
    """Deliveries up to this attempt fail; a simple consumer does not acknowledge them."""
    batch: int = 16
    await_ms: int = 5000
    invisible_ms: int = 30_000
    """Of a simple consumer, whose minimum at RocketMQ is 10 s."""
    renew_ms: int = 0
    """A simple consumer makes its message invisible for so long before it acknowledges."""
    hold_ms: int = 0
    """... and acknowledges it after so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One message as a consumer should see it."""

    index: int
    body: str
    tag: str | None
    keys: frozenset[str]
    properties: Mapping[str, str]
    message_group: str | None
    answer: str | None


def expected(job: Job) -> dict[str, Expected]:
    """All messages of a sender, by their bodies."""
    made = (_message(job, index) for index in range(job.count))
    return {message.body: message for message in made}


def recalled(job: Job) -> set[str]:
    """The bodies that `send-recall` takes back: every second one."""
    return {message.body for message in expected(job).values() if message.index % 2 == 1}


def _message(job: Job, index: int) -> Expected:
    answer = _chosen(job.answers, index)
    body = f"{job.prefix}-{index}" + ("" if answer is None else f":{answer}")
    return Expected(
        index=index,
        body=body.ljust(job.body_size, "."),
        tag=_chosen(job.tags, index) or None,
        keys=frozenset(f"{job.prefix}-{index}-k{key}" for key in range(job.keys)),
        properties={**job.properties, "index": str(index)},
        message_group=_chosen(job.groups, index),
        answer=answer,
    )


def _chosen(values: Sequence[Value], index: int) -> Value | None:
    return values[index % len(values)] if values else None
