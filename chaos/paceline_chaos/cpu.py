"""What a process has computed."""

import os


def cpu_s() -> float:
    """User and system time of this process so far, in seconds."""
    times = os.times()
    return times.user + times.system
