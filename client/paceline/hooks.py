"""Hooks of an application around sending and consuming (RocketMQ's client hooks).

They look on: for traces, audit, counting. What they raise is logged and counted, and changes
nothing; only a `CheckForbiddenHook` may refuse a message, before anything is sent, and one that
fails refuses too. They are called once for each batch on the wire, for each call of a listener, and
for what a poll or receive hands out of a queue; on the event loop, so they must not block.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from paceline.errors import ForbiddenError, PacelineError
from paceline.message import Message, ReceivedMessage
from paceline.producer.batch import Batch
from paceline.types import TopicId

if TYPE_CHECKING:  # it is built upon this
    from paceline.consumer.pop.popped_message import PoppedMessage

log = logging.getLogger("paceline.client")

Handed: TypeAlias = "Sequence[ReceivedMessage] | Sequence[PoppedMessage]"
"""Messages as their consumer hands them out."""
MessageT = TypeVar("MessageT", ReceivedMessage, "PoppedMessage")


class SendContext:
    """One batch of a producer, as its hooks see it: read it, change nothing but `state`."""

    __slots__ = ("_batch", "is_oneway", "producer_group", "state", "topic")

    def __init__(self, batch: Batch, *, topic: str, producer_group: str, is_oneway: bool) -> None:
        self._batch = batch
        self.topic = topic
        self.producer_group = producer_group
        self.is_oneway = is_oneway
        self.state: dict[str, Any] = {}
        """The hook's own, from `before_send` to `after_send`."""

    @property
    def broker_group(self) -> str:
        """Where it goes now; a refused batch may have moved (R32)."""
        return self._batch.queue.group

    @property
    def queue_id(self) -> int:
        return self._batch.queue.queue

    @property
    def count(self) -> int:
        """Messages in the batch; more may have joined before a retry."""
        return len(self._batch.bodies)

    @property
    def bodies(self) -> Sequence[bytes]:
        return self._batch.bodies

    @property
    def keys(self) -> Sequence[str | None] | None:
        """None: no message has a key. The same for tags and properties."""
        return self._batch.keys

    @property
    def tags(self) -> Sequence[str | None] | None:
        return self._batch.tags

    @property
    def properties(self) -> Sequence[Mapping[str, str] | None] | None:
        return self._batch.properties

    @property
    def attempts(self) -> int:
        return self._batch.attempt

    @property
    def queue_offset(self) -> int | None:
        """Of the first message, once it is stored."""
        answer = self._batch.answer
        return None if answer is None else answer.base_queue_offset

    @property
    def error(self) -> PacelineError | None:
        """Why the batch failed."""
        return self._batch.error


class SendMessageHook(Protocol):
    """Around the sending of each batch."""

    def before_send(self, context: SendContext) -> None:
        """Before its first attempt."""

    def after_send(self, context: SendContext) -> None:
        """After its outcome, before the application hears of it; of a one-way batch, after it was
        put on the wire."""


class CheckForbiddenHook(Protocol):
    """May this message be sent?"""

    def check_forbidden(self, message: Message) -> None:
        """Raise to refuse it: `send` raises what is a PacelineError, else ForbiddenError."""


class ConsumeContext:
    """One call of a listener, or what one poll or receive hands out of one queue."""

    __slots__ = ("consumer_group", "done_count", "error", "messages", "state")

    def __init__(self, consumer_group: str, messages: Handed) -> None:
        self.consumer_group = consumer_group
        self.messages = messages
        """Of one queue, in order."""
        self.done_count: int | None = None
        """How many the listener has done, from the first on; None before it has ended. Of a poll or
        receive: all of them, they are the application's then."""
        self.error: BaseException | None = None
        """What it raised."""
        self.state: dict[str, Any] = {}
        """The hook's own, from `before_consume` to `after_consume`."""


class ConsumeMessageHook(Protocol):
    """Around each call of a listener; of a consumer without one, around the handing out."""

    def before_consume(self, context: ConsumeContext) -> None: ...

    def after_consume(self, context: ConsumeContext) -> None: ...


class SendHooks:
    """Calls a producer's hooks."""

    def __init__(
        self,
        hooks: Sequence[SendMessageHook],
        *,
        producer_group: str,
        topic_name: Callable[[TopicId], str | None],
    ) -> None:
        self.errors = 0
        """How many calls of hooks have raised."""
        self._hooks = tuple(hooks)
        self._producer_group = producer_group
        self._topic_name = topic_name

    def before(self, batch: Batch, *, is_oneway: bool = False) -> None:
        """The batch is about to leave; only its first attempt counts."""
        if batch.context is not None:
            return
        topic = self._topic_name(batch.queue.topic_id) or ""
        batch.context = context = SendContext(
            batch, topic=topic, producer_group=self._producer_group, is_oneway=is_oneway
        )
        for hook in self._hooks:
            self._call(hook.before_send, context)

    def after(self, batch: Batch) -> None:
        """The batch has its outcome. Nothing happens if it never left."""
        context, batch.context = batch.context, None
        if context is not None:
            for hook in self._hooks:
                self._call(hook.after_send, context)

    def _call(self, method: Callable[[SendContext], None], context: SendContext) -> None:
        try:
            method(context)
        except Exception:  # the application's code: it may not lose a message
            self.errors += 1
            log.exception("send_hook_failed", extra={"topic": context.topic})


def check_allowed(hooks: Sequence[CheckForbiddenHook], message: Message) -> None:
    """Raise if a hook refuses the message, or fails: what nobody has allowed is not sent."""
    for hook in hooks:
        try:
            hook.check_forbidden(message)
        except PacelineError:
            raise
        except Exception as error:
            raise ForbiddenError(f"not sent: a check refused it: {error!r}") from error


Run = Callable[[Sequence[ReceivedMessage]], Awaitable[int | None]]
"""As `consumer.concurrent.Run`."""


class ConsumeHooks:
    """Calls a consumer's hooks around its listener."""

    def __init__(self, hooks: Sequence[ConsumeMessageHook], *, consumer_group: str) -> None:
        self.errors = 0
        """How many calls of hooks have raised."""
        self._hooks = tuple(hooks)
        self._group = consumer_group

    def around(self, run: Run) -> Run:
        """`run` with the hooks before and after; `run` itself if there are none."""
        return self._hooked(run) if self._hooks else run

    def hand_out(self, messages: Sequence[MessageT]) -> None:
        """A poll or receive is about to return these: before and after, for each queue's part."""
        if not self._hooks:
            return
        for _, part in groupby(messages, key=_queue_of):
            context = self._begin(list(part))
            context.done_count = len(context.messages)
            self._end(context)

    def _hooked(self, run: Run) -> Run:
        async def hooked(messages: Sequence[ReceivedMessage]) -> int | None:
            context = self._begin(messages)
            try:
                answer = await run(messages)
                context.done_count = len(messages) if answer is None else answer
                return answer
            except BaseException as error:
                context.error, context.done_count = error, 0
                raise
            finally:
                self._end(context)

        return hooked

    def _begin(self, messages: Handed) -> ConsumeContext:
        context = ConsumeContext(self._group, messages)
        for hook in self._hooks:
            self._call(hook.before_consume, context)
        return context

    def _end(self, context: ConsumeContext) -> None:
        for hook in self._hooks:
            self._call(hook.after_consume, context)

    def _call(self, method: Callable[[ConsumeContext], None], context: ConsumeContext) -> None:
        try:
            method(context)
        except Exception:  # the application's code: it may not lose a message
            self.errors += 1
            log.exception("consume_hook_failed", extra={"consumer_group": self._group})


def _queue_of(message: "ReceivedMessage | PoppedMessage") -> tuple[str, str, int]:
    return message.topic, message.group, message.queue_id
