"""Hooks of an application around sending (RocketMQ's client hooks).

They look on: for traces, audit, counting. What they raise is logged and counted, and changes
nothing; only a `CheckForbiddenHook` may refuse a message, before anything is sent, and one that
fails refuses too. They are called once for each batch on the wire, on the event loop, so they must
not block.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from paceline.errors import ForbiddenError, PacelineError
from paceline.message import Message
from paceline.producer.batch import Batch
from paceline.types import TopicId

log = logging.getLogger("paceline.client")


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
        return self._batch.queue.queue_id

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
