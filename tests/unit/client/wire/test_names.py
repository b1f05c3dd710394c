"""Names from outside: what is refused, and how."""

import re

import pytest

from paceline.errors import BadNameError, ForbiddenError
from paceline.wire.commands import CONTROLLER_ID_PATTERN, NAME_PATTERN
from paceline.wire.names import check_client_id, check_name, check_topic_name


@pytest.mark.parametrize("name", ["a", "A-b_9.c", "9", "-", "x" * 127, "a..b", "_CON"])
def test_a_good_name_is_given_back(name: str) -> None:
    assert check_name(name, "group") == name
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", ".a", "a.", "...", "x" * 128, "../../etc/passwd", "a/b", "a\\b", "a b", "a ",
        "a\n", "a\0b", "a\r\nb", "\x1b[31m", "\u202eabc", "a\u200bb", "\uff41", "\u0665",
        "%", "a%b", "%2e", None, 5, True, b"a", ["a"],
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_with_its_field(name: object) -> None:
    with pytest.raises(BadNameError) as caught:
        check_name(name, "group")
    assert caught.value.details["field"] == "group"
    with pytest.raises(BadNameError) as caught:
        check_topic_name(name)
    assert caught.value.details["field"] == "topic"


@pytest.mark.parametrize("pattern", [NAME_PATTERN, CONTROLLER_ID_PATTERN])
def test_a_name_of_a_node_is_more_than_dots(pattern: str) -> None:
    assert re.fullmatch(pattern, "..a")
    for name in ("", ".", "..", "...", "a/b", "..\n"):
        assert re.fullmatch(pattern, name) is None, name


def test_a_client_id_of_dots_is_refused() -> None:
    """A broadcasting member's folder has it for a name."""
    assert check_client_id("10.0.0.1@7") == "10.0.0.1@7"
    for name in ("", ".", "..", "...", "a b"):
        with pytest.raises(BadNameError):
            check_client_id(name)


@pytest.mark.parametrize(
    "name", ["%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE", "SCHEDULE_TOPIC_XXXX", "TBW102", "rmq_sys_x"]
)
def test_a_topic_of_the_system_is_forbidden(name: str) -> None:
    with pytest.raises(ForbiddenError, match=f"^{name} is the name of a system topic and reserved"):
        check_topic_name(name)
