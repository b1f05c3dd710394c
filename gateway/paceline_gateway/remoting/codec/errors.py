"""Pure: errors as answers: the ResponseCode that RocketMQ's clients act upon, and a remark.

No message of unknown fate is answered with FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT: to clients
these are results, which many programs take for success.
"""

from paceline import errors as ours
from paceline_gateway.remoting.codec.codes import ResponseCode

_CODES: tuple[tuple[type[ours.PacelineError], ResponseCode], ...] = (
    (ours.TopicNotFoundError, ResponseCode.TOPIC_NOT_EXIST),
    (ours.QueueNotFoundError, ResponseCode.INVALID_PARAMETER),
    (ours.GroupNotFoundError, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    (ours.MessageNotFoundError, ResponseCode.QUERY_NOT_FOUND),
    (ours.UnauthenticatedError, ResponseCode.NO_PERMISSION),
    (ours.ForbiddenError, ResponseCode.NO_PERMISSION),
    (ours.TooLargeError, ResponseCode.MESSAGE_ILLEGAL),
    (ours.MessageTypeError, ResponseCode.MESSAGE_ILLEGAL),
    (ours.InvalidReceiptHandleError, ResponseCode.MESSAGE_ILLEGAL),
    (ours.BadRequestError, ResponseCode.INVALID_PARAMETER),
    (ours.InSyncReplicasNotEnoughError, ResponseCode.SYSTEM_BUSY),
    (ours.QuotaExceededError, ResponseCode.FLOW_CONTROL),
    (ours.OverloadedError, ResponseCode.SYSTEM_BUSY),
    (ours.PayloadLimitError, ResponseCode.SYSTEM_BUSY),
    (ours.NotMasterError, ResponseCode.SYSTEM_BUSY),
    (ours.NoMasterError, ResponseCode.SYSTEM_BUSY),
    (ours.ShuttingDownError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (ours.DiskFullError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (ours.StorageQuotaExceededError, ResponseCode.SERVICE_NOT_AVAILABLE),
)


def answer_code(error: ours.PacelineError) -> ResponseCode:
    """The first that fits."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ResponseCode.SYSTEM_ERROR


def remark_of(error: ours.PacelineError) -> str:
    """What happened, with the code of docs/protocol/errors.md; whether it may have been done."""
    known = "" if error.is_definite else " (it may have been carried out)"
    return f"{error.code}: {error.message}{known}"
