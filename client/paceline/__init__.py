"""paceline: a replicated message broker; this package is its client library and shared kernel.

The names below are the public interface. They are loaded when first used, so that a broker or
controller process does not import the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.platform.version import VERSION

if TYPE_CHECKING:
    from paceline.admin.client import AdminClient as AdminClient
    from paceline.admin.clients import ConnectedClients as ConnectedClients
    from paceline.admin.dead_letters import DeadLetter as DeadLetter
    from paceline.admin.dead_letters import Resent as Resent
    from paceline.blocking.admin import BlockingAdminClient as BlockingAdminClient
    from paceline.blocking.consumers import BlockingLitePullConsumer as BlockingLitePullConsumer
    from paceline.blocking.consumers import BlockingOrderedConsumer as BlockingOrderedConsumer
    from paceline.blocking.consumers import BlockingPullConsumer as BlockingPullConsumer
    from paceline.blocking.consumers import BlockingPushConsumer as BlockingPushConsumer
    from paceline.blocking.consumers import BlockingSimpleConsumer as BlockingSimpleConsumer
    from paceline.blocking.producers import BlockingProducer as BlockingProducer
    from paceline.blocking.producers import BlockingTransaction as BlockingTransaction
    from paceline.blocking.producers import (
        BlockingTransactionProducer as BlockingTransactionProducer,
    )
    from paceline.consumer.fetch.assigned import PulledBatch as PulledBatch
    from paceline.consumer.fetch.gaps import Gap as Gap
    from paceline.consumer.group.allocation import AllocateByConfig as AllocateByConfig
    from paceline.consumer.group.allocation import AllocateByMachineRoom as AllocateByMachineRoom
    from paceline.consumer.group.allocation import AllocateConsistentHash as AllocateConsistentHash
    from paceline.consumer.group.allocation import (
        AllocateMachineRoomNearby as AllocateMachineRoomNearby,
    )
    from paceline.consumer.group.allocation import allocate_averagely as allocate_averagely
    from paceline.consumer.group.allocation import (
        allocate_averagely_by_circle as allocate_averagely_by_circle,
    )
    from paceline.consumer.hooks import ConsumeContext as ConsumeContext
    from paceline.consumer.hooks import ConsumeMessageHook as ConsumeMessageHook
    from paceline.consumer.lite_pull import LitePullConsumer as LitePullConsumer
    from paceline.consumer.lite_pull import LitePullSettings as LitePullSettings
    from paceline.consumer.ordered import OrderedConsumer as OrderedConsumer
    from paceline.consumer.ordered import OrderedSettings as OrderedSettings
    from paceline.consumer.ordered import SuspendQueueError as SuspendQueueError
    from paceline.consumer.pop.popped_message import PoppedMessage as PoppedMessage
    from paceline.consumer.pull import CommittedOffsets as CommittedOffsets
    from paceline.consumer.pull import PullConsumer as PullConsumer
    from paceline.consumer.pull import PullSettings as PullSettings
    from paceline.consumer.pull import QueueRange as QueueRange
    from paceline.consumer.push import PushConsumer as PushConsumer
    from paceline.consumer.push import PushSettings as PushSettings
    from paceline.consumer.settings.push import ConsumeLater as ConsumeLater
    from paceline.consumer.settings.simple import SimpleSettings as SimpleSettings
    from paceline.consumer.simple import SimpleConsumer as SimpleConsumer
    from paceline.errors import BadJsonError as BadJsonError
    from paceline.errors import BadNameError as BadNameError
    from paceline.errors import BadRequestError as BadRequestError
    from paceline.errors import CommandRefusedError as CommandRefusedError
    from paceline.errors import ConfigError as ConfigError
    from paceline.errors import ConflictError as ConflictError
    from paceline.errors import CorruptBatchError as CorruptBatchError
    from paceline.errors import CorruptLogError as CorruptLogError
    from paceline.errors import DeadlineError as DeadlineError
    from paceline.errors import DiskFullError as DiskFullError
    from paceline.errors import FencedEpochError as FencedEpochError
    from paceline.errors import FlushDiskTimeoutError as FlushDiskTimeoutError
    from paceline.errors import FlushReplicaTimeoutError as FlushReplicaTimeoutError
    from paceline.errors import ForbiddenError as ForbiddenError
    from paceline.errors import GroupExistsError as GroupExistsError
    from paceline.errors import GroupNotFoundError as GroupNotFoundError
    from paceline.errors import InSyncReplicasNotEnoughError as InSyncReplicasNotEnoughError
    from paceline.errors import InvalidReceiptHandleError as InvalidReceiptHandleError
    from paceline.errors import LockFencedError as LockFencedError
    from paceline.errors import LockHeldError as LockHeldError
    from paceline.errors import LoginFailedError as LoginFailedError
    from paceline.errors import MessageNotFoundError as MessageNotFoundError
    from paceline.errors import MessageTypeError as MessageTypeError
    from paceline.errors import NoMasterError as NoMasterError
    from paceline.errors import NoPermissionError as NoPermissionError
    from paceline.errors import NotAuthorizedError as NotAuthorizedError
    from paceline.errors import NotFoundError as NotFoundError
    from paceline.errors import NotLeaderError as NotLeaderError
    from paceline.errors import NotMasterError as NotMasterError
    from paceline.errors import NotYetAvailableError as NotYetAvailableError
    from paceline.errors import OffsetMovedBackError as OffsetMovedBackError
    from paceline.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from paceline.errors import OutcomeUnknownError as OutcomeUnknownError
    from paceline.errors import OutOfMemoryError as OutOfMemoryError
    from paceline.errors import OutOfOrderSequenceError as OutOfOrderSequenceError
    from paceline.errors import OverloadedError as OverloadedError
    from paceline.errors import PacelineError as PacelineError
    from paceline.errors import PayloadLimitError as PayloadLimitError
    from paceline.errors import PeerError as PeerError
    from paceline.errors import PollingFullError as PollingFullError
    from paceline.errors import ProducerFencedError as ProducerFencedError
    from paceline.errors import QueueNotFoundError as QueueNotFoundError
    from paceline.errors import QueueSealedError as QueueSealedError
    from paceline.errors import QuotaExceededError as QuotaExceededError
    from paceline.errors import ReceiptExpiredError as ReceiptExpiredError
    from paceline.errors import ReceiptsOpenError as ReceiptsOpenError
    from paceline.errors import RequestTimeoutError as RequestTimeoutError
    from paceline.errors import Retry as Retry
    from paceline.errors import ShuttingDownError as ShuttingDownError
    from paceline.errors import StorageError as StorageError
    from paceline.errors import StorageQuotaExceededError as StorageQuotaExceededError
    from paceline.errors import TooLargeError as TooLargeError
    from paceline.errors import TopicExistsError as TopicExistsError
    from paceline.errors import TopicNotFoundError as TopicNotFoundError
    from paceline.errors import TransactionEndedError as TransactionEndedError
    from paceline.errors import TransactionNotFoundError as TransactionNotFoundError
    from paceline.errors import UnauthenticatedError as UnauthenticatedError
    from paceline.errors import UnknownProducerError as UnknownProducerError
    from paceline.errors import UnsupportedMediaTypeError as UnsupportedMediaTypeError
    from paceline.errors import UserNotFoundError as UserNotFoundError
    from paceline.filters import Filter as Filter
    from paceline.filters import Subscription as Subscription
    from paceline.filters import make_filter as make_filter
    from paceline.message import LockToken as LockToken
    from paceline.message import Message as Message
    from paceline.message import ReceivedMessage as ReceivedMessage
    from paceline.net.cluster import Cluster as Cluster
    from paceline.net.connect import ClientTls as ClientTls
    from paceline.net.connect import ConnectSettings as ConnectSettings
    from paceline.net.connect import Credentials as Credentials
    from paceline.net.connect import TokenFile as TokenFile
    from paceline.net.connect import credentials_of as credentials_of
    from paceline.net.connect import tls_of as tls_of
    from paceline.producer.batch import Compression as Compression
    from paceline.producer.hooks import CheckForbiddenHook as CheckForbiddenHook
    from paceline.producer.hooks import SendContext as SendContext
    from paceline.producer.hooks import SendMessageHook as SendMessageHook
    from paceline.producer.oneway import OnewayCounts as OnewayCounts
    from paceline.producer.producer import Producer as Producer
    from paceline.producer.request_reply import RequesterCounts as RequesterCounts
    from paceline.producer.results import Sending as Sending
    from paceline.producer.results import SendingMany as SendingMany
    from paceline.producer.results import SendResult as SendResult
    from paceline.producer.results import SendResults as SendResults
    from paceline.producer.results import StoredAt as StoredAt
    from paceline.producer.selectors import select_by_hash as select_by_hash
    from paceline.producer.settings import ProducerSettings as ProducerSettings
    from paceline.producer.transaction import HalfMessage as HalfMessage
    from paceline.producer.transaction import Transaction as Transaction
    from paceline.producer.transaction import TransactionProducer as TransactionProducer
    from paceline.producer.transaction import TransactionResult as TransactionResult
    from paceline.producer.transaction import TransactionState as TransactionState
    from paceline.queues import QueueKey as QueueKey
    from paceline.queues import QueueName as QueueName
    from paceline.records.decode import BatchView as BatchView
    from paceline.records.header import Codec as Codec
    from paceline.wire.cluster import ClusterView as ClusterView
    from paceline.wire.cluster import GroupSettings as GroupSettings
    from paceline.wire.cluster import GroupView as GroupView
    from paceline.wire.cluster import ReplicaView as ReplicaView
    from paceline.wire.consumer_groups import ConsumerGroupSettings as ConsumerGroupSettings
    from paceline.wire.consumer_groups import ConsumerGroupView as ConsumerGroupView
    from paceline.wire.consumer_groups import RetryPolicy as RetryPolicy
    from paceline.wire.pins import PinsOfGroup as PinsOfGroup
    from paceline.wire.pins import PinView as PinView
    from paceline.wire.static_topics import LogicalQueue as LogicalQueue
    from paceline.wire.static_topics import Segment as Segment
    from paceline.wire.topics import TopicView as TopicView
    from paceline.wire.users import Quota as Quota

__version__ = VERSION

_HOMES = {
    "Segment": "paceline.wire.static_topics",
    "ReplicaView": "paceline.wire.cluster",
    "AdminClient": "paceline.admin.client",
    "AllocateByConfig": "paceline.consumer.group.allocation",
    "AllocateByMachineRoom": "paceline.consumer.group.allocation",
    "AllocateConsistentHash": "paceline.consumer.group.allocation",
    "AllocateMachineRoomNearby": "paceline.consumer.group.allocation",
    "BadJsonError": "paceline.errors",
    "BadNameError": "paceline.errors",
    "BadRequestError": "paceline.errors",
    "BatchView": "paceline.records.decode",
    "BlockingAdminClient": "paceline.blocking.admin",
    "BlockingLitePullConsumer": "paceline.blocking.consumers",
    "BlockingOrderedConsumer": "paceline.blocking.consumers",
    "BlockingProducer": "paceline.blocking.producers",
    "BlockingPullConsumer": "paceline.blocking.consumers",
    "BlockingPushConsumer": "paceline.blocking.consumers",
    "BlockingSimpleConsumer": "paceline.blocking.consumers",
    "BlockingTransaction": "paceline.blocking.producers",
    "BlockingTransactionProducer": "paceline.blocking.producers",
    "CheckForbiddenHook": "paceline.producer.hooks",
    "Cluster": "paceline.net.cluster",
    "ClientTls": "paceline.net.connect",
    "ConnectSettings": "paceline.net.connect",
    "Credentials": "paceline.net.connect",
    "TokenFile": "paceline.net.connect",
    "Quota": "paceline.wire.users",
    "credentials_of": "paceline.net.connect",
    "tls_of": "paceline.net.connect",
    "ClusterView": "paceline.wire.cluster",
    "Codec": "paceline.records.header",
    "CommandRefusedError": "paceline.errors",
    "CommittedOffsets": "paceline.consumer.pull",
    "Compression": "paceline.producer.batch",
    "ConfigError": "paceline.errors",
    "ConflictError": "paceline.errors",
    "ConnectedClients": "paceline.admin.clients",
    "ConsumeContext": "paceline.consumer.hooks",
    "ConsumeLater": "paceline.consumer.settings.push",
    "ConsumeMessageHook": "paceline.consumer.hooks",
    "ConsumerGroupSettings": "paceline.wire.consumer_groups",
    "ConsumerGroupView": "paceline.wire.consumer_groups",
    "CorruptBatchError": "paceline.errors",
    "CorruptLogError": "paceline.errors",
    "DeadLetter": "paceline.admin.dead_letters",
    "DeadlineError": "paceline.errors",
    "DiskFullError": "paceline.errors",
    "FencedEpochError": "paceline.errors",
    "Filter": "paceline.filters",
    "FlushDiskTimeoutError": "paceline.errors",
    "FlushReplicaTimeoutError": "paceline.errors",
    "ForbiddenError": "paceline.errors",
    "Gap": "paceline.consumer.fetch.gaps",
    "GroupExistsError": "paceline.errors",
    "GroupNotFoundError": "paceline.errors",
    "GroupSettings": "paceline.wire.cluster",
    "GroupView": "paceline.wire.cluster",
    "HalfMessage": "paceline.producer.transaction",
    "InSyncReplicasNotEnoughError": "paceline.errors",
    "InvalidReceiptHandleError": "paceline.errors",
    "LitePullConsumer": "paceline.consumer.lite_pull",
    "LitePullSettings": "paceline.consumer.lite_pull",
    "LockFencedError": "paceline.errors",
    "LockHeldError": "paceline.errors",
    "LockToken": "paceline.message",
    "LogicalQueue": "paceline.wire.static_topics",
    "Message": "paceline.message",
    "MessageNotFoundError": "paceline.errors",
    "MessageTypeError": "paceline.errors",
    "NoMasterError": "paceline.errors",
    "NoPermissionError": "paceline.errors",
    "NotAuthorizedError": "paceline.errors",
    "NotFoundError": "paceline.errors",
    "NotLeaderError": "paceline.errors",
    "NotMasterError": "paceline.errors",
    "NotYetAvailableError": "paceline.errors",
    "OffsetMovedBackError": "paceline.errors",
    "OffsetOutOfRangeError": "paceline.errors",
    "OnewayCounts": "paceline.producer.oneway",
    "OrderedConsumer": "paceline.consumer.ordered",
    "OrderedSettings": "paceline.consumer.ordered",
    "OutOfMemoryError": "paceline.errors",
    "OutOfOrderSequenceError": "paceline.errors",
    "OutcomeUnknownError": "paceline.errors",
    "OverloadedError": "paceline.errors",
    "PacelineError": "paceline.errors",
    "PayloadLimitError": "paceline.errors",
    "PeerError": "paceline.errors",
    "PinView": "paceline.wire.pins",
    "PinsOfGroup": "paceline.wire.pins",
    "PollingFullError": "paceline.errors",
    "PoppedMessage": "paceline.consumer.pop.popped_message",
    "Producer": "paceline.producer.producer",
    "ProducerFencedError": "paceline.errors",
    "ProducerSettings": "paceline.producer.settings",
    "PullConsumer": "paceline.consumer.pull",
    "PullSettings": "paceline.consumer.pull",
    "PulledBatch": "paceline.consumer.fetch.assigned",
    "PushConsumer": "paceline.consumer.push",
    "PushSettings": "paceline.consumer.push",
    "QueueKey": "paceline.queues",
    "QueueName": "paceline.queues",
    "QueueNotFoundError": "paceline.errors",
    "QueueRange": "paceline.consumer.pull",
    "QueueSealedError": "paceline.errors",
    "ReceiptExpiredError": "paceline.errors",
    "ReceiptsOpenError": "paceline.errors",
    "ReceivedMessage": "paceline.message",
    "QuotaExceededError": "paceline.errors",
    "RequestTimeoutError": "paceline.errors",
    "RequesterCounts": "paceline.producer.request_reply",
    "Resent": "paceline.admin.dead_letters",
    "Retry": "paceline.errors",
    "RetryPolicy": "paceline.wire.consumer_groups",
    "SendContext": "paceline.producer.hooks",
    "SendMessageHook": "paceline.producer.hooks",
    "SendResult": "paceline.producer.results",
    "SendResults": "paceline.producer.results",
    "Sending": "paceline.producer.results",
    "SendingMany": "paceline.producer.results",
    "ShuttingDownError": "paceline.errors",
    "SimpleConsumer": "paceline.consumer.simple",
    "SimpleSettings": "paceline.consumer.settings.simple",
    "StorageError": "paceline.errors",
    "StoredAt": "paceline.producer.results",
    "Subscription": "paceline.filters",
    "SuspendQueueError": "paceline.consumer.ordered",
    "StorageQuotaExceededError": "paceline.errors",
    "TooLargeError": "paceline.errors",
    "TopicExistsError": "paceline.errors",
    "TopicNotFoundError": "paceline.errors",
    "TopicView": "paceline.wire.topics",
    "Transaction": "paceline.producer.transaction",
    "TransactionEndedError": "paceline.errors",
    "TransactionNotFoundError": "paceline.errors",
    "TransactionProducer": "paceline.producer.transaction",
    "TransactionResult": "paceline.producer.transaction",
    "TransactionState": "paceline.producer.transaction",
    "LoginFailedError": "paceline.errors",
    "UnauthenticatedError": "paceline.errors",
    "UnknownProducerError": "paceline.errors",
    "UnsupportedMediaTypeError": "paceline.errors",
    "UserNotFoundError": "paceline.errors",
    "allocate_averagely": "paceline.consumer.group.allocation",
    "allocate_averagely_by_circle": "paceline.consumer.group.allocation",
    "make_filter": "paceline.filters",
    "select_by_hash": "paceline.producer.selectors",
}

__all__ = [*sorted(_HOMES), "__version__"]  # noqa: PLE0604 - names of _HOMES are strings


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
