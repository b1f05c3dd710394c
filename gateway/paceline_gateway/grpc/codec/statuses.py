"""Pure: errors of paceline as statuses of RocketMQ's protocol.

The words of an error are passed on. A status has no field for an unknown outcome, so its words say
that the message may have been stored, and its code is one of those that RocketMQ has for answers
that came too late.
"""

from paceline import errors
from paceline.errors import PacelineError
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Status

OK = Status(code=Code.OK, message="OK")

_BY_CLASS: dict[type[PacelineError], Code] = {
    errors.BadRequestError: Code.BAD_REQUEST,
    errors.ConfigError: Code.BAD_REQUEST,
    errors.MessageTypeError: Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    errors.InvalidReceiptHandleError: Code.INVALID_RECEIPT_HANDLE,
    errors.ReceiptExpiredError: Code.INVALID_RECEIPT_HANDLE,
    errors.TooLargeError: Code.PAYLOAD_TOO_LARGE,
    errors.NotFoundError: Code.NOT_FOUND,
    errors.TopicNotFoundError: Code.TOPIC_NOT_FOUND,
    errors.QueueNotFoundError: Code.TOPIC_NOT_FOUND,
    errors.GroupNotFoundError: Code.CONSUMER_GROUP_NOT_FOUND,
    errors.MessageNotFoundError: Code.MESSAGE_NOT_FOUND,
    errors.TransactionNotFoundError: Code.INVALID_TRANSACTION_ID,
    errors.TransactionEndedError: Code.INVALID_TRANSACTION_ID,
    errors.ConflictError: Code.PRECONDITION_FAILED,
    errors.UnauthenticatedError: Code.UNAUTHORIZED,
    errors.ForbiddenError: Code.FORBIDDEN,
    errors.OverloadedError: Code.TOO_MANY_REQUESTS,
    errors.PayloadLimitError: Code.TOO_MANY_REQUESTS,
    errors.StorageQuotaExceededError: Code.TOO_MANY_REQUESTS,
    errors.InSyncReplicasNotEnoughError: Code.HA_NOT_AVAILABLE,
    errors.NotMasterError: Code.HA_NOT_AVAILABLE,
    errors.NoMasterError: Code.HA_NOT_AVAILABLE,
    errors.NotYetAvailableError: Code.HA_NOT_AVAILABLE,
    errors.ShuttingDownError: Code.HA_NOT_AVAILABLE,
    errors.OutcomeUnknownError: Code.PROXY_TIMEOUT,
    errors.DeadlineError: Code.PROXY_TIMEOUT,
    errors.PeerError: Code.PROXY_TIMEOUT,
}
_BY_FIELD: dict[str, Code] = {
    "topic": Code.ILLEGAL_TOPIC,
    "group": Code.ILLEGAL_CONSUMER_GROUP,
    "tag": Code.ILLEGAL_MESSAGE_TAG,
    "key": Code.ILLEGAL_MESSAGE_KEY,
    "sharding": Code.ILLEGAL_MESSAGE_GROUP,
    "delivery_unix_ms": Code.ILLEGAL_DELIVERY_TIME,
    "delay_ms": Code.ILLEGAL_DELIVERY_TIME,
    "invisible_ms": Code.ILLEGAL_INVISIBLE_TIME,
    "wait_ms": Code.ILLEGAL_POLLING_TIME,
    "expression": Code.ILLEGAL_FILTER_EXPRESSION,
    "client_id": Code.CLIENT_ID_REQUIRED,
}
"""Which field of a request is wrong says more than that one is."""
_MAYBE_STORED = "the message may have been stored: "


class Refused(PacelineError):
    """What a door refuses by itself, with the code that clients know it by."""

    is_definite = True

    def __init__(self, code: Code, message: str, /) -> None:
        super().__init__(message)
        self.status_code = code


def status_of(error: PacelineError) -> Status:
    """The status that says so."""
    return Status(code=_code_of(error), message=_said(error))


def status_of_send(error: PacelineError) -> Status:
    """That of a message's sending: whether it may have been stored is part of it."""
    if error.is_definite:
        return status_of(error)
    code = Code.MASTER_PERSISTENCE_TIMEOUT
    if isinstance(error, errors.FlushReplicaTimeoutError):
        code = Code.SLAVE_PERSISTENCE_TIMEOUT
    return Status(code=code, message=_MAYBE_STORED + _said(error))


def _code_of(error: PacelineError) -> Code:
    if isinstance(error, Refused):
        return error.status_code
    field = str(error.details.get("field", ""))
    if type(error) in (errors.BadRequestError, errors.BadNameError):
        if field.startswith("properties"):
            return Code.ILLEGAL_MESSAGE_PROPERTY_KEY
        if field in _BY_FIELD:
            return _BY_FIELD[field]
    for kind in type(error).__mro__:
        code = _BY_CLASS.get(kind)
        if code is not None:
            return code
    return Code.INTERNAL_SERVER_ERROR


def _said(error: PacelineError) -> str:
    """The error's own words, and its name for programs."""
    name = "" if isinstance(error, Refused) else f"{error.code}: "
    return name + error.message


def common_status(statuses: list[Status]) -> Status:
    """Of an answer with one status for each entry: theirs, if they have one code."""
    codes = {status.code for status in statuses}
    if len(codes) == 1:
        return statuses[0]
    return Status(code=Code.MULTIPLE_RESULTS, message="entries have different results")
