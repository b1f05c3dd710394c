"""What has come for the consumers of one kombu connection, from the loop's thread to theirs."""

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

UNDELIVERED_MAX = 256
"""Beyond so many the receivers of consumers without a prefetch limit wait."""


@dataclass(slots=True, eq=False)
class Delivery:
    """A message on its way to a consumer, and what becomes of it afterwards."""

    queue: str
    payload: dict[str, Any]
    """kombu's, as it was published."""
    ack: Callable[[], None]
    """Done; called once at most, as `requeue`, `reject` and `give_back`, in any thread."""
    requeue: Callable[[], None]
    """Somebody saw it, and wants it to come again."""
    reject: Callable[[], None]
    """It is a dead letter."""
    give_back: Callable[[], None]
    """Nobody has looked at it."""
    is_redelivered: bool
    channel: Any = None
    """Of the consumer."""


class Inbox:
    """Filled on the session's loop and emptied in any other thread. `fd` is readable while there is
    something, for an event loop that waits for files (kombu's hub)."""

    def __init__(self) -> None:
        self._items: deque[Delivery] = deque()
        self._condition = threading.Condition()
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)
        self._is_told = False
        """There is a byte in the pipe."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, delivery: Delivery) -> bool:
        """False: it is closed."""
        with self._condition:
            if self._is_closed:
                return False
            self._items.append(delivery)
            self._condition.notify()
            if not self._is_told:
                self._is_told = True
                os.write(self._write_fd, b"!")
            return True

    def take(self) -> Delivery | None:
        """The next one, if there is one."""
        with self._condition:
            found = self._items.popleft() if self._items else None
            self._settle_file()
            return found

    def wait(self, timeout_s: float | None) -> bool:
        """Whether there is something, now or within that time."""
        with self._condition:
            return self._condition.wait_for(lambda: bool(self._items), timeout_s)

    def remove(self, queue: str) -> list[Delivery]:
        """Take what is there of a queue."""
        with self._condition:
            taken = [delivery for delivery in self._items if delivery.queue == queue]
            self._items = deque(one for one in self._items if one.queue != queue)
            self._settle_file()
            return taken

    def _settle_file(self) -> None:
        if not self._items and self._is_told:
            self._is_told = False
            os.read(self.fd, 1)

    def close(self) -> list[Delivery]:
        """What nobody has taken."""
        with self._condition:
            if self._is_closed:
                return []
            self._is_closed = True
            left = list(self._items)
            self._items.clear()
            os.close(self.fd)
            os.close(self._write_fd)
            return left
