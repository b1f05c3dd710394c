"""paceline: a replicated message broker; this package is its client library and shared kernel.

The names below are the public interface. They are loaded when first used, so that a broker or
controller process does not import the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.platform.version import VERSION

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient as AdminClient
    from paceline.blocking import BlockingAdminClient as BlockingAdminClient
    from paceline.blocking import BlockingProducer as BlockingProducer
    from paceline.blocking import BlockingPullConsumer as BlockingPullConsumer
    from paceline.consumer.hooks import ConsumeContext as ConsumeContext
    from paceline.consumer.hooks import ConsumeMessageHook as ConsumeMessageHook
    from paceline.consumer.lite_pull import LitePullConsumer as LitePullConsumer
    from paceline.consumer.lite_pull import LitePullSettings as LitePullSettings
    from paceline.consumer.ordered import OrderedConsumer as OrderedConsumer
    from paceline.consumer.ordered import OrderedSettings as OrderedSettings
    from paceline.consumer.ordered import SuspendQueueError as SuspendQueueError
    from paceline.consumer.pop.popped_message import PoppedMessage as PoppedMessage
    from paceline.consumer.pull import PullConsumer as PullConsumer
    from paceline.consumer.pull import PullSettings as PullSettings
    from paceline.consumer.push import PushConsumer as PushConsumer
    from paceline.consumer.push import PushSettings as PushSettings
    from paceline.consumer.settings.push import ConsumeLater as ConsumeLater
    from paceline.consumer.settings.simple import SimpleSettings as SimpleSettings
    from paceline.consumer.simple import SimpleConsumer as SimpleConsumer
    from paceline.errors import PacelineError as PacelineError
    from paceline.errors import RequestTimeoutError as RequestTimeoutError
    from paceline.filters import Subscription as Subscription
    from paceline.filters import make_filter as make_filter
    from paceline.message import Message as Message
    from paceline.message import ReceivedMessage as ReceivedMessage
    from paceline.net.cluster import Cluster as Cluster
    from paceline.producer.hooks import CheckForbiddenHook as CheckForbiddenHook
    from paceline.producer.hooks import SendContext as SendContext
    from paceline.producer.hooks import SendMessageHook as SendMessageHook
    from paceline.producer.producer import Producer as Producer
    from paceline.producer.results import SendResult as SendResult
    from paceline.producer.selectors import select_by_hash as select_by_hash
    from paceline.producer.settings import ProducerSettings as ProducerSettings
    from paceline.producer.transaction import HalfMessage as HalfMessage
    from paceline.producer.transaction import TransactionProducer as TransactionProducer
    from paceline.producer.transaction import TransactionResult as TransactionResult
    from paceline.producer.transaction import TransactionState as TransactionState
    from paceline.queues import QueueName as QueueName

__version__ = VERSION

_HOMES = {
    "ConsumeMessageHook": "paceline.consumer.hooks",
    "ConsumeContext": "paceline.consumer.hooks",
    "SendMessageHook": "paceline.producer.hooks",
    "SendContext": "paceline.producer.hooks",
    "CheckForbiddenHook": "paceline.producer.hooks",
    "AdminClient": "paceline.admin.client",
    "BlockingAdminClient": "paceline.blocking",
    "BlockingProducer": "paceline.blocking",
    "BlockingPullConsumer": "paceline.blocking",
    "Cluster": "paceline.net.cluster",
    "ConsumeLater": "paceline.consumer.settings.push",
    "LitePullConsumer": "paceline.consumer.lite_pull",
    "LitePullSettings": "paceline.consumer.lite_pull",
    "Message": "paceline.message",
    "OrderedConsumer": "paceline.consumer.ordered",
    "OrderedSettings": "paceline.consumer.ordered",
    "PacelineError": "paceline.errors",
    "PoppedMessage": "paceline.consumer.pop.popped_message",
    "Producer": "paceline.producer.producer",
    "ProducerSettings": "paceline.producer.settings",
    "PullConsumer": "paceline.consumer.pull",
    "PullSettings": "paceline.consumer.pull",
    "PushConsumer": "paceline.consumer.push",
    "PushSettings": "paceline.consumer.push",
    "QueueName": "paceline.queues",
    "ReceivedMessage": "paceline.message",
    "RequestTimeoutError": "paceline.errors",
    "SendResult": "paceline.producer.results",
    "HalfMessage": "paceline.producer.transaction",
    "TransactionProducer": "paceline.producer.transaction",
    "TransactionResult": "paceline.producer.transaction",
    "TransactionState": "paceline.producer.transaction",
    "SimpleConsumer": "paceline.consumer.simple",
    "SimpleSettings": "paceline.consumer.settings.simple",
    "Subscription": "paceline.filters",
    "make_filter": "paceline.filters",
    "select_by_hash": "paceline.producer.selectors",
    "SuspendQueueError": "paceline.consumer.ordered",
}

__all__ = [*sorted(_HOMES), "__version__"]  # noqa: PLE0604 - names of _HOMES are strings


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
