"""Ends of transactions (37).

A client ends a transaction by the place of its half, which an answer to its send has told; the
broker group is that of the listener.
"""

from paceline.errors import BadRequestError
from paceline.producer.transaction_ends import HANDLE_KIND
from paceline.wire.message_ids import make_handle
from paceline_gateway.remoting.call import Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.message_ids import place_of


async def end_transaction(call: Call) -> Command:
    """37. "Unknown" ends nothing: producers are asked again later."""
    request = call.request
    end = fields.integer(request, "commitOrRollback")
    if end not in (0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
        raise BadRequestError(f"commitOrRollback {end} is none of 0, 8, 12")
    if end:
        place = place_of(fields.integer(request, "commitLogOffset"), group_of(call))
        handle = make_handle(HANDLE_KIND, place)
        await call.user.ends.end(handle, is_commit=end == TRANSACTION_COMMIT)
    return call.ok()
