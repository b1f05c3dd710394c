"""A request that a handler carries out."""

from typing import NamedTuple

from paceline.platform.ports import Buffer
from paceline.types import GroupName
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.state.peers import Peer
from paceline_gateway.remoting.state.users import RemotingUser

CALL_MS = 10_000
"""Of a call to a broker that waits for nothing."""


class Call(NamedTuple):
    """A request to be carried out."""

    peer: Peer
    user: RemotingUser
    request: Command

    def ok(self, fields: dict[str, str] | None = None, body: Buffer = b"") -> Command:
        """That it was."""
        return self.request.answer(ResponseCode.SUCCESS, fields, body)


def group_of(call: Call) -> GroupName:
    """The broker group whose listener the client has come to."""
    group = call.peer.place.group
    assert group is not None
    return group
