"""Who sends messages with keys and looks for them, by key, unique key, id and time (S40, L7).

While faults hit, whatever is found must be true; once all is whole everything that is stored is
found, also what a sender was told nothing about.
"""

import asyncio
import base64
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.producer.producer import Producer
from paceline_chaos.cluster_sim.bodies import crc_of, make_body, value_of
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.jobs.sending import SETTINGS, asking_to_send, enter_outcome
from paceline_chaos.history.basis import Found
from paceline_chaos.history.model import Find, History, Outcome, Send

_BURST_MAX = 4
_BURSTS_OF_KEY = 32
"""About 40 messages: more than one answer holds."""
_SESSION_TURNS = 60
_KEPT_ROWS = 40
_WINDOW_MS = 100
_MARK = "/query-key-"
_DRAIN_KEYS = 12
_DRAIN_ROWS = 2
"""Of each key."""
_TRIES = 5
_DRAIN_S = 8
"""After that nothing more is asked: where a controller is unreachable each view takes seconds."""

Row = dict[str, Any]


class Querier:
    """See the module."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("query")
        self._numbers = 0
        self._sessions = 0
        self._bursts = 0
        self._rows: deque[Found] = deque(maxlen=_KEPT_ROWS)

    async def run(self) -> None:
        """Both at the same time, until it is over."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all(), name="send-keyed")
            group.create_task(self._ask_all(), name="query")

    # -- sending -----------------------------------------------------------------------------------

    def _key(self) -> str:
        return f"{self._around.alias}{_MARK}{self._bursts // _BURSTS_OF_KEY}"

    async def _send_all(self) -> None:
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            producer = Producer(cluster, settings=SETTINGS)
            async with around.session(partial(producer.close, timeout_ms=0), cluster.close):
                await producer.start()
                for _ in around.turns(_SESSION_TURNS):
                    await self._burst(producer)
                    await around.think()

    async def _burst(self, producer: Producer) -> None:
        """Messages of the present key, and some of other keys and none between them."""
        around, asked = self._around, []
        self._bursts += 1
        for _ in range(around.whole(1, _BURST_MAX)):
            key = around.choice((self._key(), self._key(), f"{self._key()}-not", None))
            self._numbers += 1
            value = f"{around.alias}-query-{self._numbers}"
            body = make_body(value, around.whole(8, around.body_bytes_max))
            session = f"{around.alias}/query-{self._sessions}"
            asking = asking_to_send(around, value, body, session, key=key)
            try:
                asked.append((asking, producer.send(Message(around.topic, body, key=key))))
            except PacelineError as error:
                asking.raised(error)
        for asking, sending in asked:
            await enter_outcome(asking, sending)

    # -- asking ------------------------------------------------------------------------------------

    async def _ask_all(self) -> None:
        around = self._around
        while not around.is_over():
            cluster = around.cluster()
            admin = AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS)
            async with around.session(admin.close, cluster.close):
                cluster.start()
                for _ in around.turns(_SESSION_TURNS):
                    await self._ask(admin)
                    await around.think()

    async def _ask(self, admin: AdminClient) -> None:
        around = self._around
        if not self._rows or around.happens(0.3):
            self._rows.extend(await find(around, admin, "key", self._key()) or ())
            return
        row = around.choice(self._rows)
        by = around.choice(("id", "unique_key", "time"))
        self._rows.extend(await find(around, admin, by, _wanted(by, row)) or ())


def _wanted(by: str, row: Found) -> str:
    if by == "id":
        return row.message_id
    if by == "unique_key":
        return row.unique_key
    return f"{row.store_unix_ms - _WINDOW_MS}-{row.store_unix_ms + _WINDOW_MS}"


async def find(around: Around, admin: AdminClient, by: str, wanted: str) -> list[Found] | None:
    """One query and its entry; None: nobody answered."""
    with around.recorder.asking(
        Find, client=around.client, topic=around.topic, by=by, wanted=wanted
    ) as asking:
        try:
            rows = await _ASK[by](admin, around.topic, wanted)
        except PacelineError as error:
            asking.raised(error)
            return None
        found = [_found(row) for row in rows]
        asking.ok(found=tuple(found))
        return found


async def _by_id(admin: AdminClient, topic: str, wanted: str) -> list[Row]:
    return [await admin.messages.get(wanted)]


async def _by_key(admin: AdminClient, topic: str, wanted: str) -> list[Row]:
    return [row async for row in admin.messages.find(topic, key=wanted)]


async def _by_unique_key(admin: AdminClient, topic: str, wanted: str) -> list[Row]:
    return [row async for row in admin.messages.find(topic, unique_key=wanted)]


async def _by_time(admin: AdminClient, topic: str, wanted: str) -> list[Row]:
    begin, end = map(int, wanted.split("-"))
    found = admin.messages.find(topic, begin_unix_ms=begin, end_unix_ms=end)
    return [row async for row in found]


_ASK: dict[str, Callable[[AdminClient, str, str], Awaitable[list[Row]]]] = {
    "id": _by_id,
    "key": _by_key,
    "unique_key": _by_unique_key,
    "time": _by_time,
}


def _found(row: Row) -> Found:
    text = row.get("body")
    body = base64.b64decode(row["body_base64"]) if text is None else text.encode()
    return Found(
        group=str(row["group"]),
        queue=row["queue"],
        offset=row["offset"],
        value=value_of(body),
        crc=crc_of(body),
        key=row["key"] or "",
        message_id=row["message_id"],
        unique_key=row["unique_key"],
        store_unix_ms=row["store_unix_ms"],
    )


async def ask_for_all(cluster: Cluster, around: Around, history: History) -> None:
    """Look for what was sent with keys to be looked for, those of unknown outcome first (L7)."""
    is_known: dict[str, bool] = {}
    for entry in history.entries:
        if isinstance(entry, Send) and entry.key is not None and _MARK in entry.key:
            is_ok = entry.outcome is not Outcome.UNKNOWN
            is_known[entry.key] = is_known.get(entry.key, True) and is_ok
    keys = sorted(is_known, key=lambda key: (is_known[key], key))[:_DRAIN_KEYS]
    deadline = asyncio.get_running_loop().time() + _DRAIN_S
    async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
        insist = partial(_insist, around, admin, deadline)
        for key in keys:
            rows = await insist("key", key)
            for row in rows[:_DRAIN_ROWS]:
                for by in ("id", "unique_key", "time"):
                    await insist(by, _wanted(by, row))


async def _insist(
    around: Around, admin: AdminClient, deadline: float, by: str, wanted: str
) -> list[Found]:
    loop = asyncio.get_running_loop()
    for _ in range(_TRIES):
        if loop.time() > deadline:
            break
        rows = await find(around, admin, by, wanted)
        if rows is not None:
            return rows
        await around.think()
    return []
