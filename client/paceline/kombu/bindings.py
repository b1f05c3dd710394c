"""Pure: which queues an exchange's messages go to, by what the cluster's view says.

A binding of a queue is an attribute of the queue's topic, so it is replicated by the controllers,
every process has it with its view of the cluster, and it goes with the queue. A queue that is bound
to a fanout exchange has no message of its own there: its consumer group reads the exchange's topic.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from paceline.kombu.names import topic_of_exchange
from paceline.wire.topics import TopicView

DIRECT: Final = "direct"
TOPIC: Final = "topic"
FANOUT: Final = "fanout"
TYPES = frozenset({DIRECT, TOPIC, FANOUT})
QUEUE_ATTRIBUTE = "kombu-queue"
EXCHANGE_ATTRIBUTE = "kombu-exchange"
"""Say what a topic is for, with the whole name."""
VALUE_LENGTH_MAX = 255
"""Of an attribute."""
_PREFIX = "kombu-bound-"


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue's interest in messages of an exchange."""

    exchange: str
    type: str
    routing_key: str

    @property
    def attribute(self) -> tuple[str, str]:
        """Name and value. The name is that of the binding: to bind twice changes nothing, and two
        processes that bind at once do not undo each other."""
        value = json.dumps([self.exchange, self.type, self.routing_key], separators=(",", ":"))
        return _PREFIX + hashlib.sha256(value.encode()).hexdigest()[:16], value

    def wants(self, routing_key: str) -> bool:
        """Whether a message with that key is for the queue."""
        if self.type == FANOUT:
            return True
        if self.type == TOPIC:
            return _matches(self.routing_key.split("."), routing_key.split("."))
        return self.routing_key == routing_key


def bindings_of(attributes: Mapping[str, str]) -> Iterator[Binding]:
    """Those that a queue's topic has on it."""
    for name, value in attributes.items():
        if name.startswith(_PREFIX):
            exchange, type_, routing_key = json.loads(value)
            yield Binding(exchange, type_, routing_key)


def fanouts_of(attributes: Mapping[str, str]) -> list[str]:
    """The topics of the fanout exchanges that a queue is bound to, by name."""
    found = (one.exchange for one in bindings_of(attributes) if one.type == FANOUT)
    return sorted(topic_of_exchange(exchange) for exchange in found)


@dataclass
class RoutingTable:
    """The bindings of one view, by exchange."""

    exchanges: frozenset[str] = frozenset()
    """Those that have a topic: somebody reads it."""
    bound: dict[str, list[tuple[Binding, str]]] = field(default_factory=dict)
    """Exchange -> bindings to queues that have their own copies, with the queue's name."""

    @classmethod
    def of(cls, topics: Iterable[TopicView]) -> "RoutingTable":
        exchanges: set[str] = set()
        bound: dict[str, list[tuple[Binding, str]]] = {}
        for topic in topics:
            if EXCHANGE_ATTRIBUTE in topic.attributes:
                exchanges.add(topic.attributes[EXCHANGE_ATTRIBUTE])
            queue = topic.attributes.get(QUEUE_ATTRIBUTE)
            if queue is None:
                continue
            for binding in bindings_of(topic.attributes):
                if binding.type != FANOUT:
                    bound.setdefault(binding.exchange, []).append((binding, queue))
        return cls(frozenset(exchanges), bound)

    def queues(self, exchange: str, routing_key: str) -> list[str]:
        """The queues that get a copy of their own, each once, by name."""
        found = self.bound.get(exchange, ())
        return sorted({queue for binding, queue in found if binding.wants(routing_key)})


def topic_attributes(*, queue: str = "", exchange: str = "") -> dict[str, str]:
    """What a topic that is made for a queue or an exchange says of itself."""
    name, value = (QUEUE_ATTRIBUTE, queue) if queue else (EXCHANGE_ATTRIBUTE, exchange)
    return {name: value}


def _matches(pattern: list[str], words: list[str]) -> bool:
    """AMQP's: `*` is one word, `#` any number of them, also none."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(_matches(rest, words[count:]) for count in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and _matches(rest, words[1:])
