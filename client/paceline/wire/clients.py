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
HEARTBEAT_BROKER_INTERVAL_MS = 30_000
"""A client says again who it is after so long (RocketMQ's heartbeatBrokerInterval)."""


def inconsistent_topics(
    subscriptions: Iterable[tuple[Iterable[str], Mapping[str, str]]],
) -> list[str]:
    """Topics that not all members of a group subscribe to, or not with the same filter.

    Each member is (topics, filter by topic). Each message of such a topic is for some members only,
    but any member may get its queue: RocketMQ's classic pitfall.
    """
    told: dict[str, set[str | None]] = {}
    counts: dict[str, int] = {}
    members = 0
    for topics, filters in subscriptions:
        members += 1
        for topic in set(topics):
            counts[topic] = counts.get(topic, 0) + 1
            told.setdefault(topic, set()).add(filters.get(topic))
    return sorted(topic for topic in told if len(told[topic]) > 1 or counts[topic] < members)


def conflicts(clients: Iterable[Row]) -> dict[str, list[str]]:
    """By consumer group the topics that its members subscribe to in different ways."""
    groups: dict[str, list[tuple[list[str], Mapping[str, str]]]] = {}
    for client in clients:
        if client["kind"] == "consumer":
            own = retry_topic(client["group"])  # who sends nothing back does not read it
            topics = [topic for topic in client["topics"] if topic != own]
            if topics:  # a member that chooses its queues itself names none
                groups.setdefault(client["group"], []).append((topics, client.get("filters", {})))
    found = {group: inconsistent_topics(rows) for group, rows in sorted(groups.items())}
    return {group: topics for group, topics in found.items() if topics}


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row for each client out of one for each of its connections.

    `brokers` says where it is connected; address and the rest are those of its newest word.
    """
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = (row["kind"], row["group"], row["client_id"])
        other = found.get(key)
        if other is None:
            found[key] = {**row, "brokers": list(row["brokers"])}
            continue
        newest = row if row["heard_unix_ms"] >= other["heard_unix_ms"] else other
        found[key] = {
            **newest,
            "topics": sorted({*row["topics"], *other["topics"]}),
            "since_unix_ms": min(row["since_unix_ms"], other["since_unix_ms"]),
            "brokers": sorted({*row["brokers"], *other["brokers"]}),
        }
    return [found[key] for key in sorted(found)]
