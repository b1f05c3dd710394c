"""Celery tasks while masters are killed: each is done, none is lost.

`CELERY_TASKS=10000` runs the large one.
"""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from celery import Celery
from tests.support.process.celery import done, running_worker, until, url_of
from tests.support.process.harness import running_cluster, the_master

from paceline.kombu.backend import PacelineBackend
from paceline.kombu.session import close_sessions

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

TASKS = int(os.environ.get("CELERY_TASKS", "1000"))
SENDERS = 16
WITHIN_MS = 60_000 + 60 * TASKS


def test_every_task_is_done_though_the_master_dies_while_tasks_run(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        url = url_of(cluster)
        app = Celery("sender", broker=url, backend=url, set_as_current=False)
        add = app.signature("tests.support.process.celery_app.add")

        def send(number: int) -> str:
            return str(add.clone((number, 0)).apply_async().id)

        with (
            running_worker(url, tmp_path, "-P", "threads", "-c", "8", name="one@tests"),
            running_worker(url, tmp_path, "-P", "prefork", "-c", "2", name="two@tests"),
            ThreadPoolExecutor(SENDERS) as senders,
        ):
            sent = senders.map(send, range(TASKS))
            kills = 0
            for share in (0.2, 0.6):
                wanted = int(share * TASKS)

                def is_reached(wanted: int = wanted) -> bool:
                    return len(set(done(tmp_path))) > wanted

                until(is_reached, within_ms=WITHIN_MS, what=f"{wanted} tasks done")
                cluster.send_signal(asyncio.run(the_master(cluster)), signal.SIGKILL)
                kills += 1
            ids = list(sent)
            until(lambda: len(set(done(tmp_path))) == TASKS, within_ms=WITHIN_MS, what="all done")
            backend = app.backend
            assert isinstance(backend, PacelineBackend)
            results = {
                task_id: meta["result"]
                for task_id, meta in backend.get_many(ids, timeout=WITHIN_MS / 1000)
            }
        close_sessions()

    assert kills == 2
    assert [results[task_id] for task_id in ids] == list(range(TASKS))
    repeated = len(done(tmp_path)) - TASKS
    assert repeated < TASKS / 10, f"{repeated} tasks were run again"
