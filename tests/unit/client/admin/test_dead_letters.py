"""Names of dead letters, as people write them."""

import pytest

from paceline.admin.dead_letters import DeadLetter, parse_dead_letter
from paceline.cli.main import EXIT_REFUSED, main
from paceline.errors import BadRequestError


def test_name_is_written_and_read() -> None:
    letter = DeadLetter("g1", 2, 17)

    assert str(letter) == "g1/2/17"
    assert parse_dead_letter("g1/2/17") == letter


@pytest.mark.parametrize("text", ["", "g1", "g1/0", "g1/0/-1", "g1/x/0", "g1/0/0/0", "g1/0/1²"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_dead_letter(text)


@pytest.mark.parametrize("words", [["cooks"], ["cooks", "g1/0/0", "--all"], ["cooks", "17"]])
def test_resend_needs_names_or_all_and_says_so(words: list[str]) -> None:
    assert main(["dlq", "resend", *words]) == EXIT_REFUSED
