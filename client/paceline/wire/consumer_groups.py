"""Pure: a consumer group's settings as the controllers hold them; RocketMQ's subscription group."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from paceline.types import ConsumerGroupName
from paceline.wire.calls.request import Row
from paceline.wire.topics import Attributes

CUSTOMIZED, EXPONENTIAL = "CUSTOMIZED", "EXPONENTIAL"
RETRY_TIMES_MAX = 1_000_000
RETRY_QUEUES_MAX = 64
RETRY_STEPS_MAX = 64
DELAY_MS_MAX = 24 * 3600 * 1000
_S, _M, _H = 1000, 60_000, 3_600_000
LADDER_MS = (
    *(1 * _S, 5 * _S, 10 * _S, 30 * _S, 1 * _M, 2 * _M, 3 * _M, 4 * _M, 5 * _M, 6 * _M, 7 * _M),
    *(8 * _M, 9 * _M, 10 * _M, 20 * _M, 30 * _M, 1 * _H, 2 * _H),
)
"""RocketMQ's 18 delay levels."""
FIRST_STEP = 2
"""A first retry waits for the third step, 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a message waits before it is given again (RocketMQ's GroupRetryPolicy)."""

    type: str = CUSTOMIZED
    next_ms: tuple[int, ...] = LADDER_MS
    """CUSTOMIZED: the steps; the last one is repeated."""
    initial_ms: int = 5 * _S
    multiplier: int = 2
    max_ms: int = 2 * _H
    """EXPONENTIAL: initial * multiplier ** times, at most this."""

    def delay_ms(self, reconsume_times: int) -> int:
        """Before the attempt that follows `reconsume_times` earlier retries (0: the first)."""
        assert reconsume_times >= 0
        if self.type == EXPONENTIAL:
            factor: int = self.multiplier ** min(reconsume_times, 32)
            return min(self.max_ms, self.initial_ms * factor)
        return self.next_ms[min(reconsume_times + FIRST_STEP, len(self.next_ms) - 1)]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "next_ms": list(self.next_ms)}


_Delay = Annotated[int, Meta(ge=1, le=DELAY_MS_MAX)]


class RetryPolicyChanges(Row, kw_only=True):
    """A retry policy as it is asked for: what is left out is as usual."""

    type: Literal["CUSTOMIZED", "EXPONENTIAL"] | None = None
    next_ms: (
        Annotated[
            tuple[Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)], ...],
            Meta(min_length=1, max_length=RETRY_STEPS_MAX),
        ]
        | None
    ) = None
    initial_ms: _Delay | None = None
    multiplier: Annotated[int, Meta(ge=1, le=16)] | None = None
    max_ms: _Delay | None = None


class SettingsChanges(Row, kw_only=True):
    """Settings of a consumer group as they are asked for: what is left out stays."""

    consume_enable: bool | None = None
    consume_from_min_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    consume_message_orderly: bool | None = None
    message_model: Literal["clustering", "broadcasting"] | None = None
    consume_from_where: Literal["first", "last"] | None = None
    retry_queue_nums: Annotated[int, Meta(ge=1, le=RETRY_QUEUES_MAX)] | None = None
    retry_max_times: Annotated[int, Meta(ge=0, le=RETRY_TIMES_MAX)] | None = None
    retry_policy: RetryPolicyChanges | None = None
    which_broker_when_consume_slowly: Literal[0, 1] | None = None
    notify_consumer_ids_changed_enable: bool | None = None
    consume_timeout_minute: Annotated[int, Meta(ge=1, le=24 * 60)] | None = None
    attributes: Attributes | None = None

    def values(self) -> dict[str, Any]:
        """The settings that are given."""
        given = {name: getattr(self, name) for name in SettingsChanges.__struct_fields__}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """Names and defaults are RocketMQ's SubscriptionGroupConfig's."""

    consume_enable: bool = True
    """False: nobody of the group is given messages (NO_PERMISSION)."""
    consume_from_min_enable: bool = True
    """A queue that is younger than the group is read from its first message."""
    consume_broadcast_enable: bool = True
    """False: nobody of the group may broadcast (NO_PERMISSION)."""
    consume_message_orderly: bool = False
    """Its simple consumers get a queue's messages one after the other."""
    message_model: Literal["clustering", "broadcasting"] = "clustering"
    """"broadcasting": each of its simple consumers gets every message, by its client id. Other
    consumers say themselves whether they broadcast."""
    consume_from_where: Literal["first", "last"] = "last"
    """Where a simple consumer of a broadcasting group that is new begins on a queue: "first" or
    "last"."""
    retry_queue_nums: int = 1
    """Queues of %RETRY%group in each broker group."""
    retry_max_times: int = 16
    """After so many retries a message goes to %DLQ%group."""
    retry_policy: RetryPolicy = RetryPolicy()
    which_broker_when_consume_slowly: int = 1
    """0: consumers that lag far behind are not sent to a replica."""
    notify_consumer_ids_changed_enable: bool = True
    """False: members hear of each other with their next heartbeat, not at once."""
    consume_timeout_minute: int = 15
    """How long a listener call of a push consumer may take that does not say so itself."""
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_broadcasting(self) -> bool:
        """Whether each of its simple consumers gets every message."""
        return self.message_model == "broadcasting"

    def forbidden_by(self, *, is_broadcasting: bool) -> str | None:
        """Name of the setting that keeps its members from consuming; None: they may."""
        if not self.consume_enable:
            return "consume_enable"
        if is_broadcasting and not self.consume_broadcast_enable:
            return "consume_broadcast_enable"
        return None

    def to_json(self) -> dict[str, Any]:
        policy = self.retry_policy.to_json()
        return {**asdict(self), "retry_policy": policy, "attributes": dict(self.attributes)}

    def packed(self) -> dict[str, Any]:
        """As `to_json` without what is as usual."""
        usual = ConsumerGroupSettings().to_json()
        return {name: value for name, value in self.to_json().items() if value != usual[name]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ConsumerGroupSettings":
        """From a controller: what is left out is as usual, what a newer one adds is passed over."""
        known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        if "retry_policy" in known:
            policy = known["retry_policy"]
            known["retry_policy"] = RetryPolicy(**{**policy, "next_ms": tuple(policy["next_ms"])})
        return cls(**known)

    @classmethod
    def read(
        cls, document: object, *, base: "ConsumerGroupSettings | None" = None
    ) -> "ConsumerGroupSettings":
        """Checked, from outside; members left out are those of `base`. Raises BadRequestError."""
        return with_changes(base or cls(), SettingsChanges.read(document, name="settings"))


def with_changes(
    settings: ConsumerGroupSettings, changes: SettingsChanges
) -> ConsumerGroupSettings:
    """Settings after changes; a retry policy is replaced, attributes are merged."""
    values = changes.values()
    if changes.retry_policy is not None:
        given = structs.asdict(changes.retry_policy)
        policy = {name: each for name, each in given.items() if each is not None}
        values["retry_policy"] = RetryPolicy(**policy)
    if changes.attributes is not None:
        values["attributes"] = merged(settings.attributes, changes.attributes)
    return replace(settings, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupView:
    """One consumer group as the controllers publish it."""

    group: ConsumerGroupName
    settings: ConsumerGroupSettings = ConsumerGroupSettings()

    def to_json(self) -> dict[str, Any]:
        return {"group": self.group, "settings": self.settings.to_json()}

    def packed(self) -> dict[str, Any]:
        return {"group": self.group, "settings": self.settings.packed()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ConsumerGroupView":
        settings = ConsumerGroupSettings.from_json(document["settings"])
        return cls(group=document["group"], settings=settings)


def merged(attributes: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Attributes after changes; None takes one away."""
    changed = {**attributes, **changes}
    return {name: value for name, value in changed.items() if value is not None}
