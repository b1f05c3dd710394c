"""Topics and consumer groups that come into being when they are first used.

A client names one that nobody knows; this broker asks the leading controller for it, once however
many ask at a time, and goes on when its own view shows it. The controllers apply it once and answer
what was there already, so several brokers may ask for the same.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from paceline.errors import (
    CommandRefusedError,
    ForbiddenError,
    NotYetAvailableError,
    OverloadedError,
    QuotaExceededError,
)
from paceline.platform.ports import Clock
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.security.access import ASKING
from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.names import check_group_name, check_topic_name
from paceline.wire.session_commands import BrokerCommand
from paceline.wire.topic_commands import EnsureConsumerGroup, EnsureTopic
from paceline.wire.topics import MIXED, MessageType, TopicView
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings

log = logging.getLogger("paceline.service")

Ask = Callable[[BrokerCommand], Awaitable[dict[str, Any]]]
"""The controllers' definite result of a command; waits as long as none of them leads."""

WANTED_MAX = 64
"""Names that are asked for at one time; clients that make up names must not fill memory."""
NEW_NAMES_BURST = 500
"""So many at once, as when an application of many topics starts for the first time."""
NEW_NAMES_PER_S = 20
"""And so many after that. Each is a command of the controllers and a new view for every client."""


class NamesAllowance:
    """Pure: how many new names this broker may ask for (a token bucket)."""

    def __init__(self, *, now_ms: int) -> None:
        self._left = float(NEW_NAMES_BURST)
        self._counted_ms = now_ms

    def take(self, *, now_ms: int) -> None:
        """One more at that time of the monotonic clock; OverloadedError if none is left."""
        passed_s = (now_ms - self._counted_ms) / 1000
        self._counted_ms = now_ms
        self._left = min(NEW_NAMES_BURST, self._left + passed_s * NEW_NAMES_PER_S)
        if self._left < 1:
            raise OverloadedError(
                f"over {NEW_NAMES_PER_S} new names of topics and groups a second are used here;"
                " those that exist are served",
                retry_after_ms=1000,
            )
        self._left -= 1


_Key: TypeAlias = tuple[str, str, str | None]
"""Kind of command, name, and user whose quota counts."""


class _Asking(NamedTuple):
    """One name that is asked for."""

    result: "asyncio.Future[dict[str, Any]]"
    task: "asyncio.Task[None]"


class AutoCreator:
    """One per broker. `ask` None: there are no controllers to ask, so nothing is made."""

    def __init__(
        self, routes: Routes, settings: ServiceSettings, ask: Ask | None, clock: Clock
    ) -> None:
        self._clock = clock
        self._allowance = NamesAllowance(now_ms=clock.monotonic_ms())
        self._routes = routes
        self._settings = settings
        self._ask = ask
        self._asking: dict[_Key, _Asking] = {}
        self._turn = asyncio.Lock()
        """One command at a time: what a mastership has to say must not stand behind many."""

    @property
    def is_asking(self) -> bool:
        return bool(self._asking)

    @property
    def makes_topics(self) -> bool:
        return self._ask is not None and self._settings.auto_create_topic_enable

    async def ensure_topic(self, name: str, *, message_type: MessageType = MIXED) -> TopicView:
        """The topic, made with `default_topic_queue_nums` queues unless it is there.

        TopicNotFoundError if topics are not made here (`auto_create_topic_enable`), BadNameError,
        ForbiddenError (the system's own), CommandRefusedError (too many), NotYetAvailableError
        when no controller has answered in time.
        """
        check_topic_name(name)
        found = self._routes.find_topic(name)
        if found is not None:
            return found
        if not self.makes_topics:
            return self._routes.topic_named(name)  # which says that there is none
        command = EnsureTopic(
            topic=TopicName(name),
            queues=self._settings.default_topic_queue_nums,
            message_type=message_type,
            by=ASKING.get(),
        )
        await self._have(command, name)
        return self._routes.topic_named(name)

    async def ensure_group(self, name: str) -> ConsumerGroupView:
        """The consumer group with its retry and dead letter topics, made unless it is there.

        Whoever keeps something for a group asks for this first: what is kept for made-up names
        would stay for ever, on every replica. Groups on record are few (CONSUMER_GROUPS_MAX).
        GroupNotFoundError if groups are not made here (`auto_create_subscription_group`), and
        otherwise as `ensure_topic`.
        """
        check_group_name(name)
        found = self._routes.consumer_groups.get(ConsumerGroupName(name))
        if found is not None:
            return found
        if self._ask is None or not self._settings.auto_create_subscription_group:
            return self._routes.group_named(name)
        command = EnsureConsumerGroup(group=ConsumerGroupName(name), by=ASKING.get())
        await self._have(command, name)
        return self._routes.group_named(name)

    async def close(self) -> None:
        await cancel_and_wait(*(asking.task for asking in self._asking.values()))

    async def _have(self, command: EnsureTopic | EnsureConsumerGroup, name: str) -> None:
        """Ask together with whoever asks for the same, and wait for the view that shows it."""
        key = (command.kind, name, command.by)  # whose quota refuses it is his alone
        asking = self._asking.get(key)
        if asking is None:
            if len(self._asking) >= WANTED_MAX:
                raise NotYetAvailableError(f"{WANTED_MAX} names are asked for already; try again")
            self._allowance.take(now_ms=self._clock.monotonic_ms())
            asking = self._asking[key] = self._begin(key, command)
        limit_s = self._settings.create_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                # Shielded: an asker that gives up takes nothing from the others.
                result = await asyncio.shield(asking.result)
                if not result["ok"]:
                    raise _refused(result, name)
                while self._routes.version < result["version"]:
                    if self._routes.is_stopping:
                        raise NotYetAvailableError(
                            f"{name!r} is made, and this broker stops before it has the news"
                        )
                    await self._routes.wait_newer(
                        self._routes.version, timeout_ms=self._settings.create_timeout_ms
                    )
        except TimeoutError:
            raise NotYetAvailableError(
                f"{name!r} does not exist yet, and no controller has made it within"
                f" {self._settings.create_timeout_ms} ms"
            ) from None

    def _begin(self, key: _Key, command: EnsureTopic | EnsureConsumerGroup) -> "_Asking":
        result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        return _Asking(result, spawn(self._run(key, command, result), name=f"ensure:{key[1]}"))

    async def _run(
        self,
        key: _Key,
        command: EnsureTopic | EnsureConsumerGroup,
        result: "asyncio.Future[dict[str, Any]]",
    ) -> None:
        assert self._ask is not None
        try:
            async with self._turn:
                answer = await self._ask(command)
            log.info(
                "ensured" if answer["ok"] else "not_ensured",
                extra={"what": key[0], "wanted": key[1]},
            )
            result.set_result(answer)
        finally:
            del self._asking[key]
            result.cancel()  # without effect on one that has come


def _refused(result: dict[str, Any], name: str) -> Exception:
    reason, detail = str(result.get("reason")), str(result.get("detail"))
    if reason in ("SYSTEM_TOPIC", "SYSTEM_GROUP"):
        return ForbiddenError(detail)
    if reason == QuotaExceededError.code:
        return QuotaExceededError(detail, retry_after_ms=result["retry_after_ms"], kind="creations")
    return CommandRefusedError(f"{name!r} cannot be made: {detail}", reason=reason)
