"""Pure: a consumer group's settings as the controllers hold them; RocketMQ's subscription group."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.types import ConsumerGroupName
from paceline.wire.fields import Fields
from paceline.wire.topics import read_attributes

CUSTOMIZED, EXPONENTIAL = RETRY_POLICIES = ("CUSTOMIZED", "EXPONENTIAL")
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

    @classmethod
    def read(cls, document: object) -> "RetryPolicy":
        """Members left out keep the default. Raises BadRequestError."""
        fields, usual = Fields(document, name="retry_policy"), cls()
        kind = fields.text("type", length_max=16) if fields.has("type") else usual.type
        if kind not in RETRY_POLICIES:
            raise fields.wrong("type", f"one of {', '.join(RETRY_POLICIES)}", kind)
        numbers = {
            name: fields.integer(name, low=1, high=high)
            if fields.has(name)
            else int(getattr(usual, name))
            for name, high in (
                ("initial_ms", DELAY_MS_MAX),
                ("multiplier", 16),
                ("max_ms", DELAY_MS_MAX),
            )
        }
        steps = fields.any("next_ms") if fields.has("next_ms") else list(usual.next_ms)
        if not isinstance(steps, list) or not 1 <= len(steps) <= RETRY_STEPS_MAX:
            raise fields.wrong("next_ms", f"a list of 1 to {RETRY_STEPS_MAX} delays", steps)
        if any(type(step) is not int or not 0 <= step <= DELAY_MS_MAX for step in steps):
            raise fields.wrong("next_ms", f"a list of delays from 0 to {DELAY_MS_MAX} ms", steps)
        fields.done()
        return cls(type=kind, next_ms=tuple(steps), **numbers)


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

    def forbidden_by(self, *, is_broadcasting: bool) -> str | None:
        """Name of the setting that keeps its members from consuming; None: they may."""
        if not self.consume_enable:
            return "consume_enable"
        if is_broadcasting and not self.consume_broadcast_enable:
            return "consume_broadcast_enable"
        return None

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in (*_FLAGS, *_NUMBERS)}
        policy = self.retry_policy.to_json()
        return {**values, "retry_policy": policy, "attributes": dict(self.attributes)}

    def packed(self) -> dict[str, Any]:
        """As `to_json` without what is as usual."""
        usual = ConsumerGroupSettings().to_json()
        return {name: value for name, value in self.to_json().items() if value != usual[name]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ConsumerGroupSettings":
        """From a controller: what is left out is as usual, what a newer one adds is passed over."""
        known = {name: document[name] for name in _MEMBERS if name in document}
        if "retry_policy" in known:
            policy = known["retry_policy"]
            known["retry_policy"] = RetryPolicy(**{**policy, "next_ms": tuple(policy["next_ms"])})
        return cls(**known)

    @classmethod
    def read(
        cls, document: object, *, base: "ConsumerGroupSettings | None" = None
    ) -> "ConsumerGroupSettings":
        """Checked, from outside; members left out are those of `base`. Raises BadRequestError."""
        base = base or cls()
        fields = Fields(document, name="settings")
        values: dict[str, Any] = {
            name: fields.flag(name) if fields.has(name) else getattr(base, name) for name in _FLAGS
        }
        for name, (low, high) in _NUMBERS.items():
            values[name] = (
                fields.integer(name, low=low, high=high)
                if fields.has(name)
                else getattr(base, name)
            )
        policy = base.retry_policy
        if fields.has("retry_policy"):
            policy = RetryPolicy.read(fields.any("retry_policy"))
        attributes: dict[str, str] = dict(base.attributes)
        if fields.has("attributes"):
            attributes = merged(attributes, read_attributes(fields))
        fields.done()
        return cls(**values, retry_policy=policy, attributes=attributes)


_FLAGS = (
    "consume_enable",
    "consume_from_min_enable",
    "consume_broadcast_enable",
    "consume_message_orderly",
    "notify_consumer_ids_changed_enable",
)
_NUMBERS = {
    "retry_queue_nums": (1, RETRY_QUEUES_MAX),
    "retry_max_times": (0, RETRY_TIMES_MAX),
    "which_broker_when_consume_slowly": (0, 1),
    "consume_timeout_minute": (1, 24 * 60),
}
_MEMBERS = (*_FLAGS, *_NUMBERS, "retry_policy", "attributes")


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
