"""Real Celery workers for tests, each a process group of its own that ends with the test."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.support.process.harness import RunningCluster, end_with_parent, eventually

ROOT = Path(__file__).parents[3]
APP = "tests.support.process.celery_app"
STOP_TIMEOUT_S = 60
Found = TypeVar("Found")


def until(probe: Callable[[], Found | None], *, within_ms: int = 30_000, what: str = "") -> Found:
    """`eventually`, for tests that are not async."""

    async def ask() -> Found | None:
        return probe()

    return asyncio.run(eventually(ask, within_ms=within_ms, what=what or "the condition"))


def url_of(cluster: RunningCluster, namespace: str = "") -> str:
    return f"paceline://{','.join(cluster.bootstrap)}/{namespace}"


class Worker:
    """A running worker."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
        self.process = process
        self.name = name
        self._log = log

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            return f"{self.name} ready" in self.log()

        until(is_ready, within_ms=40_000, what=f"{self.name} ready")

    def kill(self) -> None:
        """All of its processes at once, as the end of a machine."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running_worker(
    url: str, folder: Path, *arguments: str, name: str = "worker@tests", prefetch: int = 4
) -> Iterator[Worker]:
    """`celery worker`, ready on entry; on exit it stops warmly, without an error."""
    folder.mkdir(exist_ok=True)
    log = folder / f"{name}.log"
    environment = {
        **os.environ,
        "CELERY_TEST_URL": url,
        "CELERY_TEST_LOG": str(folder / "done"),
        "CELERY_TEST_PREFETCH": str(prefetch),
    }
    command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-n", name, "-l", "INFO"]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        ) as process,
    ):
        worker = Worker(process, name, log)
        try:
            worker.wait_ready()
            yield worker
            if process.poll() is None:
                process.terminate()
                assert process.wait(STOP_TIMEOUT_S) == 0, worker.log()[-3000:]
                assert "Traceback" not in worker.log(), worker.log()[-6000:]
        except BaseException as error:
            error.add_note(worker.log()[-4000:])
            raise
        finally:
            if process.poll() is None:
                worker.kill()


def done(folder: Path) -> list[str]:
    """What tasks have noted, in order."""
    path = folder / "done"
    return path.read_text().splitlines() if path.exists() else []
