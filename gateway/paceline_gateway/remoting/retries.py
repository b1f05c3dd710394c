"""Messages that a group could not process: sent back (36), or sent to the retry topic.

Clients send to `%RETRY%group` when a request 36 was not answered well, and Java's ordered consumers
to be rid of a message for good. They send a copy; here the message that is meant is looked for, and
given back as by 36: once, however often and by whichever way it is asked for (R34).
"""

from typing import NamedTuple

from paceline.errors import BadRequestError, MessageNotFoundError, OverloadedError
from paceline.types import GroupName
from paceline.wire.calls import messages as wire
from paceline.wire.message_ids import parse_offset_id
from paceline.wire.names import RETRY_PREFIX
from paceline_gateway.remoting.call import CALL_MS, Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.message_ids import message_id, physical_offset, place_of
from paceline_gateway.remoting.queries import message_row, search_in, stored_row
from paceline_gateway.remoting.state.locks import Token

_COPIES_MAX = 64
_RETRIES_MAX = 64
"""Of a user at a time: each searches."""
_DEAD = -1


class Failed(NamedTuple):
    """A message that comes back as a send to a retry topic."""

    group: str
    topic: str
    """That it was sent to first."""
    unique_key: str
    times: int
    """How often it has failed, by the client's count."""
    times_max: int | None
    delay_level: int


async def send_back(call: Call) -> Command:
    """36: the group gets the message again later, or it becomes a dead letter (R34)."""
    request = call.request
    group = fields.text(request, "group")
    place = place_of(fields.integer(request, "offset"), group_of(call))
    level = fields.integer(request, "delayLevel", 0)
    times = fields.integer(request, "maxReconsumeTimes", -1)
    if not _DEAD <= level <= wire.LEVEL_MAX:
        raise BadRequestError(f"delayLevel {level} is none: -1 to 18", field="delayLevel")
    row = await message_row(call, str(place))
    topic, queue = row["topic"], row["queue"]
    back = wire.SendBackRow(topic=topic, queue=queue, offset=row["offset"], delay_level=level)
    back.token = _token(call, group, group_of(call), topic, queue)
    return await _give_back(call, group_of(call), group, back, None if times < 0 else times)


async def send_retry(call: Call, failed: Failed) -> Command:
    """A send to a retry topic. MessageNotFoundError: the message is not there any more.
    OverloadedError: many of this user are under way."""
    if call.user.retries_count >= _RETRIES_MAX:
        raise OverloadedError(f"{_RETRIES_MAX} sends of this user to retry topics are under way")
    call.user.retries_count += 1
    try:
        return await _found_and_given_back(call, failed)
    finally:
        call.user.retries_count -= 1


async def _found_and_given_back(call: Call, failed: Failed) -> Command:
    view = call.user.cluster.cluster.view
    groups = [] if view is None else sorted(view.groups, key=group_of(call).__ne__)
    for topic in (f"{RETRY_PREFIX}{failed.group}", failed.topic):  # it has been back already?
        for broker_group in groups:
            back = await _place(call, broker_group, topic, failed)
            if back is not None:
                return await _give_back(call, broker_group, failed.group, back, failed.times_max)
    raise MessageNotFoundError(
        f"message {failed.unique_key[:64]} of {failed.topic}, which group {failed.group} gives"
        " back, is in no queue"
    )


async def _place(
    call: Call, broker_group: GroupName, topic: str, failed: Failed
) -> wire.SendBackRow | None:
    """The newest copy in a topic that has not failed as often yet."""
    known = call.user.cluster.cluster.topic(topic)
    if known is None or not known.queues.get(broker_group):
        return None
    search = wire.Search(topic=topic, unique_key=failed.unique_key, max=wire.RESULTS_MAX)
    found = [stored_row(row) for row in await search_in(call, broker_group, search, _COPIES_MAX)]
    copies = [each for each in found if each.reconsume_times < max(1, failed.times)]
    if not copies:
        return None
    copy = max(copies, key=lambda each: each.store_unix_ms)
    back = wire.SendBackRow(
        topic=topic, queue=copy.queue_id, offset=copy.queue_offset, delay_level=failed.delay_level
    )
    back.token = _token(call, failed.group, broker_group, topic, copy.queue_id)
    too_often = failed.times_max is not None and failed.times > failed.times_max
    if back.token is not None or too_often:  # ordered consumers send only what they give up
        back.delay_level = _DEAD
    return back


def _token(call: Call, group: str, broker_group: GroupName, topic: str, queue: int) -> Token | None:
    """Of the lock that the client holds on a queue (R33)."""
    return call.user.locks.token_of(group, call.peer.client_id, topic, broker_group, queue)


async def _give_back(
    call: Call,
    broker_group: GroupName,
    group: str,
    back: wire.SendBackRow,
    times_max: int | None,
) -> Command:
    asked = wire.SendBack(group=group, messages=[back], max_reconsume_times=times_max)
    answer, _ = await call.user.links.call(broker_group, asked, timeout_ms=CALL_MS)
    row = answer.messages[0]
    if row.code is not None:
        return call.request.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"{row.code}: the message was not sent back"
        )
    told = {"queueId": "0", "queueOffset": "0"}
    if row.message_id is not None:
        place = parse_offset_id(row.message_id)
        offset = physical_offset(place.position, place.number)
        told["msgId"] = message_id(call.peer.store_host, offset)
    return call.ok(told)
