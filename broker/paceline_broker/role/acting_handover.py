"""Handing provisional offsets to the group's next master, as ordinary commit requests (R36).

Commits are max() and name the reset generation, so it does no harm to send one twice, late, or
beside the consumer's own; nobody waits for it. What the master has decided is forgotten, whichever
way; what it could not be asked is kept, over restarts too, until it expires.
"""

import logging
from typing import Any, Protocol

import aiohttp
import orjson

from paceline.errors import StorageError, in_words
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.types import TopicName
from paceline.wire.cluster import ClusterView, GroupView
from paceline.wire.names import retry_topic
from paceline_broker.acting.offsets import Provisional
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.ports import Acting
from paceline_broker.projections.consume_queues import queue_key, queue_of, topic_of
from paceline_broker.projections.locks import token_json

log = logging.getLogger("paceline.acting")

INTERVAL_MS = 500
TIMEOUT_S = 5.0
ROWS_MAX = 1_000
_TAKEN = (None, "OFFSET_MOVED_BACK")
"""Done, or the group has come further, or was reset since."""


class HandOverRole(Protocol):
    """What of the role is looked at."""

    @property
    def acting(self) -> Acting | None: ...

    @property
    def view(self) -> ClusterView | None: ...

    @property
    def group_view(self) -> GroupView | None: ...


class ActingHandover:
    """The periodic work of one broker; `run` ends only by cancellation."""

    def __init__(
        self,
        role: HandOverRole,
        kept: OffsetsFile,
        http: aiohttp.ClientSession,
        clock: Clock,
        *,
        proofs: NodeProofs,
        dial: Dial,
    ) -> None:
        self._role = role
        self._kept = kept
        self._http = http
        self._clock = clock
        self._proofs = proofs
        self._dial = dial

    async def run(self) -> None:
        while True:
            await pause(INTERVAL_MS)
            try:
                await self.hand_over()
            except StorageError as error:
                # What is forgotten in memory only is handed over once more after a restart.
                log.warning("hand_over_not_saved", extra={"fault": error.message})

    async def hand_over(self) -> None:
        """One round: all that is kept, unless there is no master or he does not answer."""
        kept = self._kept
        if not len(kept.offsets):
            return
        if kept.offsets.expire(self._clock.unix_ms()):
            await kept.save()
        for group in kept.offsets.groups():
            rows = sorted(kept.offsets.rows(group).items())
            for at in range(0, len(rows), ROWS_MAX):
                if not await self._hand_rows(group, rows[at : at + ROWS_MAX]):
                    return

    async def _hand_rows(self, group: str, rows: list[tuple[int, Provisional]]) -> bool:
        """Some queues of one consumer group; False: no use to go on now."""
        view, here = self._role.view, self._role.group_view
        master = None if here is None else here.master_view()
        if view is None or here is None or master is None or self._role.acting is not None:
            return False
        queues = {
            int(topic.topic_id): topic.queues.get(here.group, 0) for topic in view.topics.values()
        }
        retries = view.topics.get(TopicName(retry_topic(group)))
        group_id = 0 if retries is None else int(retries.topic_id)
        known = [
            (key, provisional)
            for key, provisional in rows
            if queue_of(key) < queues.get(topic_of(key), 0) and provisional.is_of(group_id)
        ]
        codes: dict[int, str | None] = {
            key: "QUEUE_NOT_FOUND" if provisional.is_of(group_id) else "GROUP_NOT_FOUND"  # R35
            for key, provisional in rows
        }
        # A token may have been fenced with all others, by locks of another acting master: no fault
        # of who committed. So it counts without one then, unless somebody has the lock.
        asking = known
        while asking:
            decided = await self._ask(master.client_address, group, asking)
            if decided is None:
                return False
            codes.update(decided)
            asking = [
                (key, provisional._replace(token=None))
                for key, provisional in asking
                if codes[key] == "LOCK_FENCED" and provisional.token is not None
            ]
        for key, provisional in rows:
            if codes[key] not in _TAKEN:
                log.warning(
                    "provisional_offset_refused",
                    extra={
                        "consumer_group": group,
                        "topic_id": topic_of(key),
                        "queue": queue_of(key),
                        "offset": provisional.offset,
                        "code": codes[key],
                    },
                )
            self._kept.offsets.settle(group, key, provisional)
        await self._kept.save()
        log.info("provisional_offsets_handed_over", extra={"consumer_group": group, "n": len(rows)})
        return True

    async def _ask(
        self, address: str, group: str, rows: list[tuple[int, Provisional]]
    ) -> dict[int, str | None] | None:
        """What the master says of each queue; None: nothing definite."""
        document = {
            "call": "commit",
            "group": group,
            "offsets": [_row(key, provisional) for key, provisional in rows],
        }
        answer = await self._post(address, document)
        # Also a refusal carries the queues, if each was refused for a reason of its own.
        decided = answer.get("offsets")
        if answer.get("acting") or not isinstance(decided, list) or len(decided) != len(rows):
            why = answer.get("detail", "no answer")
            log.info("hand_over_waits", extra={"why": why, "code": answer.get("code")})
            return None
        return {queue_key(row["topic_id"], row["queue"]): row["code"] for row in decided}

    async def _post(self, address: str, document: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that a broker answers, whatever its status; {} if there is none."""
        body, path = orjson.dumps(document), "/v1/call"
        try:
            async with self._proofs.request(
                self._http,
                "POST",
                address,
                path,
                body=body,
                headers={"Content-Type": "application/json"},
                **self._dial.http(address, path),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            ) as answer:
                content = orjson.loads(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as error:
            return {"detail": in_words(error)}
        return content if isinstance(content, dict) else {}


def _row(key: int, provisional: Provisional) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic_id": topic_of(key),
        "queue": queue_of(key),
        "offset": provisional.offset,
        "generation": provisional.generation,
    }
    if provisional.token is not None:
        row["token"] = token_json(provisional.token)
    return row
