"""Pure: names of topics and groups from outside: RocketMQ's rule, narrowed: nothing to escape.

A name is never joined into a file path; still it can hold nothing that means something to a path,
a URL, a log line or a terminal.
"""

import re

from paceline.errors import BadNameError, ForbiddenError

NAME_LENGTH_MAX = 127
"""RocketMQ's TOPIC_MAX_LENGTH."""
_NAME = re.compile(r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]{0,125}[A-Za-z0-9_-])?", re.ASCII)
_SYSTEM = re.compile(r"%(?:RETRY|DLQ)%|SCHEDULE_TOPIC|RMQ_SYS_|TBW102$|rmq_sys_")


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


def check_topic_name(name: object, field: str = "topic") -> str:
    """The name of a topic that clients may use; ForbiddenError for one of the system's topics."""
    if isinstance(name, str) and _SYSTEM.match(name) is not None:
        raise ForbiddenError("system topics are not for clients", field=field)
    return check_name(name, field)
