"""Calls about clients: who somebody is, and who is connected (docs/protocol/stream.md)."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.wire.clients import (
    KINDS,
    LANGUAGE_LENGTH_MAX,
    VERSION_LENGTH_MAX,
    Conflicts,
    Kind,
    Merging,
    Row,
)
from paceline.wire.fields import Fields
from paceline.wire.names import CLIENT_ID_PATTERN, check_name, check_readable_topic_name
from paceline_broker.ports import Role
from paceline_broker.service.calls import Call
from paceline_broker.service.groups.clients import ClientInfo, ClientTable, Peer
from paceline_broker.service.groups.member_fields import about_member, topics_of
from paceline_broker.service.settings import ServiceSettings

TURN_TOPICS = 1000
"""Clients, and the topics that they name, in one turn of the loop."""
_TEXT = r"[\x20-\x7e]+"


class ClientCalls:
    """`client` and `clients`; the table outlives every role, as the connections do."""

    def __init__(self, role: Role, clock: Clock, settings: ServiceSettings) -> None:
        self._role = role
        self._clock = clock
        self.clients = ClientTable(
            expired_ms=settings.channel_expired_timeout_ms, clients_max=settings.clients_max
        )

    @property
    def table(self) -> dict[str, Call]:
        return {"client": self._client, "clients": self._clients}

    async def _client(self, fields: Fields) -> dict[str, Any]:
        kind = _kind_of(fields)
        info = ClientInfo(
            kind=kind,
            group=check_name(fields.text("group"), "group"),
            client_id=fields.text("client_id", pattern=CLIENT_ID_PATTERN),
            version=fields.text("version", length_max=VERSION_LENGTH_MAX, pattern=_TEXT),
            language=fields.text("language", length_max=LANGUAGE_LENGTH_MAX, pattern=_TEXT),
            topics=topics_of(fields),
            about=about_member(fields) if kind == "consumer" else {},
        )
        fields.done()
        caller = fields.caller
        address = caller.peer if isinstance(caller, Peer) else None
        now_ms = self._clock.monotonic_ms()
        self.clients.hear(info, via=caller, address=address, now_ms=now_ms)
        return {}

    async def _clients(self, fields: Fields) -> dict[str, Any]:
        kind = _kind_of(fields) if fields.has("kind") else None
        group = check_name(fields.text("group"), "group") if fields.has("group") else None
        topic = fields.text("topic") if fields.has("topic") else None
        fields.done()
        if topic is not None:
            check_readable_topic_name(topic)
        now_ms = self._clock.monotonic_ms()
        self.clients.expire(now_ms)
        identity = self._role.identity
        broker = f"{identity.group}/{identity.replica_id or 0}"
        now_unix_ms = self._clock.unix_ms()
        listed = self.clients.rows(
            group=group, broker=broker, now_ms=now_ms, now_unix_ms=now_unix_ms
        )
        merging, different = Merging(), Conflicts()
        async for row in _in_turns(listed):
            merging.add(row)
        rows = []
        async for row in _in_turns(merging.rows()):
            different.add(row)  # among all members, whatever else is asked for
            if kind in (None, row["kind"]) and (topic is None or topic in row["topics"]):
                rows.append(row)
        return {"clients": rows, "conflicts": different.found()}


async def _in_turns(rows: Iterable[Row]) -> AsyncIterator[Row]:
    """The rows; others have their turn in between."""
    looked = 0
    for row in rows:
        yield row
        looked += 1 + len(row["topics"])
        if looked > TURN_TOPICS:
            looked = 0
            await pause(0)


def _kind_of(fields: Fields) -> Kind:
    given = fields.text("kind")
    for kind in KINDS:
        if given == kind:
            return kind
    raise fields.wrong("kind", f"one of {', '.join(KINDS)}", given)
