"""Errors as statuses, and the bounds of the protocol."""

import pytest

from paceline import errors
from paceline.errors import BY_CODE, PacelineError
from paceline_gateway.grpc.codec.limits import (
    check_changed_invisible,
    check_client_properties,
    check_count,
    check_invisible,
    poll_ms,
)
from paceline_gateway.grpc.codec.statuses import (
    OK,
    Refused,
    common_status,
    status_of,
    status_of_send,
)
from paceline_gateway.grpc.stubs.resources_pb2 import Code


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=BY_CODE.keys())
def test_each_error_has_a_status_that_says_whose_fault_it_is(kind: type[PacelineError]) -> None:
    error = kind("words")

    status, of_send = status_of(error), status_of_send(error)

    assert "words" in status.message
    if issubclass(kind, errors.BadRequestError | errors.NotFoundError | errors.ConflictError):
        assert 40000 <= status.code < 50000
    if not kind.is_definite:
        assert of_send.code in (Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT)
        assert "may have been stored" in of_send.message
    else:
        assert "may have been stored" not in of_send.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TopicNotFoundError("x"), Code.TOPIC_NOT_FOUND),
        (errors.GroupNotFoundError("x"), Code.CONSUMER_GROUP_NOT_FOUND),
        (errors.ReceiptExpiredError("x"), Code.INVALID_RECEIPT_HANDLE),
        (errors.InvalidReceiptHandleError("x"), Code.INVALID_RECEIPT_HANDLE),
        (errors.NotAuthorizedError("x"), Code.FORBIDDEN),
        (errors.UnauthenticatedError("x"), Code.UNAUTHORIZED),
        (errors.QuotaExceededError("x"), Code.TOO_MANY_REQUESTS),
        (errors.InSyncReplicasNotEnoughError("x"), Code.HA_NOT_AVAILABLE),
        (errors.BadRequestError("x", field="delay_ms"), Code.ILLEGAL_DELIVERY_TIME),
        (errors.BadNameError("x", field="group"), Code.ILLEGAL_CONSUMER_GROUP),
        (errors.BadRequestError("x", field="properties.A"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (errors.StorageError("x"), Code.INTERNAL_SERVER_ERROR),
        (Refused(Code.ILLEGAL_TOPIC, "x"), Code.ILLEGAL_TOPIC),
    ],
)
def test_codes_are_those_that_clients_know(error: PacelineError, code: Code) -> None:
    assert status_of(error).code == code


def test_entries_of_one_code_share_it_and_others_are_mixed() -> None:
    bad = status_of(errors.TopicNotFoundError("x"))

    assert common_status([OK, OK]).code == Code.OK
    assert common_status([bad, bad]).code == Code.TOPIC_NOT_FOUND
    assert common_status([OK, bad]).code == Code.MULTIPLE_RESULTS


def test_a_poll_keeps_within_its_bounds_and_the_deadline() -> None:
    assert poll_ms(None, None) == 20_000
    assert poll_ms(40_000, None) == 20_000
    assert poll_ms(1_000, None) == 5_000
    assert poll_ms(20_000, 8_000) == 7_500
    with pytest.raises(Refused) as told:
        poll_ms(20_000, 400)
    assert told.value.status_code == Code.ILLEGAL_POLLING_TIME


def test_bounds_are_refused_with_their_codes() -> None:
    for refuse, code in (
        (lambda: check_invisible(9_999), Code.ILLEGAL_INVISIBLE_TIME),
        (lambda: check_changed_invisible(-1), Code.ILLEGAL_INVISIBLE_TIME),
        (lambda: check_count(0, "entries"), Code.BAD_REQUEST),
        (lambda: check_count(1025, "entries"), Code.BAD_REQUEST),
        (
            lambda: check_client_properties({str(n): "" for n in range(33)}),
            Code.INVALID_CLIENT_PROPERTIES,
        ),
        (lambda: check_client_properties({"k" * 65: ""}), Code.INVALID_CLIENT_PROPERTIES),
        (lambda: check_client_properties({"k": "v" * 257}), Code.INVALID_CLIENT_PROPERTIES),
    ):
        with pytest.raises(Refused) as told:
            refuse()
        assert told.value.status_code == code
    assert check_invisible(10_000) == 10_000
    assert check_changed_invisible(0) == 0
