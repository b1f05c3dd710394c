"""Every error paceline raises or answers: one hierarchy, one stable code each.

`code` is the wire contract (docs/protocol/errors.md lists all). `retry` tells a client what may
help. `is_definite` says whether a failed write certainly stored nothing: only then may a batch
move to another queue or be reported as "not stored" (R32). `status` is used in one place, where an
HTTP answer is made. Messages name the values and whose fault it is: the caller's
(`BadRequestError`), another node's (`PeerError`), ours (`StorageError`).
"""

from enum import Enum
from http import HTTPStatus
from typing import ClassVar


class Retry(Enum):
    """What a caller may try after an error."""

    NEVER = "never"
    SAME_NODE = "same_node"
    NEW_MASTER = "new_master"


class PacelineError(Exception):
    """Root of all operating errors. Subclasses set the class attributes.

    An error is indefinite unless its class says otherwise: forgetting to say so costs a retry,
    the other way round it would cost a message (R32).
    """

    code: ClassVar[str] = "INTERNAL"
    retry: ClassVar[Retry] = Retry.NEVER
    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR
    is_definite: ClassVar[bool] = False

    def __init__(self, message: str, /, **details: object) -> None:
        """`message` is for people; `details` (JSON values: field, master, offsets) for programs."""
        super().__init__(message)
        self.message = message
        self.details = details


# -- the caller's fault ---------------------------------------------------------------------------


class BadRequestError(PacelineError):
    """A field is missing, unknown, of a wrong type or out of range; details: `field`."""

    code, status = "BAD_REQUEST", HTTPStatus.BAD_REQUEST
    is_definite = True


class BadJsonError(BadRequestError):
    """The body is not JSON, or has NaN, a duplicate key or no UTF-8."""

    code = "BAD_JSON"


class BadNameError(BadRequestError):
    """A topic, group or key name that paceline does not accept."""

    code = "BAD_NAME"


class CorruptBatchError(BadRequestError):
    """A record batch from a client fails a CRC or its layout; nothing was stored."""

    code = "CORRUPT_BATCH"


class InvalidReceiptHandleError(BadRequestError):
    """A receipt handle that no broker made for this consumer group; nothing was changed."""

    code = "INVALID_RECEIPT_HANDLE"


class OffsetOutOfRangeError(BadRequestError):
    """Details: `start`, `end` (the valid half-open range)."""

    code, status = "OFFSET_OUT_OF_RANGE", HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


class TooLargeError(BadRequestError):
    """A body, message or batch over its limit; details: `limit`."""

    code, status = "TOO_LARGE", HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMediaTypeError(BadRequestError):
    """The content type is neither JSON nor a record batch."""

    code, status = "UNSUPPORTED_MEDIA_TYPE", HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class NotFoundError(PacelineError):
    """No such route or thing."""

    code, status = "NOT_FOUND", HTTPStatus.NOT_FOUND
    is_definite = True


class TopicNotFoundError(NotFoundError):
    """No such topic; details: `topic`."""

    code = "TOPIC_NOT_FOUND"


class QueueNotFoundError(NotFoundError):
    """The topic has no such queue in this broker group; details: `queue`."""

    code = "QUEUE_NOT_FOUND"


class GroupNotFoundError(NotFoundError):
    """No such broker group or consumer group; details: `group`."""

    code = "GROUP_NOT_FOUND"


class UserNotFoundError(NotFoundError):
    """There is no such user, or the user has no such access key; details: `user`."""

    code = "USER_NOT_FOUND"


class MessageNotFoundError(NotFoundError):
    """No queue has a message of that id: it was deleted, is not in a queue yet, or never was."""

    code = "MESSAGE_NOT_FOUND"


class ConflictError(PacelineError):
    """The request contradicts the present state; nothing was changed."""

    code, status = "CONFLICT", HTTPStatus.CONFLICT
    is_definite = True


class TopicExistsError(ConflictError):
    """The topic exists with other settings; details: `topic`."""

    code = "TOPIC_EXISTS"


class GroupExistsError(ConflictError):
    """There is a consumer group of that name already; details: `group`."""

    code = "GROUP_EXISTS"


class UnauthenticatedError(PacelineError):
    """No proof of identity, or a wrong one: another cluster secret, an access key that is unknown,
    revoked or expired, none at all where users and rights are switched on."""

    code, status = "UNAUTHENTICATED", HTTPStatus.UNAUTHORIZED
    is_definite = True


class LoginFailedError(UnauthenticatedError):
    """There is no such user, it is disabled or has no password, or its password is another: an
    answer does not say which."""

    code = "LOGIN_FAILED"


class ForbiddenError(PacelineError):
    """The identity is known and may not do this."""

    code, status = "FORBIDDEN", HTTPStatus.FORBIDDEN
    is_definite = True


class NoPermissionError(ForbiddenError):
    """The topic or group does not allow it (RocketMQ's NO_PERMISSION): its `perm`, its
    `consume_enable`; to the client library, a wiped broker group where only that will do (masters
    answer QUEUE_NOT_FOUND). Nothing was stored. Details: `topic` or `group`."""

    code = "NO_PERMISSION"


class NotAuthorizedError(ForbiddenError):
    """No policy of the user allows it; nothing was done. Details: `user`, `resource`, `actions`,
    `rule` (why), `request_id` (of its record in the audit)."""

    code = "NOT_AUTHORIZED"


class MessageTypeError(BadRequestError):
    """The topic takes other messages; details: `topic`, `message_type`. Nothing was stored."""

    code = "MESSAGE_TYPE_MISMATCH"


class PayloadLimitError(PacelineError):
    """Client side: the producer's memory bound is reached."""

    code, retry, status = "BUFFER_FULL", Retry.SAME_NODE, HTTPStatus.TOO_MANY_REQUESTS
    is_definite = True


# -- producers and consumers ----------------------------------------------------------------------


class OutOfOrderSequenceError(ConflictError):
    """Details: `expected`. A gap: an earlier batch of this producer is missing (R31)."""

    code = "OUT_OF_ORDER_SEQUENCE"


class UnknownProducerError(ConflictError):
    """The queue knows no such producer id or epoch, so the first sequence must be 0 (R31)."""

    code = "UNKNOWN_PRODUCER"


class ProducerFencedError(ConflictError):
    """A newer epoch of this producer id has written (R31)."""

    code = "PRODUCER_FENCED"


class OffsetMovedBackError(ConflictError):
    """A commit below the committed offset that is not a reset; details: `committed`."""

    code = "OFFSET_MOVED_BACK"


class LockHeldError(ConflictError):
    """Another client holds the queue lock; details: `holder`, `expires_in_ms`."""

    code = "LOCK_HELD"


class LockFencedError(ConflictError):
    """The fencing token is older than the present one (INV-11)."""

    code = "LOCK_FENCED"


class TransactionNotFoundError(NotFoundError):
    """No half message has this transaction id, or it is forgotten: its log is gone (R34)."""

    code = "TRANSACTION_NOT_FOUND"


class TransactionEndedError(ConflictError):
    """The transaction has ended in another way; details: `outcome` (R34)."""

    code = "TRANSACTION_ENDED"


class ReceiptExpiredError(ConflictError):
    """The message of this receipt handle was given anew, or is done; nothing was changed."""

    code = "RECEIPT_EXPIRED"


class ReceiptsOpenError(ConflictError):
    """Messages of the queue are invisible: only the receivers that have them move its offset."""

    code = "RECEIPTS_OPEN"


# -- role and replication -------------------------------------------------------------------------


class NotMasterError(PacelineError):
    """This broker is not master of its group; details: `master` (address) or null."""

    code, retry, status = "NOT_MASTER", Retry.NEW_MASTER, HTTPStatus.MISDIRECTED_REQUEST
    is_definite = True


class QueueSealedError(PacelineError):
    """The queue takes no more: its logical queue goes on elsewhere (RocketMQ's
    NOT_LEADER_FOR_QUEUE). Nothing was stored by this attempt, nor, unless the detail
    `is_earlier_unknown` is true, by an earlier one. Details: `topic_id`, `queue`."""

    code, retry, status = "QUEUE_SEALED", Retry.NEW_MASTER, HTTPStatus.MISDIRECTED_REQUEST
    is_definite = True


class NoMasterError(PacelineError):
    """The group has no master; this broker acts for it and serves reads only (R36).

    Nothing was stored. Details: `group`. Writes go on once a member has been elected.
    """

    code, retry, status = "NO_MASTER", Retry.NEW_MASTER, HTTPStatus.SERVICE_UNAVAILABLE
    is_definite = True


class NotYetAvailableError(PacelineError):
    """A new master whose epoch start is not confirmed, or a restarted replica (R3); a controller
    that has started and heard of no leader yet, so that it cannot know users and rights."""

    code, retry, status = "NOT_YET_AVAILABLE", Retry.SAME_NODE, HTTPStatus.SERVICE_UNAVAILABLE
    is_definite = True


class FencedEpochError(PacelineError):
    """The request names an older epoch than the one in force (INV-4)."""

    code, retry, status = "FENCED_EPOCH", Retry.NEW_MASTER, HTTPStatus.CONFLICT
    is_definite = True


class InSyncReplicasNotEnoughError(PacelineError):
    """Fewer members acknowledge now than the group requires, and not for want of room on their
    disks (DISK_FULL); nothing was appended (R8)."""

    code, retry = "IN_SYNC_REPLICAS_NOT_ENOUGH", Retry.SAME_NODE
    status = HTTPStatus.SERVICE_UNAVAILABLE
    is_definite = True


class OverloadedError(PacelineError):
    """A bounded queue is full, or more waits for confirm than is confirmed in time; nothing was
    appended. Details: `retry_after_ms`."""

    code, retry, status = "OVERLOADED", Retry.SAME_NODE, HTTPStatus.TOO_MANY_REQUESTS
    is_definite = True


class QuotaExceededError(OverloadedError):
    """A user has taken more than its quota allows, or has made as many topics and groups, or has as
    many connections to this node; nothing was stored. Details: `retry_after_ms`."""

    code = "QUOTA_EXCEEDED"


class StorageQuotaExceededError(PacelineError):
    """The topic or its namespace has as many bytes in the broker group as its quota allows; nothing
    was stored. No retry helps before messages are deleted or the quota is raised. Details:
    `subject`."""

    code, status = "STORAGE_QUOTA_EXCEEDED", HTTPStatus.INSUFFICIENT_STORAGE
    is_definite = True


class PollingFullError(OverloadedError):
    """As many receivers wait as may; the consumer asks again after `retry_after_ms`."""

    code = "POLLING_FULL"


class DiskFullError(PacelineError):
    """A disk of the group is too full to take more; nothing was appended. `retry_after_ms`."""

    code, retry = "DISK_FULL", Retry.SAME_NODE
    status = HTTPStatus.INSUFFICIENT_STORAGE
    is_definite = True


class OutOfMemoryError(PacelineError):
    """The node got no memory while it worked on the request, which may have been carried out."""

    code, retry = "OUT_OF_MEMORY", Retry.SAME_NODE
    status = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(
        self,
        message: str = "this node got no memory; whether the request was carried out is unknown",
        /,
        **details: object,
    ) -> None:
        super().__init__(message, **details)


class OutcomeUnknownError(PacelineError):
    """The write may be stored or not: only a retry of the same batch on its queue is safe."""

    code, retry, status = "OUTCOME_UNKNOWN", Retry.NEW_MASTER, HTTPStatus.GATEWAY_TIMEOUT


class FlushReplicaTimeoutError(OutcomeUnknownError):
    """Stored here, not yet confirmed by the sync state set within the timeout (RocketMQ's name)."""

    code = "FLUSH_SLAVE_TIMEOUT"


class FlushDiskTimeoutError(OutcomeUnknownError):
    """Written, but not yet on disk within the timeout (RocketMQ's name)."""

    code = "FLUSH_DISK_TIMEOUT"


# -- controller -----------------------------------------------------------------------------------


class NotLeaderError(PacelineError):
    """This controller does not lead; details: `leader` (address) or null."""

    code, retry, status = "NOT_LEADER", Retry.NEW_MASTER, HTTPStatus.MISDIRECTED_REQUEST
    is_definite = True


class CommandRefusedError(PacelineError):
    """The state machine refused a command; details: `reason`, e.g. STALE_SET_EPOCH."""

    code, status = "COMMAND_REFUSED", HTTPStatus.CONFLICT
    is_definite = True


# -- nodes ----------------------------------------------------------------------------------------


class PeerError(PacelineError):
    """Another node is gone, silent, or said something impossible."""

    code, retry, status = "PEER", Retry.SAME_NODE, HTTPStatus.BAD_GATEWAY


class DeadlineError(PacelineError):
    """An operation did not finish in its time; for a write: outcome unknown."""

    code, retry, status = "DEADLINE", Retry.SAME_NODE, HTTPStatus.GATEWAY_TIMEOUT


class RequestTimeoutError(PacelineError):
    """A request had no reply in its time. It may have been received, and acted upon."""

    code, retry, status = "REQUEST_TIMEOUT", Retry.NEVER, HTTPStatus.GATEWAY_TIMEOUT


class StorageError(PacelineError):
    """Our disk failed, is full, is locked by another process, or holds foreign data."""

    code, retry, status = "STORAGE", Retry.NEW_MASTER, HTTPStatus.SERVICE_UNAVAILABLE


class CorruptLogError(StorageError):
    """Bytes that are not what was written. Details: `path`, `offset` where known."""

    code = "CORRUPT_LOG"


class ConfigError(PacelineError):
    """A setting is unknown, malformed or contradicts another: the process does not start."""

    code = "CONFIG"
    is_definite = True


class ShuttingDownError(PacelineError):
    """The process is stopping and takes no new work."""

    code, retry, status = "SHUTTING_DOWN", Retry.NEW_MASTER, HTTPStatus.SERVICE_UNAVAILABLE
    is_definite = True


def _all_subclasses(root: type[PacelineError]) -> list[type[PacelineError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_all_subclasses(child))
    return found


BY_CODE: dict[str, type[PacelineError]] = {cls.code: cls for cls in _all_subclasses(PacelineError)}
"""Code on the wire -> class; `from_problem` uses it."""


def to_problem(error: PacelineError) -> dict[str, object]:
    """The RFC 9457 problem document of an error (also the body of an error frame on a stream)."""
    return {
        **error.details,  # first: no detail may hide a standard member
        "type": f"https://paceline.dev/errors/{error.code}",
        "title": error.code.replace("_", " ").capitalize(),
        "status": int(error.status),
        "code": error.code,
        "detail": error.message,
        "retry": error.retry.value,
        "definite": error.is_definite,
    }


_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "retry", "definite"})


def from_problem(problem: dict[str, object]) -> PacelineError:
    """The error a problem document describes; an unknown code means an unknown outcome."""
    code = problem.get("code")
    message = str(problem.get("detail", "no detail given"))
    details = {key: value for key, value in problem.items() if key not in _PROBLEM_MEMBERS}
    error_class = BY_CODE.get(code) if isinstance(code, str) else None
    if error_class is None:
        return OutcomeUnknownError(f"unknown answer {code!r}: {message}")
    return error_class(message, **details)


_WORDS_LENGTH_MAX = 200


def in_words(error: BaseException) -> str:
    """An error of a library on one line, without the request that aiohttp's errors show: its
    headers have secret keys."""
    if not hasattr(error, "request_info"):
        return repr(error)
    said = " ".join(str(getattr(error, "message", "")).split())
    return f"{type(error).__name__}: {said[:_WORDS_LENGTH_MAX]}"
