"""Queues that the server assigns: codes 400 and 401.

A consumer that lets the server assign (setClientRebalance(false)) receives by POP here: any member
gets messages of any queue, so there is nothing to be shared out.
"""

from typing import Any

from paceline.errors import BadRequestError
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command, lenient_json
from paceline_gateway.remoting.codec.routes import json_of

_ANY = -1
"""Queue: whichever the broker chooses."""


async def query_assignment(call: Call) -> Command:
    """400. Of a topic that is not there yet, as that of retries: nothing."""
    asked = _document(call)
    topic = asked["topic"]
    found = call.user.cluster.cluster.topic(topic)
    counts = {} if found is None else found.read_queues
    is_broadcasting = asked.get("messageModel") == "BROADCASTING"
    rows = [
        {
            "messageQueue": {"brokerName": group, "queueId": queue, "topic": topic},
            "mode": "PULL" if is_broadcasting else "POP",
        }
        for group, count in sorted(counts.items())
        for queue in (range(count) if is_broadcasting else (_ANY,))
    ]
    return call.ok(body=json_of({"messageQueueAssignments": rows}))


async def set_mode(call: Call) -> Command:
    """401: POP is what there is."""
    mode = _document(call).get("mode")
    if mode != "POP":
        return call.request.answer(
            ResponseCode.INVALID_PARAMETER,
            remark=f"mode {mode}: clients that let the server assign receive by POP here; others"
            " pull: have the client assign (setClientRebalance(true))",
        )
    return call.ok()


def _document(call: Call) -> dict[str, Any]:
    document = lenient_json(bytes(call.request.body))
    if not isinstance(document, dict) or not isinstance(document.get("topic"), str):
        raise BadRequestError("topic is missing", field="topic")
    return document
