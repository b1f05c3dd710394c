"""The application of a Celery worker in tests: `celery -A tests.support.process.celery_app worker`.

CELERY_TEST_URL is the cluster, CELERY_TEST_LOG a file that each task adds a line to as it is run.
"""

import os
import threading
from typing import Any

from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast

import paceline.kombu  # noqa: F401  # it makes paceline:// known

URL = os.environ.get("CELERY_TEST_URL", "paceline://127.0.0.1:7700")

app = Celery("tests", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 10},
    worker_prefetch_multiplier=int(os.environ.get("CELERY_TEST_PREFETCH", "4")),
    worker_enable_remote_control=True,
    task_queues=[
        Queue("celery", Exchange("celery"), routing_key="celery"),
        Queue("urgent@tests", Exchange("celery"), routing_key="urgent"),
        Broadcast("everybody"),
    ],
    task_default_queue="celery",
)


def note(text: str) -> None:
    """One line, whole, whatever process writes it."""
    path = os.environ.get("CELERY_TEST_LOG")
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{text}\n".encode())
        os.close(fd)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def add(one: int, other: int) -> int:
    note(f"add {one} {other}")
    return one + other


@app.task  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def flaky(self: Any) -> int:
    """Succeeds at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)
    retries: int = self.request.retries
    return retries


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def nap(seconds: float, name: str = "") -> float:
    """Works for so long."""
    note(f"nap {name}")
    threading.Event().wait(seconds)
    return seconds


@app.task(bind=True)  # type: ignore[untyped-decorator]
def who(self: Any) -> str:
    """Which worker runs it, for tasks that all of them are given."""
    name = str(self.request.hostname)
    note(f"who {name}")
    return name
