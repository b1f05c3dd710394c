"""Ports for nodes that are about to start.

Between choosing a port and listening on it somebody else may take it. A port that the system chose
(bind to 0) is of the range that it also gives to every outgoing connection, so on a busy machine
that does happen; below the range it takes a program that wants this very port.
"""

import errno
import socket
from contextlib import ExitStack

from paceline.errors import ConfigError
from paceline.runtime import SystemRandom

FIRST, END = 10_240, 32_000
"""Linux gives 32,768 to 60,999 to outgoing connections, macOS and others 49,152 and above."""
TRIES_MAX = 10_000


def free_ports(count: int, *, host: str) -> list[int]:
    """Different ones on which nobody listens at the moment. Raises ConfigError."""
    random = SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        for _ in range(TRIES_MAX):
            if len(found) == count:
                return found
            port = FIRST + int(random.uniform(0, END - FIRST))
            one = stack.enter_context(socket.socket())
            try:
                one.bind((host, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
            else:
                found.append(port)
    raise ConfigError(
        f"no {count} free ports of {host} from {FIRST} to {END - 1}: choose by --port"
    )
