"""Names from outside: what is refused, and how."""

import pytest

from paceline.errors import BadNameError, ForbiddenError
from paceline.wire.names import check_name, check_topic_name


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


@pytest.mark.parametrize(
    "name", ["%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE", "SCHEDULE_TOPIC_XXXX", "TBW102", "rmq_sys_x"]
)
def test_a_topic_of_the_system_is_forbidden(name: str) -> None:
    with pytest.raises(ForbiddenError, match=f"^{name} is the name of a system topic and reserved"):
        check_topic_name(name)
