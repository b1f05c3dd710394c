"""Settings of clients, and their answers."""

import pytest

from paceline.wire.consumer_groups import EXPONENTIAL, ConsumerGroupSettings, RetryPolicy
from paceline_gateway.grpc.codec.settings import (
    answer_to,
    check_settings,
    consumer_group_of,
    topics_of,
)
from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.codec.values import milliseconds
from paceline_gateway.grpc.stubs.clients_pb2 import (
    UA,
    ClientType,
    Language,
    Publishing,
    Settings,
    Subscription,
)
from paceline_gateway.grpc.stubs.resources_pb2 import (
    Code,
    FilterExpression,
    FilterType,
    Resource,
    SubscriptionEntry,
)

PRODUCER = Settings(
    client_type=ClientType.PRODUCER,
    publishing=Publishing(topics=[Resource(name="orders")], max_body_size=1 << 27),
    user_agent=UA(language=Language.GOLANG, version="5.1.4"),
)
CONSUMER = Settings(
    client_type=ClientType.PUSH_CONSUMER,
    subscription=Subscription(
        group=Resource(name="work"),
        subscriptions=[
            SubscriptionEntry(
                topic=Resource(name="orders"),
                expression=FilterExpression(type=FilterType.TAG, expression="a || b"),
            )
        ],
    ),
)


def test_a_producer_is_told_how_much_it_may_send() -> None:
    answer = answer_to(PRODUCER)

    assert answer.publishing.max_body_size == 4 * 1024 * 1024
    assert answer.publishing.validate_message_type
    assert answer.backoff_policy.max_attempts == 3
    assert answer.user_agent == PRODUCER.user_agent
    assert not answer.metric.on
    assert answer.HasField("metric")


def test_a_consumer_is_told_what_is_on_record_of_its_group() -> None:
    usual = answer_to(CONSUMER)
    ordered = ConsumerGroupSettings(
        consume_message_orderly=True,
        retry_max_times=3,
        retry_policy=RetryPolicy(type=EXPONENTIAL, initial_ms=1000, multiplier=3, max_ms=9000),
    )
    told = answer_to(CONSUMER, ordered)

    assert (usual.subscription.fifo, told.subscription.fifo) == (False, True)
    assert usual.subscription.long_polling_timeout.seconds == 20
    assert usual.subscription.receive_batch_size == 32
    steps = [milliseconds(step) for step in usual.backoff_policy.customized_backoff.next]
    assert (usual.backoff_policy.max_attempts, len(steps), steps[:2]) == (17, 16, [10_000, 30_000])
    policy = told.backoff_policy.exponential_backoff
    assert (told.backoff_policy.max_attempts, policy.initial.seconds, policy.multiplier) == (
        4,
        1,
        3,
    )
    assert told.subscription.subscriptions == CONSUMER.subscription.subscriptions


def test_names_of_settings_are_full() -> None:
    assert consumer_group_of(PRODUCER, "shop") is None
    assert consumer_group_of(CONSUMER, "shop") == "shop%work"
    assert dict(topics_of(PRODUCER, "shop")) == {"shop%orders": None}
    [(topic, wanted)] = topics_of(CONSUMER, "")
    assert topic == "orders"
    assert wanted is not None
    assert wanted.expression == "a || b"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (Settings(), Code.UNRECOGNIZED_CLIENT_TYPE),
        (Settings(client_type=ClientType.PRODUCER), Code.UNRECOGNIZED_CLIENT_TYPE),
        (
            Settings(client_type=ClientType.PRODUCER, subscription=Subscription()),
            Code.UNRECOGNIZED_CLIENT_TYPE,
        ),
        (Settings(client_type=ClientType.LITE_PUSH_CONSUMER), Code.NOT_IMPLEMENTED),
        (
            Settings(client_properties={str(n): "" for n in range(33)}),
            Code.INVALID_CLIENT_PROPERTIES,
        ),
    ],
)
def test_settings_that_cannot_be_served_are_refused(settings: Settings, code: Code) -> None:
    with pytest.raises(Refused) as told:
        check_settings(settings)
    assert told.value.status_code == code


def test_settings_have_a_bound() -> None:
    """They are kept as long as the client's stream is open."""
    many = Settings()
    many.CopyFrom(PRODUCER)
    many.publishing.topics.extend(Resource(name=f"t{number:0100}") for number in range(2_000))

    with pytest.raises(Refused, match="bytes") as refused:
        check_settings(many)

    assert refused.value.status_code == Code.BAD_REQUEST
