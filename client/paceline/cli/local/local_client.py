"""Waiting for a local cluster: what `demo` and `bench` do between starting nodes and using them."""

from typing import Any

import aiohttp
import orjson

from paceline.cli.local.local_cluster import LocalCluster, Node, Owner
from paceline.errors import DeadlineError
from paceline.platform.runtime import SystemClock, pause

READY_TIMEOUT_MS = 30_000
POLL_MS = 20


async def broker_status(
    session: aiohttp.ClientSession, address: str, owner: Owner | None = None
) -> dict[str, Any] | None:
    """`/v1/status` of one node, or None while it does not answer."""
    return await get_json(session, address, "/v1/status", owner)


async def get_json(
    session: aiohttp.ClientSession, address: str, path: str, owner: Owner | None = None
) -> dict[str, Any] | None:
    """The JSON object there, or None: a node that does not answer is part of the picture.

    `owner`: who holds the cluster's secret; to others a cluster with rights tells nothing.
    """
    tls = None if owner is None else owner.tls
    url = f"{'http' if tls is None else 'https'}://{address}{path}"
    context = True if tls is None else tls
    asking = (
        session.get(url, ssl=context)
        if owner is None
        else owner.proofs.request(session, "GET", address, path, url=url, ssl=context)
    )
    try:
        async with asking as answer:
            if answer.status != 200:
                return None
            document = orjson.loads(await answer.read())
            return document if isinstance(document, dict) else None
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError):
        return None


async def find_master(cluster: LocalCluster, group: str) -> tuple[Node, dict[str, Any]] | None:
    """The node that is the open master of `group` in the highest epoch, with its status."""
    best: tuple[Node, dict[str, Any]] | None = None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as session:
        for node in cluster.brokers:
            if not node.is_running:
                continue
            status = await broker_status(session, node.address, cluster.owner)
            if status is None or status["group"] != group or status["role"] != "master":
                continue
            if status["is_open"] and (best is None or status["epoch"] > best[1]["epoch"]):
                best = (node, status)
    return best


async def wait_ready(cluster: LocalCluster) -> None:
    """Return when every group has an open master; DeadlineError names the logs."""
    clock = SystemClock()
    deadline = clock.monotonic_ms() + READY_TIMEOUT_MS
    for number in range(1, cluster.plan.groups + 1):
        while await find_master(cluster, f"g{number}") is None:
            ended = [node.last_words() for node in cluster.reap()]
            if ended or clock.monotonic_ms() > deadline:
                what = "; ".join(ended) or "no master was elected"
                logs = cluster.plan.data_dir / "logs"
                raise DeadlineError(f"the cluster did not come up: {what}; see {logs}")
            await pause(POLL_MS)
