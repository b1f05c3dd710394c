"""Codes are the wire contract: unique, reversible, and documented."""

from http import HTTPStatus

import pytest

from paceline.errors import (
    BY_CODE,
    BadRequestError,
    NotMasterError,
    OutcomeUnknownError,
    PacelineError,
    Retry,
    from_problem,
    to_problem,
)

ERRORS = sorted(BY_CODE.values(), key=lambda error: error.code)


def all_classes(root: type[PacelineError] = PacelineError) -> list[type[PacelineError]]:
    return [root, *(found for child in root.__subclasses__() for found in all_classes(child))]


def test_every_code_is_unique() -> None:
    codes = [error.code for error in all_classes() if error.__module__ == "paceline.errors"]

    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error_class", ERRORS, ids=lambda error: error.code)
def test_problem_reads_back_as_the_same_error(error_class: type[PacelineError]) -> None:
    error = error_class("epoch 4 is older than 7", epoch=4, master=None)

    back = from_problem(to_problem(error))

    assert type(back) is error_class
    assert (back.message, back.details) == (error.message, error.details)


@pytest.mark.parametrize("error_class", ERRORS, ids=lambda error: error.code)
def test_class_agrees_with_itself(error_class: type[PacelineError]) -> None:
    assert error_class.code == error_class.code.upper()
    assert isinstance(error_class.status, HTTPStatus)
    if issubclass(error_class, BadRequestError):
        # Whatever the request was, sending the same again cannot help, and nothing was stored.
        assert error_class.retry is Retry.NEVER
        assert error_class.is_definite
        assert 400 <= error_class.status < 500


def test_error_that_says_nothing_is_indefinite() -> None:
    assert PacelineError("a bug").is_definite is False


def test_unknown_code_is_an_unknown_outcome() -> None:
    error = from_problem({"code": "FROM_THE_FUTURE", "detail": "hm"})

    assert type(error) is OutcomeUnknownError
    assert "FROM_THE_FUTURE" in error.message


@pytest.mark.parametrize("problem", [{}, {"code": 7}, {"code": None, "detail": None}])
def test_problem_without_a_code_is_an_unknown_outcome(problem: dict[str, object]) -> None:
    assert not from_problem(problem).is_definite


def test_details_can_neither_break_nor_hide_standard_members() -> None:
    problem = to_problem(NotMasterError("no", status=200, code="OK", message="m", self="s"))

    assert (problem["status"], problem["code"]) == (421, "NOT_MASTER")
    assert from_problem(problem).details == {"message": "m", "self": "s"}


@pytest.mark.parametrize("error_class", ERRORS, ids=lambda error: error.code)
def test_class_says_what_its_code_means(error_class: type[PacelineError]) -> None:
    assert error_class.__doc__
