"""Pure: names of topics and groups from outside: RocketMQ's rule, narrowed: nothing to escape.

A name is never joined into a file path; still it can hold nothing that means something to a path,
a log line or a terminal; in a URL its "%" is escaped. Only the system's own topics begin with "%".

A name may stand in a namespace: `shop%orders` is topic `orders` of namespace `shop`, and
`%RETRY%shop%billing` has the retries of group `billing` there (RocketMQ's NamespaceUtil).
"""

import re

from paceline.errors import BadNameError, ForbiddenError

NAME_LENGTH_MAX = 127
"""RocketMQ's TOPIC_MAX_LENGTH; of a whole name, its namespace included."""
NAMESPACE_LENGTH_MAX = 63
NAMESPACE_END = "%"
"""Between a namespace and the name in it."""
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
AUDIT_TOPIC = "%SYS%AUDIT"
"""Who has done, or was refused, what: written by nodes, made when rights are switched on."""
SYSTEM_TOPICS = (TRANS_CHECK_MAX_TIME_TOPIC, DELAY_DLQ_TOPIC, REPLY_TOPIC)
"""Made with the first broker group; those of consumer groups come with each group."""
CLIENT_ID_PATTERN = r"(?!\.+\Z)[A-Za-z0-9._:@/#-]{1,255}"
NAMESPACE_PATTERN = (
    r"(?!SCHEDULE_TOPIC|RMQ_SYS_|rmq_sys_)(?!(?:RETRY|DLQ)(?:%|$))"
    r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9_-])?"
)
"""As names in it; not how names of system topics begin."""
NAMESPACE_BEFORE = rf"(?:{NAMESPACE_PATTERN}{NAMESPACE_END})?"
"""What may stand before a name."""
_NAMESPACE = re.compile(NAMESPACE_PATTERN, re.ASCII)
_NAME = re.compile(
    rf"{NAMESPACE_BEFORE}[A-Za-z0-9_-](?:[A-Za-z0-9._-]{{0,125}}[A-Za-z0-9_-])?", re.ASCII
)
_SYSTEM = re.compile(
    r"%(?:RETRY|DLQ|SYS)%|SCHEDULE_TOPIC|RMQ_SYS_|rmq_sys_|(?:TBW102|BenchmarkTest|SELF_TEST_TOPIC"
    r"|OFFSET_MOVED_EVENT|CHECKPOINT_TOPIC|TRANS_CHECK_MAX_TIME_TOPIC|paceline_REPLY_TOPIC)$"
)
_OF_A_GROUP = re.compile(r"%(?:RETRY|DLQ)%(.*)")


def check_name(name: object, field: str) -> str:
    """The name of a group, or BadNameError for the field.

    1 to 127 of A-Z a-z 0-9 . _ - and neither first nor last a dot, so "." and ".." are none; a
    namespace may stand before it.
    """
    is_name = isinstance(name, str) and _NAME.fullmatch(name) is not None
    if not is_name or len(str(name)) > NAME_LENGTH_MAX:
        raise BadNameError(
            f"{field} must be 1 to {NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - and neither begin nor end"
            " with a dot; a namespace and % may stand before it",
            field=field,
        )
    return str(name)


def check_namespace(namespace: object, field: str = "namespace") -> str:
    """The name of a namespace, or BadNameError for the field."""
    if not isinstance(namespace, str) or _NAMESPACE.fullmatch(namespace) is None:
        raise BadNameError(
            f"{field} must be 1 to {NAMESPACE_LENGTH_MAX} of A-Z a-z 0-9 . _ - and neither begin"
            " nor end with a dot, nor begin as names of system topics do",
            field=field,
        )
    return namespace


def namespace_of(name: str) -> str:
    """The namespace that a topic or consumer group stands in, empty if in none; of retries and dead
    letters that of their consumer group."""
    namespace, end, _ = without_system_prefix(name)[1].partition(NAMESPACE_END)
    return namespace if end else ""


def without_system_prefix(name: str) -> tuple[str, str]:
    """What makes a name that of retries or dead letters (or nothing), and the rest of the name."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def check_client_id(client_id: object) -> str:
    """What names one client among those of its group, or BadNameError."""
    if not isinstance(client_id, str) or re.fullmatch(CLIENT_ID_PATTERN, client_id) is None:
        raise BadNameError(
            "client_id must be 1 to 255 of A-Z a-z 0-9 . _ : @ / # - and more than dots",
            field="client_id",
        )
    return client_id


def check_group_name(name: object, field: str = "group") -> str:
    """The name of a consumer group that users may have; ForbiddenError for the system's own."""
    checked = check_name(name, field)
    if checked.rpartition(NAMESPACE_END)[2] == DELAY_GROUP:
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
    """The name of a topic that clients may read: their own, retries, dead letters, the audit."""
    if isinstance(name, str) and name in (*SYSTEM_TOPICS, AUDIT_TOPIC):
        return name
    match = _OF_A_GROUP.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return check_topic_name(name, field)
    check_name(match.group(1), field)
    assert isinstance(name, str)
    return name


def is_system_topic(name: object) -> bool:
    """Whether only the system makes and writes a topic of that name, or, in a namespace, might be
    thought to: programs give such names without their namespace."""
    return isinstance(name, str) and any(
        _SYSTEM.match(each) is not None for each in (name, name.partition(NAMESPACE_END)[2])
    )


def retry_topic(group: str) -> str:
    """Where messages of a consumer group wait that it did not manage to consume."""
    return RETRY_PREFIX + group


def group_of_retries(topic: str) -> str | None:
    """The consumer group whose `retry_topic` that is; None: it is another topic."""
    return topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else None


def dlq_topic(group: str) -> str:
    """The dead letters of a consumer group."""
    return DLQ_PREFIX + group
