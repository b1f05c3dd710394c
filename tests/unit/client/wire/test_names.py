"""Names from outside: what is refused, and how."""

import re

import pytest

from paceline.errors import BadNameError, ForbiddenError
from paceline.wire.commands import CONTROLLER_ID_PATTERN, NAME_PATTERN
from paceline.wire.names import (
    check_client_id,
    check_group_name,
    check_name,
    check_namespace,
    check_readable_topic_name,
    check_topic_name,
    namespace_of,
)

GOOD = ["a", "A-b_9.c", "9", "-", "x" * 127, "a..b", "_CON"]
IN_NAMESPACES = ["shop%orders", "a.b%c.d", "RETRYs%a", "9%9", f"{'n' * 63}%{'x' * 63}"]


@pytest.mark.parametrize("name", [*GOOD, *IN_NAMESPACES])
def test_a_good_name_is_given_back(name: str) -> None:
    assert check_name(name, "group") == name
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", ".a", "a.", "...", "x" * 128, "../../etc/passwd", "a/b", "a\\b", "a b", "a ",
        "a\n", "a\0b", "a\r\nb", "\x1b[31m", "\u202eabc", "a\u200bb", "\uff41", "\u0665",
        "%", "a%", "%2e", "a%b%c", "a%%b", "a.%b", ".a%b", "a%.b", "RETRY%a", "DLQ%a",
        f"{'n' * 64}%a", f"{'n' * 63}%{'x' * 64}", "a%..", None, 5, True, b"a", ["a"],
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
    for name in ("10.0.0.1@7", "10.0.0.1@7#123456789"):  # of RocketMQ's old and new Java clients
        assert check_client_id(name) == name
    for name in ("", ".", "..", "...", "a b"):
        with pytest.raises(BadNameError):
            check_client_id(name)


@pytest.mark.parametrize(
    "name",
    [
        "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE", "SCHEDULE_TOPIC_XXXX", "TBW102", "rmq_sys_x",
        "%RETRY%shop%g", "shop%TBW102", "shop%paceline_REPLY_TOPIC", "RMQ_SYS_a%b", "shop%%RETRY%g",
    ],
)  # fmt: skip
def test_a_topic_of_the_system_is_forbidden(name: str) -> None:
    with pytest.raises(ForbiddenError, match=f"^{name} is the name of a system topic and reserved"):
        check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("orders", ""),
        ("shop%orders", "shop"),
        ("%RETRY%shop%billing", "shop"),
        ("%DLQ%shop%billing", "shop"),
        ("%RETRY%billing", ""),
        ("%DLQ%paceline.delay", ""),
        ("TRANS_CHECK_MAX_TIME_TOPIC", ""),
    ],
)
def test_a_name_says_its_namespace(name: str, namespace: str) -> None:
    assert namespace_of(name) == namespace
    assert check_readable_topic_name(name) == name


@pytest.mark.parametrize("namespace", ["", "a%b", "RETRY", "DLQ", "RMQ_SYS_", "n" * 64, ".a", None])
def test_a_bad_namespace_is_refused(namespace: object) -> None:
    with pytest.raises(BadNameError):
        check_namespace(namespace)


def test_a_group_of_the_system_is_forbidden_in_every_namespace() -> None:
    for name in ("paceline.delay", "shop%paceline.delay"):
        with pytest.raises(ForbiddenError, match="the system's own"):
            check_group_name(name)
