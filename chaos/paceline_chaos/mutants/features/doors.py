"""Rules of gateways, taken out: what clients of RocketMQ's protocols are promised (S1, S5, S8, S21,
S24, S26, S31).

What needs protobuf is imported where a mutant is applied.
"""

from typing import Any

from paceline.errors import UnauthenticatedError
from paceline.security.delegation import Delegation
from paceline.security.identity import Principal
from paceline.wire.message_ids import OffsetMessageId
from paceline_broker.service.pop.grant import _HandingOut
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_gateway import on_behalf
from paceline_gateway.identity import Authenticator
from paceline_gateway.remoting import locks, pulling, transactions
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.message_ids import place_of
from paceline_gateway.remoting.offsets import commit


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


def _locks_kept() -> list[Patch]:
    """A lock that a gateway has got once for a client is the client's as long as it asks for it."""
    held = locks._held

    async def kept(call: Call, group: str, client_id: str, queues: list[Any]) -> list[Any]:
        known, of = call.user.locks, call.peer.place.group
        assert of is not None
        mine = [
            queue
            for queue in queues
            if known.token_of(group, client_id, queue.topic, of, queue.queue_id) is not None
        ]
        others = [queue for queue in queues if queue not in mine]
        return mine + (await held(call, group, client_id, others) if others else [])

    return [(locks, "_held", kept)]


def _committed_when_given() -> list[Patch]:
    """What a member is given is committed for its group, whatever the member makes of it."""
    pull = pulling._pull

    async def pull_and_commit(call: Call, asked: pulling.Asked) -> Command:
        answer = await pull(call, asked)
        if answer.code == ResponseCode.SUCCESS:
            end = int(answer.fields["nextBeginOffset"])
            work = commit(call, asked.group, asked.topic, asked.queue_id, end)
            call.user.spawn(work, name="commit")
        return answer

    return [(pulling, "_pull", pull_and_commit)]


def _answered_for_another() -> list[Patch]:
    """The end of a transaction is taken for that of the one that was ended before it."""
    before: dict[str, OffsetMessageId] = {}

    def place_before(offset: int, group: str) -> OffsetMessageId:
        found = place_of(offset, group)
        last, before[group] = before.get(group, found), found
        return last

    return [(transactions, "place_of", place_before)]


def _keys_remembered() -> list[Patch]:
    """Whom a gateway has let in by a key once it lets in by it again, and it tells nodes the user
    and not the key."""
    found = Authenticator._found

    def remembered(mine: Authenticator, signed: Any, *of: Any, **named: Any) -> Principal:
        known = mine.__dict__.setdefault("_let_in", {})
        key = "" if signed is None else signed().access_key
        try:
            known[key] = found(mine, signed, *of, **named)
        except UnauthenticatedError:
            if key not in known:
                raise
        principal: Principal = known[key]
        return principal

    def without_key(user: str, source: str, access_key: str, *rest: Any) -> Delegation:
        return Delegation(user, source, "", *rest)

    return [(Authenticator, "_found", remembered), (on_behalf, "Delegation", without_key)]


def _order_forgotten() -> list[Patch]:
    """A group that receives in order is given what comes next, whatever is under way."""
    return [(_HandingOut, "ordered", _HandingOut.new)]


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
    Mutant(
        rule="S23-fifo",
        meaning="a group that receives in order is given messages while others are under way",
        caught_by=frozenset({"S23"}),
        patches=_order_forgotten,
        bed="world",
    ),
    Mutant(
        rule="S21-remoting",
        meaning="a gateway commits for a group what it has given to a member",
        patches=_committed_when_given,
        **of_moment("doors", "S21"),
    ),
    Mutant(
        rule="S24-remoting",
        meaning="an answer about a transaction ends another one",
        patches=_answered_for_another,
        **of_moment("doors", "S24"),
    ),
    Mutant(
        rule="S26-remoting",
        meaning="a gateway lets a client have a lock whose lease is over",
        patches=_locks_kept,
        **of_moment("doors", "S26", "INV-11"),
    ),
    Mutant(
        rule="S31-doors",
        meaning="a key counts at a gateway after it was revoked, and nodes are not told the key",
        patches=_keys_remembered,
        **of_moment("doors-keys", "S31"),
    ),
)
