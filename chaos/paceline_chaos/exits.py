"""Exit codes of the commands that run chaos."""

EXIT_BAD = 1
"""Something was violated, or could not be judged."""
EXIT_REFUSED = 2
"""Nothing ran: the arguments or this machine do not allow it."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: what came until then stands."""
