"""Pure: queues chosen by the application (RocketMQ's MessageQueueSelector)."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from paceline.errors import BadRequestError, PacelineError
from paceline.message import Message
from paceline.queues import QueueName, index_of_key

Selector: TypeAlias = Callable[[Sequence[QueueName], Message, Any], QueueName]
"""(queues of the topic in stable order, message, argument) -> one of the queues."""


def select_by_hash(queues: Sequence[QueueName], message: Message, arg: Any) -> QueueName:
    """The queue for `str(arg)`, the same as for a key of that text: equal arguments keep order."""
    return queues[index_of_key(str(arg).encode(), len(queues))]


def selected(
    selector: Selector, queues: Sequence[QueueName], message: Message, arg: Any
) -> QueueName:
    """What the application's selector says; BadRequestError for anything but a queue given to it.

    Whatever it raises is the application's fault and fails its message, not the producer.
    """
    try:
        chosen = selector(queues, message, arg)
    except PacelineError:
        raise
    except Exception as error:
        raise BadRequestError(f"the selector failed: {error!r}", field="selector") from error
    if chosen not in queues:
        raise BadRequestError(
            f"the selector chose {chosen!r}, which is no queue of topic {message.topic}",
            field="selector",
        )
    return chosen
