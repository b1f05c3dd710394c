"""Shell: asks the masters whether queues that a topic is to lose have been read to their ends.

Before the command is proposed: a state machine knows nothing of messages. The master's answer is
final, since it has the view in which nobody sends to those queues any more.
"""

import logging
from typing import Any

import aiohttp
import orjson

from paceline.errors import CommandRefusedError, NotYetAvailableError, from_problem, in_words
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline_controller.state.model import Group, Topic

log = logging.getLogger("paceline.controller")

TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 64 * 1024
_PATH = "/v1/call"


async def check_drained(
    topic: Topic,
    group: Group,
    *,
    queues: int,
    version: int,
    source_host: str,
    proofs: NodeProofs,
    dial: Dial,
) -> None:
    """Raise unless every message in the queues from `queues` on, of that group, was consumed.

    CommandRefusedError (UNREAD_MESSAGES, details `unread`), NotYetAvailableError: its master does
    not say.
    """
    view = group.view().master_view()
    if view is None:
        raise NotYetAvailableError(
            f"group {group.group} has no master that could say whether its queues are read;"
            " try again, or force it",
        )
    document = {
        "call": "unread",
        "topic_id": topic.topic_id,
        "from_queue": queues,
        "version": version,
    }
    status, answer = await _ask(view.client_address, document, source_host, proofs, dial)
    if status != 200:
        problem = from_problem(answer)
        if isinstance(problem, CommandRefusedError):
            raise problem
        raise NotYetAvailableError(
            f"the master of group {group.group} does not say whether its queues are read"
            f" ({problem.message}); try again, or force it"
        )
    if answer["unread"]:
        row = answer["unread"][0]
        who = f"consumer group {row['group']}" if row["group"] else "any consumer group"
        where = f"queue {row['queue']} of topic {topic.topic} in group {group.group}"
        problem_text = (
            f"{row['messages']} messages in {where} have not been consumed by {who}: let it drain"
            " them, or force it and they stay unread"
        )
        if row.get("pending"):
            problem_text = (
                f"{row['messages']} messages ({row['pending']}) are still to come into {where}:"
                " wait for them, or force it and they become dead letters"
            )
        raise CommandRefusedError(
            problem_text,
            reason="UNREAD_MESSAGES",
            group=group.group,
            unread=answer["unread"],
        )


async def _ask(
    address: str,
    document: dict[str, Any],
    source_host: str,
    proofs: NodeProofs,
    dial: Dial,
) -> tuple[int, dict[str, Any]]:
    source = (source_host, 0) if source_host else None
    body = orjson.dumps(document)
    connector = aiohttp.TCPConnector(local_addr=source, force_close=True)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            proofs.request(
                http,
                "POST",
                address,
                _PATH,
                body=body,
                headers={"Content-Type": "application/json"},
                **dial.http(address, _PATH),
            ) as response,
        ):
            content = await response.content.read(ANSWER_BYTES_MAX)
            return response.status, dict(orjson.loads(content))
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, TypeError) as error:
        log.info("unread_unknown", extra={"broker": address, "why": in_words(error)})
        return 0, {"detail": f"{address} did not answer"}
