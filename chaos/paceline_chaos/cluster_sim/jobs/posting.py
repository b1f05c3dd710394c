"""The plain HTTP sender: JSON messages to the master, each tried once.

Without a producer there is no sequence: whoever repeats a request makes doubles, so this client
does not. What it was told is judged like any send (S1, S4), doubles only of idempotent ones (S5).
"""

import base64
from typing import Any

from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.queues import master_address
from paceline.types import GroupName
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around, queues_in
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send
from paceline_chaos.history.model import Queue

_BURST_MAX = 4


class Poster:
    """Sends over HTTP."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._number = 0

    async def run(self) -> None:
        """Until it is over."""
        around = self._around
        cluster = around.cluster()
        cluster.start()
        try:
            while not around.is_over():
                queues = queues_in(cluster, around.topic)
                if queues:
                    await self._post(cluster, around.choice(queues))
                await around.think()
        finally:
            await cluster.close()

    async def _post(self, cluster: Cluster, queue: Queue) -> None:
        """A few messages in one request: all are stored, or none."""
        around = self._around
        view = cluster.view
        address = None if view is None else master_address(view, GroupName(queue.group))
        if address is None:
            return
        askings = []
        messages: list[dict[str, Any]] = []
        for _ in range(around.whole(1, _BURST_MAX)):
            self._number += 1
            value = f"{around.alias}-post-{self._number}"
            body = make_body(value, around.whole(8, around.body_bytes_max))
            session = f"{around.alias}/post"
            askings.append(asking_to_send(around, value, body, session, is_idempotent=False))
            messages.append({"body_base64": base64.b64encode(body).decode()})
        path = f"/v1/topics/{queue.topic}/messages"
        document = {"messages": messages, "queue": queue.queue}
        try:
            answer = await cluster.http.send(
                "POST", address, path, document, timeout_ms=CALL_TIMEOUT_MS
            )
        except PacelineError as error:
            for asking in askings:
                asking.raised(error)
            return
        for asking, row in zip(askings, answer["messages"], strict=True):
            asking.ok(
                queue=queue,
                offset=-1 if row["offset"] is None else row["offset"],
                epoch=answer["epoch"],
                is_duplicate=row["duplicate"],
                is_confirmed=row["confirmed"],
            )
