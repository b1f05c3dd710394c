"""The part of the admin client that is about who is connected.

Each broker knows whoever is connected to it; all that serve clients are asked, and merged.
"""

import asyncio
from typing import NamedTuple

from paceline.admin.requests import AdminRequests
from paceline.errors import TopicNotFoundError
from paceline.queues import reading_address
from paceline.types import GroupName, TopicName
from paceline.wire.calls.groups import Clients as ClientsCall
from paceline.wire.clients import Kind, Row, conflicts, merged
from paceline.wire.controller_calls.topics import GetTopic
from paceline.wire.names import check_name


class ConnectedClients(NamedTuple):
    """Who is connected, as brokers know it at the moment."""

    clients: list[Row]
    """Each once, with `kind`, `group`, `client_id`, `user` (None while rights are off), `address`,
    `version`, `language`, `topics`, `since_unix_ms`, `heard_unix_ms`, `brokers` ("group/replica");
    consumers also with `message_model`, `mode`, `filters`; RocketMQ's clients with `door`."""
    conflicts: dict[str, list[str]]
    """By consumer group, topics that its members subscribe to in different ways."""
    unreachable: list[GroupName]
    """Broker groups of which nobody answered: who is connected only there is missing."""


class Clients:
    """`AdminClient.clients`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def all(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        kind: Kind | None = None,
    ) -> ConnectedClients:
        """Producers and consumers that are connected: of one group, with one topic, of one kind.

        RocketMQ's producerConnection and consumerConnection. BadNameError; TopicNotFoundError:
        there is no such topic, and nobody asks for it either.
        """
        request = ClientsCall(group=None if group is None else check_name(group, "group"))
        view = await self._requests.view()
        addresses = {name: reading_address(view, name) for name in sorted(view.groups)}
        asked = [(name, address) for name, address in addresses.items() if address is not None]
        answers = await asyncio.gather(
            *(self._requests.asked(address, request) for _, address in asked)
        )
        answered = {
            name: answer
            for (name, _), answer in zip(asked, answers, strict=True)
            if answer is not None
        }
        rows = merged(row for answer in answered.values() for row in answer["clients"])
        chosen = [
            row
            for row in rows
            if kind in (None, row["kind"]) and (topic is None or topic in row["topics"])
        ]
        if topic is not None and not chosen and TopicName(topic) not in view.topics:
            await self._requests.cluster.check_visible(GetTopic(topic=topic))
            raise TopicNotFoundError(
                f"topic {topic} does not exist, and no client that is connected asks for it;"
                " `paceline topic list` shows those that do",
                topic=topic,
            )
        return ConnectedClients(
            clients=chosen,
            conflicts=conflicts(rows),
            unreachable=[name for name in addresses if name not in answered],
        )

    __call__ = all  # its former name, for one version: `await admin.clients()`
