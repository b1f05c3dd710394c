"""Pure: settings of clients, and how the server answers them."""

from collections.abc import Iterator

from paceline.filters import Filter
from paceline.wire.clients import Kind
from paceline.wire.consumer_groups import EXPONENTIAL, ConsumerGroupSettings
from paceline_gateway.grpc.codec.limits import (
    BODY_BYTES_MAX,
    MESSAGES_MAX,
    POLL_MS_MAX,
    check_client_properties,
)
from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.codec.values import duration_of, group_of, subscription_of, topic_of
from paceline_gateway.grpc.stubs.clients_pb2 import (
    ClientType,
    CustomizedBackoff,
    ExponentialBackoff,
    Metric,
    Publishing,
    RetryPolicy,
    Settings,
)
from paceline_gateway.grpc.stubs.resources_pb2 import Code

SEND_ATTEMPTS_MAX = 3
SEND_BACKOFF_MS, SEND_BACKOFF_MS_MAX, SEND_BACKOFF_FACTOR = 10, 1_000, 2
"""As RocketMQ's proxy tells producers."""
_STEPS_MAX = 64
SETTINGS_BYTES_MAX = 128 * 1024
"""Some thousand topics. They are kept twice as long as the stream is open."""
_CONSUMERS = (ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER)


def kind_of(type_: ClientType) -> Kind:
    """What a client is to brokers."""
    return "producer" if type_ == ClientType.PRODUCER else "consumer"


def check_settings(settings: Settings) -> None:
    """Refused: settings that cannot be served."""
    size = settings.ByteSize()
    if size > SETTINGS_BYTES_MAX:
        raise Refused(
            Code.BAD_REQUEST,
            f"settings of {size} bytes are over {SETTINGS_BYTES_MAX}: name fewer topics in one"
            " client",
        )
    check_client_properties(settings.client_properties)
    type_ = settings.client_type
    if type_ in (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER):
        raise Refused(Code.NOT_IMPLEMENTED, "lite topics are not served here: use other consumers")
    is_consumer = settings.HasField("subscription") and type_ in _CONSUMERS
    if not is_consumer and not (settings.HasField("publishing") and type_ == ClientType.PRODUCER):
        raise Refused(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"settings of client type {type_} name neither what it sends to nor what it receives",
        )


def consumer_group_of(settings: Settings, namespace: str) -> str | None:
    """Full name; None: a producer. Refused."""
    if not settings.HasField("subscription"):
        return None
    return group_of(settings.subscription.group, namespace).full


def topics_of(settings: Settings, namespace: str) -> Iterator[tuple[str, Filter | None]]:
    """Full names of the topics, of a consumer with what is wanted of each. Refused."""
    for resource in settings.publishing.topics:
        yield topic_of(resource, namespace).full, None
    for entry in settings.subscription.subscriptions:
        topic = topic_of(entry.topic, namespace)
        yield topic.full, subscription_of(topic, entry.expression).filter


def answer_to(settings: Settings, group: ConsumerGroupSettings | None = None) -> Settings:
    """What a client is told to work by; `group`: what is on record of its consumer group."""
    answer = Settings()
    answer.CopyFrom(settings)
    answer.ClearField("client_properties")
    answer.metric.CopyFrom(Metric(on=False))
    if settings.HasField("publishing"):
        answer.publishing.CopyFrom(
            Publishing(
                topics=settings.publishing.topics,
                max_body_size=BODY_BYTES_MAX,
                validate_message_type=True,
            )
        )
        answer.backoff_policy.CopyFrom(_send_policy())
        return answer
    known = group or ConsumerGroupSettings()
    answer.subscription.fifo = known.consume_message_orderly
    answer.subscription.receive_batch_size = MESSAGES_MAX
    answer.subscription.long_polling_timeout.CopyFrom(duration_of(POLL_MS_MAX))
    answer.backoff_policy.CopyFrom(_retry_policy(known))
    return answer


def _send_policy() -> RetryPolicy:
    return RetryPolicy(
        max_attempts=SEND_ATTEMPTS_MAX,
        exponential_backoff=ExponentialBackoff(
            initial=duration_of(SEND_BACKOFF_MS),
            max=duration_of(SEND_BACKOFF_MS_MAX),
            multiplier=SEND_BACKOFF_FACTOR,
        ),
    )


def _retry_policy(group: ConsumerGroupSettings) -> RetryPolicy:
    """Of messages that a consumer could not process; clients read whole seconds."""
    policy = group.retry_policy
    if policy.type == EXPONENTIAL:
        return RetryPolicy(
            max_attempts=group.retry_max_times + 1,
            exponential_backoff=ExponentialBackoff(
                initial=duration_of(policy.initial_ms),
                max=duration_of(policy.max_ms),
                multiplier=policy.multiplier,
            ),
        )
    steps = range(max(1, min(group.retry_max_times, _STEPS_MAX)))
    return RetryPolicy(
        max_attempts=group.retry_max_times + 1,
        customized_backoff=CustomizedBackoff(
            next=[duration_of(policy.delay_ms(times)) for times in steps]
        ),
    )
