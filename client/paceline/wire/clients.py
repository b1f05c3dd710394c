"""Pure: what clients tell brokers of themselves, and what is read out of many of them."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from paceline.wire.names import retry_topic

Row: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["producer", "consumer"]

KINDS: tuple[Kind, ...] = ("producer", "consumer")
MODELS = ("clustering", "broadcasting")
MODES = ("concurrent", "ordered", "pull", "simple")
TOPICS_MAX = 1000
"""Topics that one client names."""
VERSION_LENGTH_MAX = 64
LANGUAGE_LENGTH_MAX = 32
DOORS = ("grpc", "remoting")
"""Protocols of RocketMQ by which clients come through a gateway."""
HEARTBEAT_BROKER_INTERVAL_MS = 30_000
"""A client says again who it is after so long (RocketMQ's heartbeatBrokerInterval)."""


def inconsistent_topics(
    subscriptions: Iterable[tuple[Iterable[str], Mapping[str, str]]],
) -> list[str]:
    """Topics that not all members of a group subscribe to, or not with the same filter.

    Each member is (topics, filter by topic). Each message of such a topic is for some members only,
    but any member may get its queue: RocketMQ's classic pitfall.
    """
    group = _Subscriptions()
    for topics, filters in subscriptions:
        group.add(topics, filters)
    return group.inconsistent()


class _Subscriptions:
    """Of one group, member by member."""

    def __init__(self) -> None:
        self._filters: dict[str, set[str | None]] = {}
        self._counts: dict[str, int] = {}
        self._members = 0

    def add(self, topics: Iterable[str], filters: Mapping[str, str]) -> None:
        self._members += 1
        for topic in set(topics):
            self._counts[topic] = self._counts.get(topic, 0) + 1
            self._filters.setdefault(topic, set()).add(filters.get(topic))

    def inconsistent(self) -> list[str]:
        return sorted(
            topic
            for topic, filters in self._filters.items()
            if len(filters) > 1 or self._counts[topic] < self._members
        )


class Conflicts:
    """What `conflicts` finds, client by client: there may be very many."""

    def __init__(self) -> None:
        self._groups: dict[str, _Subscriptions] = {}

    def add(self, client: Row) -> None:
        if client["kind"] != "consumer":
            return
        own = retry_topic(client["group"])  # who sends nothing back does not read it
        topics = [topic for topic in client["topics"] if topic != own]
        if topics:  # a member that chooses its queues itself names none
            group = self._groups.setdefault(client["group"], _Subscriptions())
            group.add(topics, client.get("filters", {}))

    def found(self) -> dict[str, list[str]]:
        found = {group: rows.inconsistent() for group, rows in sorted(self._groups.items())}
        return {group: topics for group, topics in found.items() if topics}


def conflicts(clients: Iterable[Row]) -> dict[str, list[str]]:
    """By consumer group the topics that its members subscribe to in different ways."""
    found = Conflicts()
    for client in clients:
        found.add(client)
    return found.found()


class Merging:
    """What `merged` makes, row by row: there may be very many."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str, str], Row] = {}

    def add(self, row: Row) -> None:
        key = (row["kind"], row["group"], row["client_id"], row.get("user") or "")
        other = self._found.get(key)
        if other is None:
            self._found[key] = {**row, "brokers": list(row["brokers"])}
            return
        newest = row if row["heard_unix_ms"] >= other["heard_unix_ms"] else other
        self._found[key] = {
            **newest,
            "topics": sorted({*row["topics"], *other["topics"]}),
            "since_unix_ms": min(row["since_unix_ms"], other["since_unix_ms"]),
            "brokers": sorted({*row["brokers"], *other["brokers"]}),
        }

    def rows(self) -> list[Row]:
        """In order of kind, group, id, user."""
        return [self._found[key] for key in sorted(self._found)]


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row for each client out of one for each of its connections.

    `brokers` says where it is connected; address and the rest are those of its newest word.
    """
    merging = Merging()
    for row in rows:
        merging.add(row)
    return merging.rows()
