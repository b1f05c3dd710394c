"""Topics that a producer is the first to send to: brokers make them, if they are allowed to.

A name that no view shows is asked of the brokers, one after the other, for as long as messages wait
for it; the view that follows brings the route. Where brokers do not make topics
(`auto_create_topic_enable`) nothing happens, and the messages fail as ever.
"""

import asyncio
import logging
from collections.abc import Callable

from paceline.errors import (
    BadNameError,
    BadRequestError,
    CommandRefusedError,
    ForbiddenError,
    NotFoundError,
    PacelineError,
)
from paceline.net.backoff import Backoff
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import master_address
from paceline.wire.calls.groups import EnsureTopic

log = logging.getLogger("paceline.client")

_TIMEOUT_MS = 4_000
"""Above what a broker waits for the controllers."""
_DECLINED_S = 1.0
"""How long a "no" counts."""


class TopicMaker:
    """Owned by one `Producer`. `is_wanted(topic)`: messages wait for it; `on_refused(topic, error)`
    is called when it can never be."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        is_wanted: Callable[[str], bool],
        on_refused: Callable[[str, PacelineError], None],
    ) -> None:
        self._cluster = cluster
        self._is_wanted = is_wanted
        self._on_refused = on_refused
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._declined: dict[str, float] = {}

    def want(self, topic: str) -> None:
        """Have a topic made that the view does not show. Idempotent."""
        now = asyncio.get_running_loop().time()
        if topic in self._asking or self._declined.get(topic, 0.0) > now:
            return
        self._declined.pop(topic, None)
        self._asking[topic] = spawn(self._run(topic), name=f"make-topic:{topic}")

    async def close(self) -> None:
        tasks = tuple(self._asking.values())
        await cancel_and_wait(*tasks)

    async def _run(self, topic: str) -> None:
        try:
            await self._ask(topic)
        except BadNameError as error:
            self._on_refused(topic, error)
        except (NotFoundError, BadRequestError) as error:
            # Also a broker of a version that does not know the call.
            log.debug("topic_not_made", extra={"topic": topic, "why": error.message})
            self._declined[topic] = asyncio.get_running_loop().time() + _DECLINED_S
        except PacelineError as error:
            self._on_refused(topic, error)
        finally:
            del self._asking[topic]

    async def _ask(self, topic: str) -> None:
        """Returns once it is made or not wanted any more; raises what is final."""
        backoff = Backoff(self._cluster.random, first_ms=20)
        document = self._cluster.namespace.request(EnsureTopic(topic=topic)).to_json()
        while self._is_wanted(topic):
            view = self._cluster.view
            groups = sorted(view.groups) if view is not None else []
            for group in groups:
                address = None if view is None else master_address(view, group)
                if address is None:
                    continue
                try:
                    await self._cluster.http.send(
                        "POST", address, "/v1/call", document, timeout_ms=_TIMEOUT_MS
                    )
                except (NotFoundError, BadRequestError, ForbiddenError, CommandRefusedError):
                    raise
                except PacelineError as error:
                    log.debug("topic_not_made", extra={"topic": topic, "why": error.message})
                else:
                    return  # our own view follows
            await pause(backoff.next_ms())
