"""What the commands that run chaos share: exit codes, and what they have computed."""

import os

EXIT_BAD = 1
"""Something was violated, or could not be judged."""
EXIT_REFUSED = 2
"""Nothing ran: the arguments or this machine do not allow it."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: what came until then stands."""


def cpu_s(*, with_children: bool = False) -> float:
    """User and system time of this process so far, in seconds; of children that have ended, too."""
    times = os.times()
    of_children = times.children_user + times.children_system if with_children else 0.0
    return times.user + times.system + of_children
