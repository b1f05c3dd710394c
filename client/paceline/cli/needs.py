"""What each command asks of nodes, and so which rights it needs.

`ASKS` names the requests of every command. The rights are those that the requests declare: the help
of a command and docs/CLI.md show them. A test runs the commands, and compares what they ask with
what stands here.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import click

if TYPE_CHECKING:
    from paceline.wire.rights import Action, Need, Needs, ResourceType

SPARED = "spared"
"""As `Asks.when`: asked only about what the user may see, or in vain without harm. So it needs no
right of its own."""
DEAD_LETTERS = "%DLQ%"
_AUDIT, _REPLIES = "%SYS%AUDIT", "paceline_REPLY_TOPIC"


class Asks(NamedTuple):
    """One request of a command: a call, a frame of a stream, or method and path of a resource."""

    name: str
    topic: str = ""
    """The topic that it is about, if the command does not name it; DEAD_LETTERS: those of its
    consumer group."""
    on: str = ""
    """What it is about, for people; empty: the topic or the consumer group."""
    only: str = ""
    """The type of what it names here: what else it could name it does not. Empty: all."""
    when: str = ""
    """The option or argument with which alone it is made, or SPARED; empty: it is always needed."""


class Right(NamedTuple):
    """One of these actions on one resource."""

    type: "ResourceType"
    actions: "tuple[Action, ...]"
    on: str
    """What it is on, for people."""
    topic: str = ""
    """The full name of the topic, if the command does not name it."""
    when: str = ""
    """The option or argument with which alone it is needed."""

    def __str__(self) -> str:
        text = f"{' or '.join(self.actions)} on {self.on}"
        return f"{text} (with {self.when})" if self.when else text

    def implies(self, other: "Right") -> bool:
        """Whoever has it has what the other one asks for."""
        is_same = (self.type, self.on, self.topic) == (other.type, other.on, other.topic)
        return is_same and self.when in ("", other.when) and set(self.actions) <= set(other.actions)


Asked: TypeAlias = tuple[Asks, ...]


_SAID = {
    ("Group", "source"): "the other consumer group",
    ("Group", "owner"): "the consumer group that is called like the owner",
    ("Topic", ""): "the topic of the message",
}
"""Type and field of a need -> what it is on, for people, if that is no plain word."""


def _asks(*names: str) -> Asked:
    return tuple(map(Asks, names))


_SEND = _asks("get_topic", "PRODUCE", "ensure_topic")
_REPLIED = (Asks("FOLLOW", topic=_REPLIES), Asks("ends", topic=_REPLIES))
_CONSUME = _asks(
    "get_topic",
    "FOLLOW",
    "ends",
    "times",
    "commit",
    "offsets",
    "resets",
    "filter",
    "heartbeat",
    "leave",
)
_KNOWN = (Asks("offsets", only="Group"), Asks("members"))
_DEAD = (
    Asks("get_consumer_group"),
    Asks("ends", topic=DEAD_LETTERS),
    Asks("offsets", topic=DEAD_LETTERS),
    Asks("FOLLOW", topic=DEAD_LETTERS),
)
_ALTER_POLICY = _asks("get_policy", "put_policy")

ASKS: Mapping[str, Asked | None] = {
    "up": None,
    "topic create": _asks("create_topic"),
    "topic alter": _asks("alter_topic"),
    "topic delete": _asks("delete_topic"),
    "topic describe": _asks("get_topic", "ends"),
    "topic list": (),
    "topic remap": _asks("remap_queue", "get_topic"),
    "send": (
        *_SEND,
        Asks("end_transactions", on="the topic", when="--transaction"),
        Asks("transaction_checks", on="the producer group", when="--transaction"),
    ),
    "recall": _asks("get_topic", "recall"),
    "delay list": (Asks("get_topic", when="TOPIC"), Asks("delays")),
    "delay stats": (Asks("get_topic", when="TOPIC"), Asks("delays")),
    "pull": _asks("get_topic", "FOLLOW", "ends", "filter"),
    "consume": (*_CONSUME, *_asks("lock", "unlock")),
    "group alter": _asks("alter_consumer_group"),
    "group clone": (
        Asks("get_topic"),
        Asks("clone_offsets"),
        Asks("offsets", on="the other consumer group", only="Group"),
        Asks("members", on="the other consumer group"),
    ),
    "group create": _asks("create_consumer_group"),
    "group delete": _asks("delete_consumer_group"),
    "group describe": _asks("get_consumer_group"),
    "group lag": (Asks("lag", only="Group"), *_KNOWN),
    "group list": (),
    "group members": _KNOWN,
    "group reset": (*_asks("get_topic", "reset"), *_KNOWN),
    "client list": _asks("clients"),
    "dlq list": _DEAD,
    "dlq purge": (*_DEAD, Asks("commit", topic=DEAD_LETTERS)),
    "dlq resend": (*_DEAD, Asks("resend")),
    "dlq show": _DEAD,
    "message find": _asks("get_topic", "search"),
    "message show": _asks("message"),
    "message track": (
        Asks("message"),
        Asks("track", on="the topic of the message"),
        Asks("members", when=SPARED),
    ),
    "request": (*_SEND, *_REPLIED),
    "reply": (*_CONSUME, Asks("send_back"), Asks("PRODUCE", topic=_REPLIES)),
    "receive": _asks("get_topic", "FETCH", "receive", "end_receive", "ack"),
    "ack": _asks("ack"),
    "change-invisible": _asks("invisible"),
    "transaction commit": _asks("end_transactions"),
    "transaction list": _asks("transactions"),
    "transaction rollback": _asks("end_transactions"),
    "transaction show": _asks("transaction"),
    "cluster add-write-perm": _asks("set_write_permission"),
    "cluster clean": _asks("remove_group", "remove_replica"),
    "cluster elect": _asks("elect"),
    "cluster epochs": _asks("GET /v1/epochs"),
    "cluster ha-status": _asks("GET /v1/status"),
    "cluster history": _asks("get_history"),
    "cluster pins add": (Asks("get_topic", when="--topic"), Asks("PUT /v1/pins/{owner}")),
    "cluster pins list": _asks("GET /v1/pins"),
    "cluster pins remove": _asks("DELETE /v1/pins/{owner}"),
    "cluster recover": _asks("list_stores", "recover", "forget_store"),
    "cluster status": _asks("get_status", "GET /v1/status"),
    "cluster sync-state-set": _asks("get_group"),
    "cluster transfer": _asks("get_group", "transfer"),
    "cluster wipe-write-perm": _asks("set_write_permission"),
    "controller members add": _asks("get_status", "list_members", "add_member"),
    "controller members list": _asks("get_status", "list_members"),
    "controller members remove": _asks("get_status", "list_members", "remove_member"),
    "controller members replace": _asks(
        "get_status", "list_members", "add_member", "remove_member"
    ),
    "controller status": _asks("get_status"),
    "controller transfer": _asks("get_cluster", "transfer_leadership"),
    "user add-key": _asks("put_access_key"),
    "user alter": _asks("put_user"),
    "user create": _asks("put_user"),
    "user delete": _asks("delete_user"),
    "user end-logins": _asks("end_logins"),
    "user list": _asks("list_users"),
    "user remove-key": _asks("delete_access_key"),
    "user set-password": _asks("put_password", "change_password"),
    "acl explain": _asks("explain"),
    "acl lint": _asks("list_policies"),
    "acl list": _asks("list_policies", "get_policy"),
    "acl remove": _ALTER_POLICY,
    "acl set": _ALTER_POLICY,
    "quota delete": _asks("put_quota"),
    "quota list": _asks("list_quotas"),
    "quota set": _asks("put_quota"),
    "audit search": (Asks("search", topic=_AUDIT),),
    "security disable": _asks("set_security_mode"),
    "security enable": _asks(
        "get_security", "list_users", "put_user", "put_access_key", "set_security_mode"
    ),
    "security seal-keys": _asks("seal_keys"),
    "security status": _asks("get_security"),
    "login": _asks("login", "GET /v1/whoami"),
    "logout": None,
    "whoami": _asks("GET /v1/whoami"),
    "tls init": None,
    "tls issue": None,
    "tls renew": None,
    "tls show": None,
    "log check": None,
    "log give-up": None,
    "export": (
        *_asks("FETCH", "ends"),
        Asks("PUT /v1/pins/{owner}", on="the consumer group called spark-*", only="Group"),
    ),
    "demo": None,
    "bench": None,
    "chaos busy": None,
    "chaos failover": None,
    "chaos replay": None,
    "chaos report": None,
    "chaos rounds": None,
    "chaos run": None,
}
"""Command -> what it asks, beside what any user may (the view of the cluster, a session, who it
is); None: nothing of a cluster that is there."""


class Command(click.Command):
    """A command whose help ends with the rights that it needs."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        line = needs_line(ctx.command_path.partition(" ")[2])
        if line:
            formatter.write_paragraph()
            formatter.write_text(line)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    group_class = type


def needs_line(command: str) -> str:
    """For its help; empty: it asks nothing of a cluster."""
    asked = ASKS.get(command)
    if asked is None:
        return ""
    return "Needs: " + ("; ".join(map(str, rights_of(asked))) or "no right") + "."


def rights_of(asked: Asked) -> list[Right]:
    """What whoever asks all that must have, without what something else in it implies."""
    found = list(dict.fromkeys(right for each in asked for right in _rights(each)))
    return [
        right
        for right in found
        if not any(other != right and other.implies(right) for other in found)
    ]


def declared(name: str) -> "Needs":
    """The rights of a request, with those on what it finds. KeyError: there is none called so."""
    from paceline.wire.calls.resources import FRAMES, RESOURCES
    from paceline.wire.calls.table import CALLS
    from paceline.wire.controller_calls.table import CALLS as CONTROLLER_CALLS
    from paceline.wire.rights import on_topic
    from paceline.wire.stream import Operation

    if name in RESOURCES:
        return RESOURCES[name]
    if name in Operation.__members__:
        return (on_topic(*FRAMES[Operation[name]]),)
    call = {**CALLS, **CONTROLLER_CALLS}[name]
    found = (on_topic(*call.finds, field=""),) if call.finds else ()
    return (*(call.needs or ()), *found)


def _rights(asks: Asks) -> "Iterator[Right]":
    if asks.when == SPARED:
        return
    for need in declared(asks.name):
        if need.actions and asks.only in ("", need.type):
            yield _right(asks, need)


def _right(asks: Asks, need: "Need") -> Right:
    from paceline.wire.rights import ResourceType, topic_resource

    type_, on, topic = need.type, asks.on or _SAID.get((need.type, need.field), ""), ""
    if type_ is ResourceType.CLUSTER:
        on = "the cluster"
    elif type_ is ResourceType.GROUP:
        on = on or "the consumer group"
    elif asks.topic:
        type_, topic = topic_resource(asks.topic)
        on = f"{type_}:{topic}" if topic else "the consumer group"
    else:
        on = on or "the topic"
    return Right(type_, need.actions, on, topic, asks.when)
