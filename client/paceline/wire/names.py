"""Pure: names of topics and groups from outside: RocketMQ's rule, narrowed: nothing to escape.

A name is never joined into a file path; still it can hold nothing that means something to a path,
a URL, a log line or a terminal. Only the system's own topics begin with "%".
"""

import re

from paceline.errors import BadNameError, ForbiddenError

NAME_LENGTH_MAX = 127
"""RocketMQ's TOPIC_MAX_LENGTH."""
RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages whose checks ran out."""
DELAY_GROUP = "paceline.delay"
"""No consumer group: the name that the dead letters of due messages stand under (R35)."""
DELAY_DLQ_TOPIC = DLQ_PREFIX + DELAY_GROUP
REPLY_TOPIC = "paceline_REPLY_TOPIC"
"""Answers to requests: the one system topic that clients send to, through their producers."""
REPLY_QUEUES = 4
"""Of the reply topic in each broker group: a requester reads the replies of one of them."""
SYSTEM_TOPICS = (TRANS_CHECK_MAX_TIME_TOPIC, DELAY_DLQ_TOPIC, REPLY_TOPIC)
"""Made with the first broker group; those of consumer groups come with each group."""
CLIENT_ID_PATTERN = r"(?!\.+\Z)[A-Za-z0-9._:@/-]{1,255}"
_NAME = re.compile(r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]{0,125}[A-Za-z0-9_-])?", re.ASCII)
_SYSTEM = re.compile(
    r"%(?:RETRY|DLQ)%|SCHEDULE_TOPIC|RMQ_SYS_|rmq_sys_|(?:TBW102|BenchmarkTest|SELF_TEST_TOPIC"
    r"|OFFSET_MOVED_EVENT|CHECKPOINT_TOPIC|TRANS_CHECK_MAX_TIME_TOPIC|paceline_REPLY_TOPIC)$"
)
_OF_A_GROUP = re.compile(r"%(?:RETRY|DLQ)%(.*)")


def check_name(name: object, field: str) -> str:
    """The name of a group, or BadNameError for the field.

    1 to 127 of A-Z a-z 0-9 . _ - and neither first nor last a dot, so "." and ".." are none.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise BadNameError(
            f"{field} must be 1 to {NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - and neither begin nor end"
            " with a dot",
            field=field,
        )
    return name


def check_client_id(client_id: object) -> str:
    """What names one client among those of its group, or BadNameError."""
    if not isinstance(client_id, str) or re.fullmatch(CLIENT_ID_PATTERN, client_id) is None:
        raise BadNameError(
            "client_id must be 1 to 255 of A-Z a-z 0-9 . _ : @ / - and more than dots",
            field="client_id",
        )
    return client_id


def check_group_name(name: object, field: str = "group") -> str:
    """The name of a consumer group that users may have; ForbiddenError for the system's own."""
    checked = check_name(name, field)
    if checked == DELAY_GROUP:
        raise ForbiddenError(f"{DELAY_GROUP} is the system's own", field=field)
    return checked


def check_topic_name(name: object, field: str = "topic") -> str:
    """The name of a topic that clients may make, change and send to.

    ForbiddenError for one of the system's topics.
    """
    if is_system_topic(name):
        raise ForbiddenError(
            f"{name} is the name of a system topic and reserved: clients neither make, change nor"
            " send to it; choose another name",
            field=field,
        )
    return check_name(name, field)


def check_readable_topic_name(name: object, field: str = "topic") -> str:
    """The name of a topic that clients may read: their own, retries, and dead letters."""
    if isinstance(name, str) and name in SYSTEM_TOPICS:
        return name
    match = _OF_A_GROUP.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return check_topic_name(name, field)
    check_name(match.group(1), field)
    assert isinstance(name, str)
    return name


def is_system_topic(name: object) -> bool:
    """Whether only the system makes and writes a topic of that name."""
    return isinstance(name, str) and _SYSTEM.match(name) is not None


def retry_topic(group: str) -> str:
    """Where messages of a consumer group wait that it did not manage to consume."""
    return RETRY_PREFIX + group


def group_of_retries(topic: str) -> str | None:
    """The consumer group whose `retry_topic` that is; None: it is another topic."""
    return topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else None


def dlq_topic(group: str) -> str:
    """The dead letters of a consumer group."""
    return DLQ_PREFIX + group
