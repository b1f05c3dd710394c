"""Which clients are connected to this broker: soft state, told by the clients themselves.

A client says once on each of its connections who it is, again when that changes, and every 30 s.
It is on the list until the connection closes, or until nothing was heard of it for
`channel_expired_timeout_ms` (a peer that vanished without a word). A client without a stream
(single requests over HTTP) stays for as long after its last word. Nothing here decides anything:
lists are for people, allocation asks the coordinator's members, checks go to producers that wait
for them.

`ClientTable` is pure (time comes in).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from paceline.errors import OverloadedError
from paceline.wire.clients import Kind, Row

TEXT_MAX = 16 * 1024 * 1024
"""Characters that all clients of a list have told: some 1,600 each, if there are 10,000."""


@runtime_checkable
class Peer(Protocol):
    """A connection that knows whose it is."""

    @property
    def peer(self) -> str | None:
        """Address of the other end."""

    @property
    def source(self) -> str:
        """Host of the client that it is for: of one that comes through a gateway its own."""


@runtime_checkable
class Introduced(Protocol):
    """A connection that wants to know who speaks over it."""

    def is_client(self, client_id: str) -> None: ...


def text_of(topics: Iterable[str], about: Mapping[str, Any]) -> int:
    """Characters of the lists that a client tells of itself, which may be long."""
    filters: Mapping[str, str] = about.get("filters", {})
    return sum(map(len, topics)) + sum(map(len, filters)) + sum(map(len, filters.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInfo:
    """What a client tells of itself."""

    kind: Kind
    group: str
    client_id: str
    user: str | None
    """Whose it is; None: rights are off."""
    version: str
    language: str
    topics: tuple[str, ...]
    about: Mapping[str, Any]
    """Of consumers: message model, mode, filters."""
    door: str | None = None
    """By which it came to the gateway that tells of it."""

    @property
    def name(self) -> tuple[str, str, str, str | None]:
        return self.kind, self.group, self.client_id, self.user

    @property
    def text(self) -> int:
        """Characters of the lists in it, which may be long."""
        return text_of(self.topics, self.about)


@dataclass(slots=True)
class _Known:
    """One connection of a client."""

    info: ClientInfo
    via: Hashable
    address: str | None
    since_ms: int
    heard_ms: int
    text: int


class ClientTable:
    """The clients of one broker by connection. Pure: `now_ms` is the monotonic clock."""

    def __init__(self, *, expired_ms: int, clients_max: int) -> None:
        self._expired_ms = expired_ms
        self._clients_max = clients_max
        self._known: dict[Hashable, _Known] = {}
        self._text = 0

    def hear(self, info: ClientInfo, *, via: Hashable, address: str | None, now_ms: int) -> None:
        """A client says who it is; a connection is one client's. OverloadedError: too many.

        `via` is None for a single request. The connection of a gateway is that of many clients.
        """
        key = self._key_of(info, via)
        text = info.text
        if not self._has_room_for(key, text):
            self.expire(now_ms)
            if not self._has_room_for(key, text):
                raise OverloadedError(
                    f"{len(self._known)} clients are listed here, and there is no room for more;"
                    " you are served all the same",
                    retry_after_ms=self._expired_ms,
                )
        known = self._forget(key)
        is_same = known is not None and known.info.name == info.name
        since_ms = known.since_ms if known is not None and is_same else now_ms
        self._known[key] = _Known(info, via, address, since_ms, now_ms, text)
        self._text += text

    @staticmethod
    def _key_of(info: ClientInfo, via: Hashable) -> Hashable:
        return info.name if via is None or info.door is not None else via

    def _has_room_for(self, key: Hashable, text: int) -> bool:
        """Whether a client may be listed, or what is listed of it be replaced by so much."""
        known = self._known.get(key)
        if known is None:
            return len(self._known) < self._clients_max and self._text + text <= TEXT_MAX
        return text <= known.text or self._text + text - known.text <= TEXT_MAX

    def _forget(self, key: Hashable) -> _Known | None:
        known = self._known.pop(key, None)
        self._text -= 0 if known is None else known.text
        return known

    def lost(self, via: Hashable) -> None:
        """A connection has closed."""
        self._forget(via)

    def gone(self, info: ClientInfo, *, via: Hashable) -> None:
        """A client has gone, says whoever told of it over `via`. Others may know better."""
        key = self._key_of(info, via)
        known = self._known.get(key)
        if known is not None and known.via == via and known.info.name == info.name:
            self._forget(key)

    def expire(self, now_ms: int) -> None:
        """Forget whom nothing was heard of for too long."""
        silent_ms = now_ms - self._expired_ms
        for key in [key for key, known in self._known.items() if known.heard_ms <= silent_ms]:
            self._forget(key)

    def counts(self) -> Counter[tuple[Kind, str]]:
        """Clients by kind and group."""
        names = {known.info.name: known.info for known in self._known.values()}
        return Counter((info.kind, info.group) for info in names.values())

    def rows(
        self, *, group: str | None, broker: str, now_ms: int, now_unix_ms: int
    ) -> Iterator[Row]:
        """The connections there are now as JSON, one by one, of one group or all; `broker` names
        the answering one."""
        to_unix_ms = now_unix_ms - now_ms
        listed = [known for known in self._known.values() if group in (None, known.info.group)]
        for known in listed:
            yield {
                "kind": known.info.kind,
                "group": known.info.group,
                "client_id": known.info.client_id,
                "user": known.info.user,
                "address": known.address,
                "version": known.info.version,
                "language": known.info.language,
                **({} if known.info.door is None else {"door": known.info.door}),
                "topics": sorted(known.info.topics),
                **known.info.about,
                "since_unix_ms": known.since_ms + to_unix_ms,
                "heard_unix_ms": known.heard_ms + to_unix_ms,
                "brokers": [broker],
            }
