"""Rules of gateways, taken out: what clients of RocketMQ's protocols are promised (S1, S5, S8).

What needs protobuf is imported where a mutant is applied.
"""

from typing import Any

from paceline_chaos.mutants.mutant import Mutant, Patch


def _nothing_remembered() -> list[Patch]:
    """A send that is repeated is another one."""
    from paceline_gateway.grpc.service.duplicates import Duplicates

    return [(Duplicates, "once", lambda known, key, topic, message_id, body, send: send())]


def _acknowledged_at_once() -> list[Patch]:
    """A gateway acknowledges what it has only begun to send."""
    from paceline_gateway.grpc.codec.statuses import OK
    from paceline_gateway.grpc.service.sending import SendCalls
    from paceline_gateway.grpc.stubs.messaging_pb2 import SendResultEntry

    send = SendCalls._send

    def send_and_forget(calls: SendCalls, sent: Any, *of: Any) -> Any:
        outcome = send(calls, sent, *of)
        if not sent.is_half:
            outcome.settle(SendResultEntry(status=OK, message_id=sent.message_id))
        return outcome

    return [(SendCalls, "_send", send_and_forget)]


def _queue_of_client() -> list[Patch]:
    """A message goes to the queue that its client has chosen, which each does in its own way."""
    from paceline_gateway.grpc.codec.sent import sent_of
    from paceline_gateway.grpc.service import sending

    def sent_anywhere(message: Any, topic: str) -> Any:
        sent = sent_of(message, topic)
        if sent.message.sharding is not None:
            sent.message.sharding = sent.message_id
        return sent

    return [(sending, "sent_of", sent_anywhere)]


DOORS = (
    Mutant(
        rule="S5-doors",
        meaning="a gateway stores a message anew when its client repeats it",
        caught_by=frozenset({"S5"}),
        patches=_nothing_remembered,
        bed="world",
    ),
    Mutant(
        rule="S1-doors",
        meaning="a gateway acknowledges a message before the master has",
        caught_by=frozenset({"S1", "S7"}),
        patches=_acknowledged_at_once,
        bed="world",
    ),
    Mutant(
        rule="S8-doors",
        meaning="messages of one message group go to the queues that clients choose",
        caught_by=frozenset({"S8"}),
        patches=_queue_of_client,
        bed="world",
    ),
)
