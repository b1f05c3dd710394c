"""What a process has computed."""

import os


def cpu_s(*, with_children: bool = False) -> float:
    """User and system time of this process so far, in seconds; of children that have ended, too."""
    times = os.times()
    of_children = times.children_user + times.children_system if with_children else 0.0
    return times.user + times.system + of_children
