"""Questions about open transactions (39) to producers that are connected."""

import asyncio
import binascii
import logging
from collections.abc import Iterable

from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.transaction_ends import HANDLE_KIND
from paceline.types import GroupName
from paceline.wire import properties as names
from paceline.wire.calls.messages import CheckRow, TransactionChecks
from paceline.wire.message_ids import parse_handle
from paceline_gateway.remoting.codec.codes import TRANSACTION_PREPARED, RequestCode
from paceline_gateway.remoting.codec.message_ids import message_id, physical_offset
from paceline_gateway.remoting.codec.store_format import Stored, encode_message, properties_of
from paceline_gateway.remoting.state.groups import Groups
from paceline_gateway.remoting.state.peers import Peer

log = logging.getLogger("paceline.gateway")

_WAIT_MS = 15_000
_SLACK_MS = 3_000
_RETRY_MS = 500


class Checks:
    """Asks for questions while producers of a group are connected. Owned by one user."""

    def __init__(self, cluster: Cluster, links: GroupLinks, groups: Groups, client_id: str) -> None:
        self._cluster = cluster
        self._links = links
        self._groups = groups
        self._client_id = client_id
        self._tasks: dict[tuple[str, GroupName], asyncio.Task[None]] = {}
        groups.on_producers = self._changed

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks.values())

    def _changed(self, producer_group: str) -> None:
        view = self._cluster.view
        assert view is not None
        for group in view.groups:
            place = (producer_group, group)
            if producer_group not in self._groups.producers:
                task = self._tasks.pop(place, None)
                if task is not None:
                    task.cancel()
            elif place not in self._tasks:
                self._tasks[place] = spawn(self._poll(*place), name=f"checks-{producer_group}")

    async def _poll(self, producer_group: str, group: GroupName) -> None:
        request = TransactionChecks(
            group=producer_group, client_id=self._client_id, wait_ms=_WAIT_MS
        )
        limit_ms = _WAIT_MS + _SLACK_MS
        while True:
            try:
                answer, _ = await self._links.call(
                    group, request, timeout_ms=limit_ms, attempt_ms=limit_ms
                )
            except PacelineError as error:
                log.debug("checks_failed", extra={"error": error.message})
                await pause(_RETRY_MS)
                continue
            for number, row in enumerate(answer.checks):
                self._ask(producer_group, group, row, number)

    def _ask(self, producer_group: str, group: GroupName, row: CheckRow, number: int) -> None:
        clients = self._groups.producers.get(producer_group, {})
        peers = list(_open_at(group, (peer for peers in clients.values() for peer in peers)))
        if peers:  # else the broker asks again later
            check(peers[(row.checks + number) % len(peers)], row)


def _open_at(group: GroupName, peers: Iterable[Peer]) -> Iterable[Peer]:
    return (peer for peer in peers if peer.is_open and peer.place.group == group)


def check(peer: Peer, row: CheckRow) -> None:
    """Ask a producer about a half: it answers by ending the transaction."""
    place = parse_handle(HANDLE_KIND, row.transaction_id)
    physical = physical_offset(place.position, place.number)
    body = binascii.a2b_base64(row.body_base64 or "") if row.body is None else row.body.encode()
    properties, times, flag = properties_of(
        row.properties, key=row.key, tag=row.tag, unique_key=row.unique_key
    )
    properties[names.TRANSACTION_CHECK_TIMES] = str(row.checks)
    unique_key = properties[names.UNIQ_KEY]
    message = Stored(
        *(row.topic, row.queue, 0, physical, body, properties, row.born_unix_ms),
        *(row.store_unix_ms, times, TRANSACTION_PREPARED, flag),
    )
    peer.tell(
        RequestCode.CHECK_TRANSACTION_STATE,
        {
            "topic": row.topic,
            "tranStateTableOffset": "0",
            "commitLogOffset": str(physical),
            "msgId": unique_key,
            "transactionId": unique_key,
            "offsetMsgId": message_id(peer.store_host, physical),
        },
        encode_message(message, peer.store_host),
    )
