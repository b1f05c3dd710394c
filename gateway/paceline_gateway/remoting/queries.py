"""Single messages: by key or unique key (12), by id (33); and recalls (370)."""

import binascii
from typing import Any

from paceline.types import GroupName
from paceline.wire.calls import messages as wire
from paceline.wire.message_ids import parse_offset_id
from paceline_gateway.recall_handles import read_recall_handle
from paceline_gateway.remoting.call import CALL_MS, Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.message_ids import physical_offset, place_of
from paceline_gateway.remoting.codec.store_format import Stored, encode_message, properties_of

_UNIQUE = "_UNIQUE_KEY_QUERY"
_PAGES_MAX = 16
"""Of one query, 64 messages each."""


def stored_row(row: dict[str, Any]) -> Stored:
    """A row of a search as a message."""
    place = parse_offset_id(row["message_id"])
    body = row.get("body")
    content = binascii.a2b_base64(row.get("body_base64") or "") if body is None else body.encode()
    properties, times, flag = properties_of(
        row["properties"], key=row["key"], tag=row["tag"], unique_key=row["unique_key"]
    )
    return Stored(
        topic=row["topic"],
        queue_id=row["queue"],
        queue_offset=row["offset"],
        physical_offset=physical_offset(place.position, place.number),
        body=content,
        properties=properties,
        born_unix_ms=row["born_unix_ms"],
        store_unix_ms=row["store_unix_ms"],
        reconsume_times=times,
        flag=flag,
    )


async def view_message(call: Call) -> Command:
    """33: the message at a physical offset."""
    place = place_of(fields.integer(call.request, "offset"), group_of(call))
    row = await message_row(call, str(place))
    return call.ok(body=encode_message(stored_row(row), call.peer.store_host))


async def message_row(call: Call, message_id: str) -> dict[str, Any]:
    """What the master says of a message. MessageNotFoundError."""
    answer, _ = await call.user.links.call(
        group_of(call), wire.Message(id=message_id), timeout_ms=CALL_MS
    )
    return answer.message


async def query_message(call: Call) -> Command:
    """12: messages of this broker group with a key, or of that unique key, newest last."""
    request = call.request
    topic, key = fields.text(request, "topic"), fields.text(request, "key")
    count = max(1, min(wire.RESULTS_MAX, fields.integer(request, "maxNum", wire.RESULTS_DEFAULT)))
    begin = max(0, fields.integer(request, "beginTimestamp", 0))
    end = fields.integer(request, "endTimestamp", 0)
    is_unique = fields.flag(request, _UNIQUE) or request.fields.get("indexType") == "UNIQUE_KEY"
    search = wire.Search(topic=topic, begin_unix_ms=begin, max=wire.RESULTS_MAX)
    if 0 < end < 2**63 - 1:
        search.end_unix_ms = end
    if not is_unique:
        search.key = key
    else:
        search.unique_key = key
    found = await search_in(call, group_of(call), search, count)
    if not found:
        return call.request.answer(
            ResponseCode.QUERY_NOT_FOUND, remark=f"no message of {topic} has that key here"
        )
    host = call.peer.store_host
    body = b"".join(encode_message(stored_row(row), host) for row in found[:count])
    last = max(row["store_unix_ms"] for row in found)
    return call.ok({"indexLastUpdateTimestamp": str(last), "indexLastUpdatePhyoffset": "0"}, body)


async def search_in(
    call: Call, group: GroupName, search: wire.Search, count: int
) -> list[dict[str, Any]]:
    """Rows of a search in a broker group, page by page, until there are `count`."""
    found: list[dict[str, Any]] = []
    for _ in range(_PAGES_MAX):
        answer, _ = await call.user.links.call(group, search, timeout_ms=CALL_MS)
        found += answer.messages
        search.after = answer.after
        if answer.after is None or len(found) >= count:
            break
    return found


async def recall(call: Call) -> Command:
    """370: take a delayed message back."""
    request = call.request
    wanted = read_recall_handle(fields.text(request, "recallHandle"))
    topic = fields.text(request, "topic")
    message_id = await call.user.cluster.producer.recall(topic, wanted.handle)
    return call.ok({"msgId": wanted.message_id or message_id})
