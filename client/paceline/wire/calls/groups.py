"""Pure: calls about the members of consumer groups, connected clients, topics and routes."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from paceline.wire.calls.request import (
    QUEUES_MAX,
    Answer,
    ClientId,
    Number,
    Request,
    Route,
    Text,
    matching,
)
from paceline.wire.clients import LANGUAGE_LENGTH_MAX, TOPICS_MAX, VERSION_LENGTH_MAX
from paceline.wire.rights import (
    CREATE,
    GET,
    KNOWN_USER,
    PUB,
    SEE_CLUSTER,
    SUB,
    Needs,
    on_group,
    on_topic,
)

FILTER_LENGTH_MAX = 4096

Topics = Annotated[list[str], Meta(max_length=TOPICS_MAX)]
MessageModel = Literal["clustering", "broadcasting"]
ConsumeMode = Literal["concurrent", "ordered", "pull", "simple"]
Door = Literal["grpc", "remoting"]
Filters = Annotated[
    dict[str, Annotated[str, Meta(max_length=FILTER_LENGTH_MAX)]], Meta(max_length=TOPICS_MAX)
]
"""By topic, the expression that chooses its messages."""
OwnedQueue = tuple[Number, str, Number]
"""[topic id, broker group, queue]."""


class MemberRow(Answer, kw_only=True):
    """A member, and what it told of itself."""

    client_id: str
    topics: list[str]
    owned: list[tuple[int, str, int]]
    """What it claims: [topic id, broker group, queue]."""
    message_model: str | None = None
    mode: str | None = None
    filters: dict[str, str] = {}


class Rebalance(Answer, kw_only=True):
    """All members of a group, with what they claim."""

    generation: int
    interval_ms: int
    """Time between heartbeats."""
    members: list[MemberRow]
    inconsistent_topics: list[str]
    """Not all members subscribe to them in the same way."""


class Heartbeat(Request[Rebalance], kw_only=True):
    """A member of a group tells what it works on, and hears of the others.

    It goes to the master of the coordinating group: entry `crc32c(group name) mod n` of the n
    broker groups in order of name; others answer NOT_MASTER with its address. A member that is
    silent for 10 s is dropped, and one whose last heartbeat came over a stream that has closed
    after 300 ms, if it has not come back. With the present `generation` and `wait_ms` it answers
    when something changes. A new coordinator answers after one interval.
    """

    routes = (Route("POST", "/v1/groups/{group}/members"),)
    needs = (on_group(SUB), on_topic(SUB, field="topics"))
    also_names = (on_topic(field="filters"),)
    group: Text
    client_id: ClientId
    topics: Topics
    owned: Annotated[list[OwnedQueue], Meta(max_length=QUEUES_MAX)]
    generation: Number
    wait_ms: Number = 0
    message_model: MessageModel | None = None
    mode: ConsumeMode | None = None
    filters: Filters | None = None


class LeftGroup(Answer):
    """The generation that follows."""

    generation: int


class Leave(Request[LeftGroup], kw_only=True):
    """A member leaves its group."""

    routes = (Route("POST", "/v1/groups/{group}/leave"),)
    needs = (on_group(SUB),)
    group: Text
    client_id: ClientId


class Members(Request[dict[str, Any]], kw_only=True):
    """The members of a group, as its coordinator knows them: for people."""

    routes = (Route("GET", "/v1/groups/{group}/members"),)
    needs = (on_group(SUB, GET),)
    group: Text


class Nothing(Answer):
    """Done."""


class Client(Request[Nothing], kw_only=True):
    """Whose connection this is. It is on the list of this broker, whatever its role, until the
    connection closes or 120 s pass without another `client`; over HTTP only the latter.

    A consumer needs Sub on the group and on its topics, a producer Pub on its topics. The group of
    a producer needs nothing: it is a name on a list, and rows say whose they are (`user`).
    """

    needs = KNOWN_USER
    also_names = (on_group(), on_topic(field="topics"), on_topic(field="filters"))
    kind: Literal["producer", "consumer"]
    group: Text
    client_id: ClientId
    version: Annotated[str, matching(rf"[\x20-\x7e]{{1,{VERSION_LENGTH_MAX}}}")]
    language: Annotated[str, matching(rf"[\x20-\x7e]{{1,{LANGUAGE_LENGTH_MAX}}}")]
    topics: Topics
    message_model: MessageModel | None = None
    mode: ConsumeMode | None = None
    filters: Filters | None = None
    door: Door | None = None
    """Of RocketMQ's protocols that by which it came to a gateway, which tells of it. Such a client
    is on the list until 120 s pass without another `client`: the connection is the gateway's."""
    has_gone: bool = False
    """It is on the list no more, if the list has it from whoever tells this."""

    def needed(self) -> Needs:
        """As RocketMQ's clients need for their settings."""
        if self.kind == "consumer":
            return (on_group(SUB), on_topic(SUB, field="topics"))
        return (*KNOWN_USER, on_topic(PUB, field="topics"))


class ClientsOf(Answer):
    """Who is connected to this broker."""

    clients: list[dict[str, Any]]
    """What they told, `user` (null while rights are off), `address`, `since_unix_ms`,
    `heard_unix_ms`, `brokers`."""
    conflicts: dict[str, list[str]]
    """By group, topics that its consumers here do not all subscribe to in the same way."""


class Clients(Request[ClientsOf], kw_only=True):
    """The clients that are connected to this broker."""

    routes = (Route("GET", "/v1/clients"),)
    needs = SEE_CLUSTER
    also_names = (on_group(), on_topic())
    lists_all = ("clients",)
    group: Text | None = None
    topic: Text | None = None
    kind: Literal["producer", "consumer"] | None = None


class TopicMade(Answer):
    """As in the view."""

    topic: dict[str, Any]


class EnsureTopic(Request[TopicMade], kw_only=True):
    """The topic, made if brokers make topics (`auto_create_topic_enable`)."""

    needs = (on_topic(PUB, SUB, CREATE),)
    topic: Text


class GroupMade(Answer):
    """As in the view."""

    group: dict[str, Any]


class EnsureGroup(Request[GroupMade], kw_only=True):
    """The consumer group, made if brokers make groups (`auto_create_subscription_group`)."""

    needs = (on_group(SUB, CREATE),)
    group: Text


class Routes(Request[dict[str, Any]], kw_only=True):
    """The cluster view, once it has at least that version (waits up to 1 s)."""

    needs = KNOWN_USER
    version: Number = 0
