"""What tests of simple share with others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.support.http.door import Door, a_batch
from tests.support.service.fakes import GROUP, a_view
from tests.support.service.send import Answers

from paceline import PoppedMessage, SimpleConsumer, SimpleSettings
from paceline.types import ReplicaId


def send(door: Door, *bodies: bytes, queue_id: int = 0) -> None:
    door.service.sender.send(a_batch(*bodies, queue_id=queue_id), Answers(), 0)


@asynccontextmanager
async def a_consumer(
    door: Door, settings: SimpleSettings | None = None, **options: Any
) -> AsyncIterator[SimpleConsumer]:
    """A consumer of group "g" whose cluster is that door."""
    asked = {"group": "g", "topics": ["orders"], **options}
    async with SimpleConsumer(lead(door), settings=settings, **asked) as consumer:
        yield consumer


def lead(door: Door) -> str:
    """The address of the door, which leads its group from now on."""
    view = a_view(version=2)
    group = view.groups[GROUP]
    address = f"127.0.0.1:{door.port}"
    master = replace(group.replicas[ReplicaId(1)], client_address=address)
    group = replace(group, replicas={**group.replicas, ReplicaId(1): master})
    door.service.view_changed(replace(view, groups={GROUP: group}))
    return address


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return [message.body for message in messages]
