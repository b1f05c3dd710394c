"""Names from outside: topics and groups. RocketMQ's rule, so that names never need escaping."""

import re

from paceline.errors import BadNameError, ForbiddenError

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}")
_SYSTEM = re.compile(r"%|SCHEDULE_TOPIC|RMQ_SYS_|TBW102$|rmq_sys_")
TOPIC_LENGTH_MAX = 127
"""RocketMQ's TOPIC_MAX_LENGTH."""


def check_name(name: object, field: str) -> str:
    """A group's (or broker group's) name; BadNameError for anything else."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or name.endswith("."):
        raise BadNameError(
            f"{field} must be 1 to {TOPIC_LENGTH_MAX} of A-Z a-z 0-9 . _ - and neither begin nor"
            " end with a dot",
            field=field,
        )
    return name


def check_topic_name(name: object) -> str:
    """A topic's name; ForbiddenError for one of the system's (retry, schedule and the like)."""
    if isinstance(name, str) and _SYSTEM.match(name) is not None:
        raise ForbiddenError("system topics are not for clients", field="topic")
    return check_name(name, "topic")
