"""A cluster in this process for client tests: one controller, brokers, and faults on demand.

Each group has one log that all its brokers share, and sequences are judged by the rules of R31, so
a test can ask the log itself what was stored, how often, and in which order. Brokers speak HTTP
and streams over loopback sockets.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web
from tests.support.app_server import AppServer
from tests.support.client.fake_broker import CLUSTER_ID, FakeBroker
from tests.support.client.fake_calls import FakeGroupCalls
from tests.support.client.fake_log import NO_FAULT, FakeLog, Fault
from tests.support.client.views import view_changes

from paceline.errors import NotMasterError, PacelineError
from paceline.records.header import BatchHeader
from paceline.types import (
    GroupName,
    MasterEpoch,
    QueueId,
    ReplicaId,
    SetEpoch,
    TopicId,
    TopicName,
)
from paceline.wire.cluster import ClusterView, GroupSettings, GroupView, ReplicaView, TopicView
from paceline.wire.static_topics import LogicalQueue, Segment
from paceline.wire.topics import NORMAL
from paceline.wire.views.scope import Scope


class FakeCluster:
    """`async with FakeCluster() as cluster`: groups of brokers and one controller."""

    def __init__(self, *, groups: int = 1, brokers: int = 2, credit_bytes: int = 1 << 25) -> None:
        self.brokers: dict[tuple[str, int], FakeBroker] = {}
        self.logs: dict[str, FakeLog] = {}
        self.view = ClusterView(cluster_id=CLUSTER_ID, version=1)
        self._past: dict[int, ClusterView] = {}
        self.credit_bytes = credit_bytes
        self.fault: Callable[[FakeBroker, BatchHeader], Fault] = lambda broker, header: NO_FAULT
        self.late_stores = 0
        self.makes_topics = False
        self.holds_remaps = False
        """What is asked over HTTP to move does not arrive: its group has no master, say."""
        self.refuses_topics: PacelineError | None = None
        self.unread: set[int] = set()
        """Topic ids that brokers give no messages of, though no view says so."""
        self.break_off_writes = 0
        """How many next writes at the controller are carried out and not answered."""
        self.done: dict[tuple[str, str], dict[str, Any]] = {}
        """Results of commands by session and sequence."""
        self.sessions: set[str] = set()
        self.calls: list[dict[str, Any]] = []
        self.group_calls = FakeGroupCalls()
        self.controller = ""
        self._group_names = [f"g{number + 1}" for number in range(groups)]
        self._brokers_per_group = brokers
        self._changed = asyncio.Event()
        self._server: AppServer | None = None
        self._is_closing = False

    async def __aenter__(self) -> "FakeCluster":
        for group in self._group_names:
            self.logs[group] = FakeLog()
            for replica_id in range(1, self._brokers_per_group + 1):
                broker = self.brokers[(group, replica_id)] = FakeBroker(self, group, replica_id)
                await broker.start()
        app = web.Application()
        app.router.add_get("/v1/routes", self._routes)
        app.router.add_get("/v1/watch", self._watch)
        app.router.add_post("/v1/sessions", self.open_session)
        app.router.add_post("/v1/topics", self._create_topic)
        app.router.add_post("/v1/topics/{topic}/remap", self._remap)
        app.router.add_delete("/v1/topics/{topic}", self._delete_topic)
        self._server = AppServer(app)
        await self._server.start()
        self.controller = self._server.address
        self.view = replace(
            self.view,
            controllers=(self.controller,),
            groups={GroupName(name): self._group_view(name) for name in self._group_names},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._changed.set()
        for broker in self.brokers.values():
            await broker.stop()
        if self._server is not None:
            await self._server.stop()

    # -- what tests do ----------------------------------------------------------------------------

    def add_topic(
        self,
        topic: str,
        queues: int | dict[str, int],
        *,
        groups: list[str] | None = None,
        message_type: str = NORMAL,
    ) -> int:
        table = queues
        if isinstance(table, int):
            table = dict.fromkeys(groups or self._group_names, table)
        topic_id = max((view.topic_id for view in self.view.topics.values()), default=0) + 1
        view = TopicView(
            topic=TopicName(topic),
            message_type=message_type,
            topic_id=TopicId(topic_id),
            queues={GroupName(name): count for name, count in table.items()},
        )
        self.publish(topics={**self.view.topics, view.topic: view}, topic_id_max=topic_id)
        return topic_id

    def alter_topic(self, topic: str, **changes: Any) -> None:
        altered = replace(self.view.topics[TopicName(topic)], **changes)
        self.publish(topics={**self.view.topics, altered.topic: altered})

    def wipe(self, group: str) -> None:
        """Take a broker group's write permission away, as controllers show it."""
        name = GroupName(group)
        groups = self.view.groups
        topics = {
            topic.topic: replace(topic, write_queues={**topic.write_queues, name: 0})
            for topic in self.view.topics.values()
        }
        is_wiped = replace(groups[name], is_write_wiped=True)
        self.publish(groups={**groups, name: is_wiped}, topics=topics)

    def add_static_topic(self, topic: str, groups: list[str]) -> int:
        """One logical queue for each entry of `groups`, and open there."""
        made: dict[str, int] = {}
        logical_queues = []
        for group in groups:
            logical_queues.append(
                LogicalQueue(segments=(_segment(0, group, made.get(group, 0), 0),))
            )
            made[group] = made.get(group, 0) + 1
        topic_id = self.add_topic(topic, made)
        self.alter_topic(topic, logical_queues=tuple(logical_queues))
        return topic_id

    def seal(self, topic: str, number: int) -> None:
        """The broker group seals the open segment of a logical queue; no view shows it yet."""
        view = self.view.topics[TopicName(topic)]
        last = view.logical_queues[number].last
        self.logs[last.group].sealed.add((view.topic_id, last.queue_id))

    def remap(self, topic: str, number: int, group: str) -> None:
        """Seal it, and open the next segment in `group`."""
        self.seal(topic, number)
        view = self.view.topics[TopicName(topic)]
        moved = view.logical_queues[number]
        last, queue = moved.last, view.queues.get(GroupName(group), 0)
        end = last.start + self.logs[last.group].end((view.topic_id, last.queue_id))
        fresh = _segment(last.generation + 1, group, queue, end)
        segments = (*moved.segments[:-1], replace(last, end=end), fresh)
        logical_queues = list(view.logical_queues)
        logical_queues[number] = LogicalQueue(segments=segments)
        queues = {**view.queues, GroupName(group): queue + 1}
        self.alter_topic(
            topic,
            queues=queues,
            read_queues=queues,
            write_queues=queues,
            logical_queues=tuple(logical_queues),
        )

    def logical_bodies(self, topic: str, number: int) -> list[bytes]:
        """What a logical queue holds, segment by segment."""
        view = self.view.topics[TopicName(topic)]
        return [
            body
            for segment in view.logical_queues[number].segments
            for body in self.bodies(segment.group, view.topic_id, segment.queue_id)
        ]

    def delete_topic(self, topic: str) -> None:
        topics = dict(self.view.topics)
        del topics[TopicName(topic)]
        self.publish(topics=topics)

    def elect(self, group: str, replica_id: int | None) -> None:
        """Name another master (or none) under the next epoch."""
        old = self.view.groups[GroupName(group)]
        new = replace(
            old,
            master=None if replica_id is None else ReplicaId(replica_id),
            master_epoch=MasterEpoch(old.master_epoch + 1),
        )
        self.publish(groups={**self.view.groups, GroupName(group): new})

    def publish(self, **changes: Any) -> None:
        self._past[self.view.version] = self.view
        self.view = replace(self.view, version=self.view.version + 1, **changes)
        self._changed.set()
        self._changed = asyncio.Event()
        for log in self.logs.values():  # as real brokers look again at what waits
            log.changed.set()
            log.changed = asyncio.Event()

    def epoch(self, group: str) -> int:
        return self.view.groups[GroupName(group)].master_epoch

    def queue_count(self, group: str, topic_id: int) -> int:
        for topic in self.view.topics.values():
            if topic.topic_id == topic_id:
                return topic.queues.get(GroupName(group), 0)
        return 0

    def refuses_reads(self, topic_id: int) -> bool:
        return topic_id in self.unread or any(
            topic.topic_id == topic_id and not topic.can_read for topic in self.view.topics.values()
        )

    def write_count(self, group: str, topic_id: int) -> int:
        for topic in self.view.topics.values():
            if topic.topic_id == topic_id:
                return topic.write_queues.get(GroupName(group), 0)
        return 0

    def bodies(self, group: str = "g1", topic_id: int = 1, queue: int = 0) -> list[bytes]:
        return self.logs[group].bodies((topic_id, queue))

    async def answer_call(self, broker: FakeBroker, document: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(document)
        if not broker.is_master:
            raise NotMasterError(f"replica {broker.replica_id} is not master", master=None)
        if broker.not_yet is not None:
            raise broker.not_yet
        answer = await self.group_calls.answer(broker, document)
        return {
            **answer,
            "epoch": self.epoch(broker.group),
            "broker": {"group": broker.group, "replica_id": broker.replica_id},
            "confirm": broker.log.confirm,
        }

    # -- inside -----------------------------------------------------------------------------------

    def _group_view(self, name: str) -> GroupView:
        replicas = {
            ReplicaId(broker.replica_id): ReplicaView(
                replica_id=ReplicaId(broker.replica_id),
                store_id=f"{name}-{broker.replica_id}",
                incarnation=1,  # type: ignore[arg-type]
                client_address=broker.address,
                replication_address=broker.address,
            )
            for (group, _), broker in self.brokers.items()
            if group == name
        }
        return GroupView(
            group=GroupName(name),
            master=ReplicaId(1),
            master_incarnation=1,  # type: ignore[arg-type]
            master_epoch=MasterEpoch(1),
            sync_state_set=frozenset(replicas),
            set_epoch=SetEpoch(1),
            settings=GroupSettings(),
            replicas=replicas,
        )

    async def _routes(self, _: web.Request) -> web.Response:
        return web.json_response(self.view.to_json())

    async def open_session(self, request: web.Request) -> web.Response:
        name = request.headers["Paceline-Session"]
        self.sessions.add(name)
        return web.json_response({"session": name, "version": 1}, status=201)

    async def _create_topic(self, request: web.Request) -> web.Response:
        document = await request.json()
        once = request.headers["Paceline-Session"], request.headers["Paceline-Sequence"]
        if once[0] not in self.sessions:
            refusal = {"code": "COMMAND_REFUSED", "detail": "no", "reason": "UNKNOWN_SESSION"}
            return web.json_response(refusal, status=409)
        if once in self.done:
            return web.json_response(self.done[once], status=201)
        if document["topic"] in self.view.topics:
            return web.json_response({"code": "TOPIC_EXISTS", "detail": "it is there"}, status=409)
        if "logical_queues" in document:
            groups = document.get("groups") or self._group_names
            count = document["logical_queues"]
            spread = [groups[number % len(groups)] for number in range(count)]
            self.add_static_topic(document["topic"], spread)
        else:
            self.add_topic(document["topic"], document["queues"])
        made = self.view.topics[document["topic"]].to_json()
        self.done[once] = {**made, "version": self.view.version}
        if self.break_off_writes:
            self.break_off_writes -= 1
            assert request.transport is not None
            request.transport.close()
        return web.json_response(self.done[once], status=201)

    async def _remap(self, request: web.Request) -> web.Response:
        document, topic = await request.json(), request.match_info["topic"]
        if not self.holds_remaps:
            self.remap(topic, document["logical_queue"], document["group"])
        else:
            queues = list(self.view.topics[TopicName(topic)].logical_queues)
            moving = replace(queues[document["logical_queue"]], moving_to=document["group"])
            queues[document["logical_queue"]] = moving
            self.alter_topic(topic, logical_queues=tuple(queues))
        found = self.view.topics[TopicName(topic)].to_json()
        return web.json_response({**found, "version": self.view.version})

    async def _delete_topic(self, request: web.Request) -> web.Response:
        self.delete_topic(request.match_info["topic"])
        return web.json_response({"version": self.view.version})

    async def _watch(self, request: web.Request) -> web.Response:
        version, scope = int(request.query.get("from", -1)), Scope.from_parameters(request.query)
        wait_ms = int(request.query.get("wait_ms", 0))
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while self.view.version <= version and not self._is_closing:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                break
        before = self._past.get(version)
        if request.query.get("changes") == "true" and before is not None:
            changes = view_changes(before, self.view)
            return web.json_response(
                (changes if scope is None else scope.changes(changes)).to_json()
            )
        return web.json_response((self.view if scope is None else scope.view(self.view)).to_json())


def _segment(generation: int, group: str, queue: int, start: int) -> Segment:
    return Segment(
        generation=generation, group=GroupName(group), queue_id=QueueId(queue), start=start
    )
