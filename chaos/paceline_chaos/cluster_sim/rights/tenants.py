"""Users with topics of their own, who show their keys, old ones, or none, and try what is others'.

What they may changes all the time (`securing`). They send over streams that stay open meanwhile,
and ask single nodes over HTTP: to store, to read, to commit, to lock, and what there is. Everything
is entered with the access key that was shown: what comes of it is judged by the versions of users
and rights that nodes had (S31, S42, S43).
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from urllib.parse import quote

from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.producer.settings import ProducerSettings
from paceline.queues import master_address
from paceline.types import GroupName
from paceline.wire.calls.locks import Lock as LockRequest
from paceline.wire.calls.locks import LockRow
from paceline.wire.calls.offsets import Commit as CommitRequest
from paceline.wire.calls.offsets import CommitRow
from paceline.wire.cluster import ClusterView
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around, addresses_of
from paceline_chaos.cluster_sim.jobs.consuming import ask_committed, call_group
from paceline_chaos.cluster_sim.jobs.reading import pull_http
from paceline_chaos.cluster_sim.jobs.sending import Sender, asking_to_send
from paceline_chaos.cluster_sim.rights.securing import TENANTS, credentials_of, group_of
from paceline_chaos.history.model import Commit, Lock, Queue, token_number
from paceline_chaos.history.recorder import RecorderOf
from paceline_chaos.history.secured import ListNames

SETTINGS = ProducerSettings(delivery_timeout_ms=2_000, request_timeout_ms=1_000, topic_wait_ms=300)
_SPAN_MS_MIN, _SPAN_MS_MAX = 500, 8_000
"""So long somebody works with one key: streams stay open while rights change."""
WORK_MS_MAX = 16_000
"""So long who has something under way for some time: it outlasts a storm and some of a rest."""
_STRANGER_SHARE = 0.15
_OLD_KEY_SHARE = 0.2
_OWN_SHARE = 0.7
_OFFSET_MAX = 40
_LEASE_MS = 1_000
_VIEW = "/v1/routes"
_LISTS = ("/v1/topics", "/v1/consumer-groups")


class Tenant:
    """See the module."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("tenant")
        self._turns = 0

    async def run(self) -> None:
        """One that sends and one that asks, side by side, until it is over."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all(self._around.apart("tenant-send")), name="send")
            group.create_task(self._ask_all(self._around.apart("tenant-ask")), name="ask")

    async def _send_all(self, around: Around) -> None:
        while not around.is_over():
            self._turns += 1
            mine, _ = somebody(around)
            sender = Sender(mine, settings=SETTINGS, workers=1, label=f"own-{self._turns}-")
            await sender.run()
            await around.think()

    async def _ask_all(self, around: Around) -> None:
        while not around.is_over():
            mine, user = somebody(around)
            cluster = mine.cluster()
            links = GroupLinks(cluster)
            cluster.start()
            try:
                while not mine.is_over():
                    await _Asker(mine, cluster, links, user).ask()
                    await around.think()
            finally:
                await links.close()
                await cluster.close()


def somebody(
    around: Around, *, span_ms_max: float = _SPAN_MS_MAX, own_share: float = _OWN_SHARE
) -> tuple[Around, str]:
    """The surroundings of a user for a while, with a key and a topic; and his name. `own_share`:
    how often the topic is one of his."""
    user, key = around.choice(sorted(TENANTS)), ""
    known = around.keys.get(user)
    if known and not around.happens(_STRANGER_SHARE):
        key = around.choice(known) if around.happens(_OLD_KEY_SHARE) else known[-1]
    owner = user if around.happens(own_share) else around.choice(sorted(TENANTS))
    end_ms = around.clock.monotonic_ms() + around.random.uniform(_SPAN_MS_MIN, span_ms_max)
    mine = replace(
        around,
        topic=around.choice(TENANTS[owner]),
        credentials=credentials_of(key) if key else None,
        recorder=RecorderOf(around.recorder, access_key=key),
        is_over=lambda: around.is_over() or around.clock.monotonic_ms() >= end_ms,
    )
    return mine, user


class _Asker:
    """Single requests of one user."""

    def __init__(self, around: Around, cluster: Cluster, links: GroupLinks, user: str) -> None:
        self._around = around
        self._cluster = cluster
        self._links = links
        self._group = group_of(user)

    async def ask(self) -> None:
        """One of them, about a queue that exists, whether the user sees it or not."""
        around, view = self._around, self._cluster.view
        if view is None or not view.groups:
            await self._pull_blind()
            return
        queue = Queue(around.topic, str(around.choice(sorted(view.groups))), 0)
        acts: Mapping[str, Callable[[Queue], Awaitable[object]]] = {
            "pull": self._pull,
            "post": self._post,
            "list": self._list,
            "commit": self._commit,
            "query": self._query,
            "lock": self._lock,
        }
        await acts[around.choice(("pull", "pull", "post", "post", "list", *acts))](queue)

    async def _pull_blind(self) -> None:
        """Whoever is shown no view may still know where brokers are."""
        around = self._around
        if not around.brokers:
            return
        address = around.choice(around.brokers)[0]
        group, dash, _ = around.node(address).partition("-")
        if dash:
            await pull_http(
                self._cluster, around, address, Queue(around.topic, group, 0), 0, assignment=""
            )

    async def _pull(self, queue: Queue) -> None:
        around = self._around
        addresses = addresses_of(self._cluster, queue.group)
        if addresses:
            offset = around.choice((0, around.whole(0, _OFFSET_MAX)))
            await pull_http(
                self._cluster, around, around.choice(addresses), queue, offset, assignment=""
            )

    async def _post(self, queue: Queue) -> None:
        around, view = self._around, self._cluster.view
        address = None if view is None else master_address(view, GroupName(queue.group))
        if address is None:
            return
        value = f"{around.alias}-posted-{around.recorder.now_us()}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        document = {
            "messages": [{"body_base64": base64.b64encode(body).decode()}],
            "queue": queue.queue,
        }
        asking = asking_to_send(around, value, body, f"{around.alias}/post", is_idempotent=False)
        path = f"/v1/topics/{quote(queue.topic, safe='')}/messages"
        try:
            answer = await self._cluster.http.send(
                "POST", address, path, document, timeout_ms=CALL_TIMEOUT_MS
            )
        except PacelineError as error:
            asking.raised(error, node=around.node(address))
            return
        [row] = answer["messages"]
        asking.ok(
            node=around.node(address),
            queue=queue,
            offset=-1 if row["offset"] is None else row["offset"],
            epoch=answer["epoch"],
            is_duplicate=row["duplicate"],
            is_confirmed=row["confirmed"],
        )

    async def _list(self, queue: Queue) -> None:
        """Topics and consumer groups of a controller, or all that a broker's view shows."""
        around = self._around
        brokers = addresses_of(self._cluster, queue.group)
        is_view = bool(brokers) and around.happens(0.5)
        address = around.choice(brokers) if is_view else around.choice(around.bootstrap)
        path = _VIEW if is_view else around.choice(_LISTS)
        with around.recorder.asking(
            ListNames, client=around.client, what=path, node=around.node(address)
        ) as asking:
            try:
                answer = await self._cluster.http.get(address, path, timeout_ms=CALL_TIMEOUT_MS)
            except PacelineError as error:
                asking.raised(error)
                return
            if is_view:
                shown = ClusterView.from_json(answer)
                topics = [str(name) for name in shown.topics]
                groups = [str(name) for name in shown.consumer_groups]
            else:
                topics = [row["topic"] for row in answer.get("topics", ())]
                groups = [row["group"] for row in answer.get("groups", ())]
            asking.ok(topics=tuple(topics), consumer_groups=tuple(groups))

    async def _query(self, queue: Queue) -> None:
        await ask_committed(self._around, self._links, self._group, queue)

    async def _commit(self, queue: Queue) -> None:
        """Nothing was processed: at the beginning."""
        around = self._around
        row = CommitRow(topic=queue.topic, queue=queue.queue, offset=0)
        with around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=self._group,
            member=f"{around.alias}/tenant",
            queue=queue,
            offset=0,
        ) as asking:
            try:
                request = CommitRequest(group=self._group, offsets=[row])
                reply = await call_group(self._links, queue, request)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok(is_provisional=reply.envelope.acting)

    async def _lock(self, queue: Queue) -> None:
        around = self._around
        member = f"{around.alias}/tenant"
        row = LockRow(topic=queue.topic, queue=queue.queue)
        with around.recorder.asking(
            Lock,
            client=around.client,
            consumer_group=self._group,
            member=member,
            queue=queue,
            lease_ms=_LEASE_MS,
        ) as asking:
            request = LockRequest(
                group=self._group, client_id=member, lease_ms=_LEASE_MS, queues=[row]
            )
            try:
                reply = await call_group(self._links, queue, request)
            except PacelineError as error:
                asking.raised(error)
                return
            [granted] = reply.answer.queues
            assert granted.token is not None, granted
            asking.ok(token=token_number(granted.token))
