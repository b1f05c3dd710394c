"""Whether a start of a replica is surely gone (R12): its port refuses, another answers, or it says
itself that it acknowledges nothing any more (R22)."""

import logging

import aiohttp
import orjson

from paceline.errors import in_words
from paceline.security.node_tls import Dial
from paceline.wire.cluster import ReplicaView
from paceline_broker.replication.master.lag import PROBE_INTERVAL_MS

log = logging.getLogger("paceline.replication")

PROBE_TIMEOUT_S = PROBE_INTERVAL_MS / 1000


async def is_replica_gone(http: aiohttp.ClientSession, replica: ReplicaView, dial: Dial) -> bool:
    """True for a refused connection, another incarnation, or one whose log has stopped for good.

    Silence proves nothing, nor does a disk that only stalls.
    """
    where, timeout = dial.http(replica.client_address, "/v1/probe"), PROBE_TIMEOUT_S
    try:
        async with http.get(**where, timeout=aiohttp.ClientTimeout(total=timeout)) as answer:
            if answer.status != 200:
                return False  # somebody lives there who has no time to say who it is
            document = orjson.loads(await answer.read())
    except aiohttp.ClientConnectorError as error:
        return isinstance(error.os_error, ConnectionRefusedError)
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as error:
        log.info("probe_unclear", extra={"replica": replica.replica_id, "fault": in_words(error)})
        return False
    if not isinstance(document, dict):
        return False
    seen = (document.get("replica_id"), document.get("incarnation"))
    is_stopped = document.get("is_stopped") is True  # older brokers do not say
    return is_stopped or seen != (replica.replica_id, replica.incarnation)
