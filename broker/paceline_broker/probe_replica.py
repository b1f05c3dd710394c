"""Whether a start of a replica is surely gone: its port refuses, or another answers (R12)."""

import logging

import aiohttp
import orjson

from paceline.wire.cluster import ReplicaView
from paceline_broker.replication.pace import PROBE_INTERVAL_MS

log = logging.getLogger("paceline.replication")

PROBE_TIMEOUT_S = PROBE_INTERVAL_MS / 1000


async def is_replica_gone(http: aiohttp.ClientSession, replica: ReplicaView) -> bool:
    """True only for a refused connection or another incarnation; silence proves nothing."""
    url = f"http://{replica.client_address}/v1/probe"
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)) as answer:
            if answer.status != 200:
                return False  # somebody lives there who has no time to say who it is
            document = orjson.loads(await answer.read())
    except aiohttp.ClientConnectorError as error:
        return isinstance(error.os_error, ConnectionRefusedError)
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as error:
        log.info("probe_unclear", extra={"replica": replica.replica_id, "fault": repr(error)})
        return False
    if not isinstance(document, dict):
        return False
    seen = (document.get("replica_id"), document.get("incarnation"))
    return seen != (replica.replica_id, replica.incarnation)
