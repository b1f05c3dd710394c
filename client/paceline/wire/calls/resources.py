"""Pure: rights for what clients ask of nodes and is no request of the tables: the frames of a
stream, and resources of HTTP. Nodes decide by them, and commands say by them what they need."""

from collections.abc import Mapping

from paceline.wire.rights import (
    KNOWN_USER,
    PUB,
    SEE_CLUSTER,
    SEE_TOPIC,
    SUB,
    UPDATE,
    Action,
    Needs,
    on_group,
    on_topic,
)
from paceline.wire.stream import Operation

FRAMES: Mapping[Operation, tuple[Action, ...]] = {
    Operation.PRODUCE: (PUB,),
    Operation.FETCH: (SUB,),
    Operation.FOLLOW: (SUB,),
}
"""One of these on the topic of the batch, or on each topic whose queues are asked for. A CALL needs
what its request needs, and a HELLO is the broker's."""

_OWNER: Needs = (on_group(SUB, UPDATE, field="owner"),)
RESOURCES: Mapping[str, Needs] = {
    "GET /v1/pins": SEE_CLUSTER,
    "PUT /v1/pins/{owner}": (*_OWNER, on_topic(*SEE_TOPIC, field="queues")),
    "DELETE /v1/pins/{owner}": _OWNER,
    "GET /v1/status": SEE_CLUSTER,
    "GET /v1/epochs": SEE_CLUSTER,
    "GET /v1/whoami": KNOWN_USER,
}
"""Method and path -> rights. A field is a name in braces of the path, or of the body: then the
handler checks it."""
