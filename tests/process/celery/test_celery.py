"""Real Celery workers on a real cluster: kombu's transport and the result backend."""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.result import AsyncResult
from tests.support.process.celery import APP, ROOT, done, running_worker, until, url_of
from tests.support.process.celery_app import app as the_app
from tests.support.process.harness import end_with_parent, running_cluster

from paceline.kombu.session import close_sessions

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("celery"),
]

WAIT_S = 30


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster that these tests share, each in a namespace of its own."""
    with running_cluster(tmp_path_factory.mktemp("celery") / "data") as cluster:
        yield url_of(cluster)
        close_sessions()


@pytest.fixture
def app(url: str, request: pytest.FixtureRequest) -> Iterator[Celery]:
    """The application, as a program that sends tasks has it."""
    name = "".join(letter for letter in request.node.name if letter.isalnum())[-40:]
    own = f"{url}{name}"
    the_app.conf.broker_url = the_app.conf.result_backend = own
    the_app.conf.broker_read_url = the_app.conf.broker_write_url = own
    yield the_app
    the_app.close()
    the_app.pool.force_close_all()
    the_app._pool = None
    the_app.amqp._producer_pool = None
    the_app._backend_cache = None
    the_app._local.__dict__.clear()
    close_sessions()


def task(app: Celery, name: str) -> Any:
    return app.tasks[f"tests.support.process.celery_app.{name}"]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_tasks_run_in_every_pool(pool: str, app: Celery, tmp_path: Path) -> None:
    add, flaky = task(app, "add"), task(app, "flaky")
    with running_worker(app.conf.broker_url, tmp_path, "-P", pool, "-c", "2"):
        results = [add.delay(number, 1) for number in range(30)]
        late = add.apply_async((100, 1), countdown=1)

        assert [result.get(timeout=WAIT_S) for result in results] == list(range(1, 31))
        assert flaky.delay().get(timeout=WAIT_S) == 2
        assert late.get(timeout=WAIT_S) == 101
    assert sorted(done(tmp_path)) == sorted([f"add {n} 1" for n in range(30)] + ["add 100 1"])


def test_a_task_with_an_eta_waits_in_the_broker(app: Celery, tmp_path: Path) -> None:
    add, nap = task(app, "add"), task(app, "nap")
    with running_worker(app.conf.broker_url, tmp_path, "-P", "solo") as worker:
        add.apply_async((1, 1), countdown=3600)
        assert nap.delay(0).get(timeout=WAIT_S) == 0

        inspect = app.control.inspect(timeout=20, destination=[worker.name])
        assert inspect.scheduled() == {worker.name: []}
        assert inspect.reserved() == {worker.name: []}
    assert done(tmp_path) == ["nap "]


def test_groups_chords_and_chains(app: Celery, tmp_path: Path) -> None:
    add, total = task(app, "add"), task(app, "total")
    with running_worker(app.conf.broker_url, tmp_path, "-P", "threads", "-c", "4"):
        many = group(add.s(number, number) for number in range(20))()
        summed = chord([add.s(number, 0) for number in range(10)])(total.s())
        chained = (add.s(1, 1) | add.s(2) | add.s(3)).delay()

        assert many.get(timeout=WAIT_S) == [2 * number for number in range(20)]
        assert summed.get(timeout=WAIT_S) == 45
        assert chained.get(timeout=WAIT_S) == 7


def test_results_are_found_by_who_did_not_send_the_task(app: Celery, tmp_path: Path) -> None:
    add = task(app, "add")
    with running_worker(app.conf.broker_url, tmp_path, "-P", "solo"):
        result = add.delay(3, 4)
        assert result.get(timeout=WAIT_S) == 7
        close_sessions()  # a process that knows nothing of it but its id

        again = AsyncResult(result.id, app=app)
        found = (again.state, again.result)
        again.forget()
        forgotten = AsyncResult(result.id, app=app).state

    assert found == ("SUCCESS", 7)
    assert forgotten == "PENDING"


def test_urgent_tasks_are_run_first(app: Celery, tmp_path: Path) -> None:
    nap = task(app, "nap")
    for number in range(4):
        nap.apply_async((0, f"low {number}"))
    for number in range(4):
        nap.apply_async((0, f"high {number}"), priority=9)
    for number in range(4):
        nap.apply_async((0, f"middle {number}"), priority=4)

    with running_worker(app.conf.broker_url, tmp_path, "-P", "solo", prefetch=1):
        until(lambda: len(done(tmp_path)) == 12)

    order = [line.split()[1] for line in done(tmp_path)]
    assert order == ["high"] * 4 + ["middle"] * 4 + ["low"] * 4


def test_workers_are_inspected_and_controlled_over_processes(app: Celery, tmp_path: Path) -> None:
    nap, who = task(app, "nap"), task(app, "who")
    with (
        running_worker(app.conf.broker_url, tmp_path, "-P", "solo", "-E", name="one@tests"),
        running_worker(app.conf.broker_url, tmp_path, "-P", "threads", name="two@tests"),
    ):
        inspect = app.control.inspect(timeout=20, limit=2)
        assert inspect.ping() == {"one@tests": {"ok": "pong"}, "two@tests": {"ok": "pong"}}
        queues = app.control.inspect(timeout=20, destination=["one@tests"]).active_queues()
        assert {"celery", "urgent@tests"} < {found["name"] for found in queues["one@tests"]}

        who.apply_async(queue="everybody")  # a fanout exchange: each worker runs it
        until(lambda: sorted(done(tmp_path)) == ["who one@tests", "who two@tests"])

        later = nap.apply_async((0,), countdown=2)
        app.control.revoke(later.id)
        with pytest.raises(Exception, match="revoked"):
            later.get(timeout=WAIT_S)

        to_one = app.control.broadcast(
            "cancel_consumer",
            {"queue": "celery"},
            destination=["one@tests"],
            reply=True,
            timeout=20,
        )
        assert "ok" in to_one[0]["one@tests"]
        assert who.delay().get(timeout=WAIT_S) == "two@tests"


def test_events_are_seen_by_several_receivers(app: Celery, tmp_path: Path) -> None:
    seen: queue.Queue[tuple[int, str]] = queue.Queue()
    ready = threading.Barrier(3)

    def watch(number: int) -> None:
        def on_success(event: Any) -> None:
            seen.put((number, event["uuid"]))
            receiver.should_stop = True

        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"task-succeeded": on_success})
            with receiver.consumer_context():
                ready.wait()
                for _ in receiver.consume(limit=None, wakeup=False):
                    pass

    threads = [threading.Thread(target=watch, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    ready.wait()
    with running_worker(app.conf.broker_url, tmp_path, "-P", "solo", "-E"):
        result = task(app, "add").delay(1, 1)
        found = {seen.get(timeout=WAIT_S) for _ in range(2)}
    for thread in threads:
        thread.join(WAIT_S)

    assert found == {(0, result.id), (1, result.id)}


def test_flower_shows_the_worker(app: Celery, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = app.conf.broker_url
    command = [sys.executable, "-m", "celery", "-A", APP, "-b", url, "flower"]
    environment = {**os.environ, "CELERY_TEST_URL": url, "FLOWER_UNAUTHENTICATED_API": "true"}

    def workers() -> dict[str, Any] | None:
        asked = f"http://127.0.0.1:{port}/api/workers?refresh=1"
        with suppress(OSError), urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            shown: dict[str, Any] = json.load(answer)
            return shown
        return None

    with (
        running_worker(url, tmp_path, "-P", "solo", "-E") as worker,
        (tmp_path / "flower.log").open("wb") as log,
        subprocess.Popen(
            [*command, f"--port={port}", "--address=127.0.0.1"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        ) as flower,
    ):
        try:
            shown = until(workers, within_ms=60_000, what="flower's answer")
        finally:
            flower.kill()

    names = [found["name"] for found in shown[worker.name]["active_queues"]]
    assert "celery" in names


def test_a_task_whose_worker_died_is_run_by_another(app: Celery, tmp_path: Path) -> None:
    nap = task(app, "nap")
    with running_worker(app.conf.broker_url, tmp_path, "-P", "prefork", "-c", "1") as first:
        result = nap.delay(5, "long")
        until(lambda: done(tmp_path) == ["nap long"])
        first.kill()
    with running_worker(app.conf.broker_url, tmp_path, "-P", "threads", name="other@tests"):
        assert result.get(timeout=2 * WAIT_S) == 5

    assert done(tmp_path) == ["nap long", "nap long"]


def test_a_long_task_is_given_to_one_worker_only(app: Celery, tmp_path: Path) -> None:
    """It takes longer than `visibility_timeout`, and so do those that wait in the worker."""
    nap = task(app, "nap")
    with (
        running_worker(app.conf.broker_url, tmp_path, "-P", "prefork", "-c", "1", name="a@tests"),
        running_worker(app.conf.broker_url, tmp_path, "-P", "prefork", "-c", "1", name="b@tests"),
    ):
        results = [nap.delay(12, str(number)) for number in range(3)]
        assert [result.get(timeout=80) for result in results] == [12, 12, 12]

    assert sorted(done(tmp_path)) == ["nap 0", "nap 1", "nap 2"]
