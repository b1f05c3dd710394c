"""The simple consumer: receive messages, process them, acknowledge each (RocketMQ's POP model).

It owns no queue. Every receive asks the masters of all broker groups; each message is given to one
receiver and is invisible to the others until it is acknowledged or its time is over, then it comes
again. What a slower broker gave when another was quicker is kept for the next receive, or given
back.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from paceline.consumer.fetch.batch_reader import BatchReader, Range
from paceline.consumer.group.membership import MemberInfo
from paceline.consumer.group_settings import settings_of
from paceline.consumer.hooks import ConsumeHooks
from paceline.consumer.pop.ack_batcher import AckBatcher, receipts_call, refusal
from paceline.consumer.pop.lease_renewal import LeaseRenewal
from paceline.consumer.pop.popped_message import Acknowledged, PoppedMessage, popped
from paceline.consumer.process.failure import as_first_sent
from paceline.consumer.settings.simple import WAIT_MS_MAX, SimpleSettings
from paceline.errors import (
    ConfigError,
    DeadlineError,
    OutcomeUnknownError,
    PacelineError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.filters import ALL, Subscription, subscriptions
from paceline.net.backoff import Backoff
from paceline.net.client_base import Client
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.net.group_links import PASSING, GroupLinks
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.types import GroupName, TopicName
from paceline.wire.calls import pop as wire
from paceline.wire.cluster import TopicView
from paceline.wire.names import check_name, check_topic_name, group_of_retries
from paceline.wire.receipts import Receipt, format_handle, parse_handle

log = logging.getLogger("paceline.client")

_SILENCE_MS = 3_000
"""A broker that answers this much later than it was asked to wait is given up."""
_KEPT_BYTES_MAX = 16 * 1024 * 1024


class _Kept(NamedTuple):
    """Messages that no receive has returned yet; worth it until `good_until` (loop time)."""

    messages: list[PoppedMessage]
    good_until: float


class _Asking:
    """One broker group asked by one receive."""

    __slots__ = ("error", "good_until", "group", "is_over", "messages")

    def __init__(self, group: GroupName) -> None:
        self.group = group
        self.messages: list[PoppedMessage] = []
        self.good_until = 0.0
        """Loop time at which half of their invisible time is over."""
        self.error: PacelineError | None = None
        self.is_over = False
        """The receive has returned: it is not asked again."""


class SimpleConsumer(Client):
    """A receiver of a consumer group on one event loop; `async with`, or `start` and `close`."""

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        group: str,
        topics: Sequence[str | Subscription] = (),
        settings: SimpleSettings | None = None,
        client_id: str | None = None,
        is_introduced: bool = True,
    ) -> None:
        """`topics`: names, or subscriptions with a filter; without any it only acknowledges.

        `client_id` is for people who look at the brokers (default: random). A group that broadcasts
        knows its clients by it: one that comes again goes on where it stood, one of a random id is
        forgotten when it closes. A gateway, which has receivers of many clients, tells of those
        itself (`is_introduced`). BadNameError for names, ConfigError for settings.
        """
        self._settings = settings or SimpleSettings()
        self._settings.validate()
        self.group = check_name(group, "group")
        self.hooks = ConsumeHooks(self._settings.consume_hooks, consumer_group=self.group)
        asked = subscriptions(topics)
        self._topics = [TopicName(check_topic_name(one.topic)) for one in asked]
        self._filters = {one.topic: one.filter for one in asked if one.filter != ALL}
        super().__init__(bootstrap)
        self._cluster.use(topics=self._topics, consumer_groups=[self.group])
        self._comes_again = client_id is not None
        self.client_id = client_id or f"client-{self._cluster.random.token(8).hex()}"
        me = MemberInfo(
            group=self.group,
            client_id=self.client_id,
            topics=[str(topic) for topic in self._topics],
            mode="simple",
            filters=self._filters,
        )
        self._links = GroupLinks(self._cluster, me.introduction if is_introduced else None)
        self._reader = BatchReader(self._cluster, self._links, kept_bytes_max=_KEPT_BYTES_MAX)
        self._lanes: dict[GroupName, AckBatcher] = {}
        self._begun: dict[TopicName, TopicView] = {}
        """As they were when they were first received."""
        self._kept: deque[_Kept] = deque()
        self._late: dict[asyncio.Task[None], _Asking] = {}
        """Asked of brokers by receives that have returned: what still comes is kept."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing = LeaseRenewal(
            self._change, limit_ms=self._settings.auto_renew_ms_max, group=self.group
        )
        self._is_closing = False

    async def close(self) -> None:
        """Give back what no receive has returned, wait for acknowledgements, disconnect."""
        if self._is_closing:
            return
        self._is_closing = True
        await self._renewing.close()
        self._end_waiting(self._groups())
        if self._late:
            await asyncio.wait(set(self._late), timeout=1.0)
        await cancel_and_wait(*self._late)
        while self._kept:
            self._give_back(self._kept.popleft().messages)
        for lane in self._lanes.values():
            await lane.flush()
        is_broadcasting = settings_of(self._cluster.view, self.group).is_broadcasting
        if is_broadcasting and not self._comes_again:
            self._end_waiting(self._groups(), has_gone=True)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self._settings.call_timeout_ms / 1000)
        await cancel_and_wait(*self._tasks)
        await self._links.close()
        await self._leave_cluster()

    # -- receiving --------------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int | None = None,
        *,
        invisible_ms: int | None = None,
        wait_ms: int | None = None,
    ) -> list[PoppedMessage]:
        """At least one message from any broker, or none after `wait_ms` (defaults: the settings).

        In order within each queue. TopicNotFoundError; BadRequestError for values out of range; an
        outage is waited out. A receive that is cancelled keeps what comes for the next one.
        """
        settings = self._settings
        count = settings.max_messages if max_messages is None else max_messages
        invisible = settings.invisible_ms if invisible_ms is None else invisible_ms
        wait = settings.wait_ms if wait_ms is None else wait_ms
        if not self._topics:
            raise ConfigError("this consumer has no topics to receive from")
        kept = self._take_kept(count)
        if kept:
            return self._handed(kept, invisible)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait / 1000
        by_group = await self._topics_by_group()
        under_way: dict[asyncio.Task[None], _Asking] = {}
        for group, topics in by_group.items():
            asking = _Asking(group)
            work = self._ask_for(asking, topics, count, invisible, deadline)
            under_way[spawn(work, name="receive")] = asking
        return self._handed(await self._first_of(under_way), invisible)

    async def _first_of(
        self, under_way: "dict[asyncio.Task[None], _Asking]"
    ) -> list[PoppedMessage]:
        """What the quickest broker has; the others are told to wait no longer."""
        found: list[PoppedMessage] = []
        error: PacelineError | None = None
        try:
            while under_way and not found:
                done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in under_way if task in done]:  # in their order
                    asking = under_way.pop(task)
                    error = asking.error or error
                    if found:
                        self._keep(asking)
                    else:
                        found = asking.messages
        finally:
            self._late.update(under_way)
            for task, asking in under_way.items():
                asking.is_over = True
                task.add_done_callback(self._came_late)
            self._end_waiting([asking.group for asking in under_way.values()])
        if error is not None and not found:
            raise error
        return found

    async def _ask_for(
        self,
        asking: _Asking,
        topics: list[TopicName],
        count: int,
        invisible_ms: int,
        deadline: float,
    ) -> None:
        request = wire.Receive(
            group=self.group,
            client_id=self.client_id,
            topics=[self._asked_of(topic, asking.group) for topic in topics],
            max_messages=count,
            invisible_ms=invisible_ms,
            start="last" if self._settings.start == "last" else "first",
            order=self._settings.ordered,
        )
        try:
            asking.messages = await self._ask(asking, request, deadline)
        except PacelineError as error:
            asking.error = error

    def _asked_of(self, topic: TopicName, group: GroupName) -> str | wire.FilteredTopic:
        now, begun = self._cluster.topic(topic), self._begun[topic]
        is_later = now is not None and (now.topic_id != begun.topic_id or group not in begun.queues)
        wanted = self._filters.get(topic, ALL)
        if wanted == ALL and not is_later:
            return topic
        return wire.FilteredTopic(
            topic=topic,
            type=cast(wire.FilterType, wanted.type),
            expression=wanted.expression,
            is_later=is_later,
        )

    async def _ask(
        self, asking: _Asking, request: wire.Receive, deadline: float
    ) -> list[PoppedMessage]:
        """Messages of one broker group, whoever leads it meanwhile; none at the deadline."""
        group = asking.group
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._cluster.random, first_ms=10)
        link = self._links.link(group)
        is_first = True
        while is_first or (loop.time() < deadline and not asking.is_over):
            is_first = False
            wait_ms = min(WAIT_MS_MAX, max(0, int((deadline - loop.time()) * 1000)))
            try:
                connection = await link.wait_up(timeout_ms=wait_ms + _SILENCE_MS)
                if asking.is_over:
                    break  # it ended before there was a connection to say so on
                wait_ms = min(WAIT_MS_MAX, max(0, int((deadline - loop.time()) * 1000)))
                asked_at = loop.time()
                request.wait_ms = wait_ms
                answer, envelope = await connection.call(request, timeout_ms=wait_ms + _SILENCE_MS)
                link.saw_epoch(envelope.epoch)
                if answer.messages:
                    asking.good_until = asked_at + request.invisible_ms / 2000
                    return await self._read(group, answer, asking.good_until)
            except (TopicNotFoundError, QueueNotFoundError, *PASSING) as error:
                if isinstance(error, DeadlineError) and link.connection is not None:
                    link.suspect()
                log.debug("receive_failed", extra={"group": group, "error": error.message})
                await pause(min(backoff.next_ms(), max(0.0, (deadline - loop.time()) * 1000)))
        return []

    async def _read(
        self, group: GroupName, answer: wire.Received, good_until: float
    ) -> list[PoppedMessage]:
        """The messages that a broker has given, each with its receipt."""
        rows = answer.messages
        loop = asyncio.get_running_loop()
        timeout_ms = int(max(1_000, (good_until - loop.time()) * 1000))
        ranges = [Range(*row[:4]) for row in rows]
        read = await self._reader.read(group, ranges, timeout_ms=timeout_ms)
        position, until = answer.position, answer.invisible_until_unix_ms
        namespace = self._cluster.namespace
        full_group = namespace.full_group(self.group)
        found: list[PoppedMessage] = []
        for (topic_id, queue_id, _, _, attempt), messages in zip(rows, read, strict=True):
            for message in messages:
                if group_of_retries(message.topic) is not None:
                    message = as_first_sent(message, namespace)  # noqa: PLW2901
                receipt = Receipt(
                    group, topic_id, queue_id, message.queue_offset, position, attempt
                )
                handle = format_handle(receipt, full_group)
                found.append(popped(message, handle, attempt, until))
        return found

    async def _topics_by_group(self) -> dict[GroupName, list[TopicName]]:
        """Which broker groups to ask for which topics."""
        wait_ms = self._settings.call_timeout_ms // 5
        found: dict[GroupName, list[TopicName]] = {}
        for name in self._topics:
            topic = await self._cluster.wait_topic(name, timeout_ms=wait_ms)
            self._begun.setdefault(name, topic)
            for group in topic.queues:
                found.setdefault(group, []).append(name)
        return found

    def _groups(self) -> list[GroupName]:
        topics = map(self._cluster.topic, self._topics)
        return sorted({group for topic in topics if topic is not None for group in topic.queues})

    @property
    def is_quiet(self) -> bool:
        """Nothing is kept for the next receive, and nothing is still asked for."""
        return not self._kept and not self._late

    # -- what came too late -----------------------------------------------------------------------

    def _take_kept(self, count: int) -> list[PoppedMessage]:
        now = asyncio.get_running_loop().time()
        found: list[PoppedMessage] = []
        while self._kept and len(found) < count:
            messages, good_until = self._kept.popleft()
            if good_until <= now:
                self._give_back(messages)
                continue
            room = count - len(found)
            found += messages[:room]
            if messages[room:]:
                self._kept.appendleft(_Kept(messages[room:], good_until))
        return found

    def _keep(self, asking: _Asking) -> None:
        if asking.messages:
            self._kept.append(_Kept(asking.messages, asking.good_until))

    def _came_late(self, task: "asyncio.Task[None]") -> None:
        self._keep(self._late.pop(task))

    def _end_waiting(self, groups: Iterable[GroupName], *, has_gone: bool = False) -> None:
        """Tell brokers that a receive has ended, so that they give messages to others; or that this
        client does not come back."""
        request = wire.EndReceive(group=self.group, client_id=self.client_id, has_gone=has_gone)
        for group in groups:
            connection = self._links.link(group).connection
            if connection is not None:
                self._spawn(connection.call(request, timeout_ms=_SILENCE_MS))

    def _give_back(self, messages: list[PoppedMessage]) -> None:
        """Let others be given what nobody has looked at, at once, by its newest receipts."""
        by_group: dict[str, list[str]] = {}
        for message in messages:
            by_group.setdefault(message.group, []).append(message.handle)
        for group, handles in by_group.items():
            self._spawn(self._return(group, handles))

    async def _return(self, group: str, handles: list[str]) -> None:
        newest = [await self._renewing.release(handle) for handle in handles]
        await self._change(group, newest, 0, is_unseen=True)

    def _spawn(self, work: Any) -> None:
        async def quietly() -> None:
            try:
                await work
            except PacelineError as error:  # then their time runs out
                log.debug("give_back_failed", extra={"error": error.message})

        task = spawn(quietly(), name="give-back")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- receipts ---------------------------------------------------------------------------------

    async def ack(self, messages: Acknowledged | Iterable[Acknowledged]) -> None:
        """Messages are done and are never given to anybody again; returns when that is certain.

        A message, its handle, or several of either.

        ReceiptExpiredError: the message was given anew, as its invisible time was over (others may
        process it, too); of several messages the others are acknowledged all the same.
        """
        if isinstance(messages, PoppedMessage | str):
            messages = [messages]
        handles = [self._receipt(message) for message in messages]
        if self._settings.auto_renew:
            handles = [(group, await self._renewing.release(handle)) for group, handle in handles]
        by_group: dict[str, list[str]] = {}
        for group, handle in handles:
            by_group.setdefault(group, []).append(handle)
        waiting = [self._lane(GroupName(group)).acknowledge(of) for group, of in by_group.items()]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _receipt(self, message: Acknowledged) -> tuple[str, str]:
        """The broker group that gave it, and the handle."""
        if isinstance(message, str):
            return self._broker_group(message), message
        return message.group, message.handle

    def _broker_group(self, handle: str) -> str:
        """Whose master gave it. InvalidReceiptHandleError."""
        full_group = self._cluster.namespace.full_group(self.group)
        return parse_handle(handle, full_group).broker_group

    def _lane(self, group: GroupName) -> AckBatcher:
        lane = self._lanes.get(group)
        if lane is None:
            timeout_ms = self._settings.call_timeout_ms
            lane = AckBatcher(self._links, group, self.group, self.client_id, timeout_ms=timeout_ms)
            self._lanes[group] = lane
        return lane

    async def change_invisible(self, message: PoppedMessage, invisible_ms: int) -> PoppedMessage:
        """Extend the invisible time: nobody else gets the message for so long from now; 0: at once.

        Returns the message with its new receipt; the old one is void. ReceiptExpiredError as for
        `ack`, also when an earlier attempt of this call succeeded and its answer was lost.
        """
        handle, until_unix_ms = await self.change_handle(message.handle, invisible_ms)
        changed = message._replace(handle=handle, invisible_until_unix_ms=until_unix_ms)
        if invisible_ms:
            self._held([changed], invisible_ms)
        return changed

    async def give_back(self, messages: Iterable[PoppedMessage]) -> None:
        """Others may have these messages at once: the application has not looked at them, so it
        costs them no attempt. If it fails, their invisible time runs out."""
        self._give_back(list(messages))

    async def change_handle(self, handle: str, invisible_ms: int) -> tuple[str, int]:
        """`change_invisible` of the message that `handle` is of: the new handle, and until when."""
        group = self._broker_group(handle)
        handle = await self._renewing.release(handle)
        [row] = await self._change(group, [handle], invisible_ms)
        if row.code is not None:
            raise refusal(row.code)
        if row.handle is None or row.invisible_until_unix_ms is None:
            raise OutcomeUnknownError("the broker's answer has no new handle")
        return row.handle, row.invisible_until_unix_ms

    async def _change(
        self, group: str, handles: list[str], invisible_ms: int, *, is_unseen: bool = False
    ) -> list[wire.ReceiptRow]:
        request = wire.Invisible(
            group=self.group,
            client_id=self.client_id,
            handles=handles,
            invisible_ms=invisible_ms,
            unseen=is_unseen,
        )
        timeout_ms = self._settings.call_timeout_ms
        return await receipts_call(self._links, GroupName(group), request, timeout_ms=timeout_ms)

    def _handed(self, messages: list[PoppedMessage], invisible_ms: int) -> list[PoppedMessage]:
        """The messages, which a receive returns now."""
        self.hooks.hand_out(messages)
        return self._held(messages, invisible_ms)

    def _held(self, messages: list[PoppedMessage], invisible_ms: int) -> list[PoppedMessage]:
        """The messages, which are renewed from now on if they are to be."""
        if self._settings.auto_renew:
            for message in messages:
                self._renewing.hold(message.group, message.handle, invisible_ms)
        return messages


def renews(consumer: SimpleConsumer, handle: str | None = None) -> bool:
    """Whether it lengthens the invisible time of the message that it gave with this receipt, or of
    any message. For gateways."""
    renewing = consumer._renewing
    return renewing.holds_any if handle is None else renewing.holds(handle)


def give_back(consumer: SimpleConsumer, messages: list[PoppedMessage]) -> None:
    """Let others be given at once what was received and nobody has looked at. For gateways."""
    consumer._give_back(messages)
