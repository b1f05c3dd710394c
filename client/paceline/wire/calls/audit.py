"""Pure: the audit: who has done, or was refused, what; and how nodes put it into its topic.

A record is one line of JSON. It has names only: never a body, never a secret.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from paceline.wire.calls.request import Answer, Number, Request, Route
from paceline.wire.rights import CHANGE_CLUSTER, Decision

TEXT_LENGTH_MAX = 1_000
"""A longer rule or name is cut: strangers choose some of them."""
RECORDS_MAX = 2_000
"""Of one request; a line has at least 100 bytes."""

AuditText: TypeAlias = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]


class AuditRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One call. It may be in the topic more than once, by `identity` the same."""

    unix_ms: Number
    node: AuditText
    """Who carried it out, or refused it."""
    sequence: Number
    """Of the records of that node."""
    user: AuditText
    access_key: AuditText = ""
    """Its name, of which the secret key is not a part; empty: none was shown, or a wrong one."""
    source: AuditText = ""
    """Address."""
    door: AuditText
    """http, stream, session (of brokers at controllers); grpc and remoting, through a gateway; and
    where only nodes come: replication, repair, escape, raft."""
    call: AuditText
    """Name of the request, or method and path of what has no name."""
    about: AuditText = ""
    """What the request names."""
    action: AuditText = ""
    """The right that was asked for, and on what; of several the one that decided."""
    resource: AuditText = ""
    decision: Decision
    rule: AuditText = ""
    """Why."""
    outcome: AuditText
    """OK, or the code of an error. A denied call with another outcome than a refusal was let in:
    rights are on for trial."""
    request_id: AuditText = ""
    times: Number = 1
    """How often: what one source was refused at a door of nodes is told together."""
    dropped: Number = 0
    """Refusals and samples that came too fast before this record, and have none."""

    @property
    def identity(self) -> tuple[int, str, int]:
        """By which records are put in order, too. The time belongs to it: a machine that loses
        power may lose its last lines, and their sequence is used again."""
        return (self.unix_ms, self.node, self.sequence)


_DECODER = msgspec.json.Decoder(AuditRecord)


def json_of(record: AuditRecord) -> bytes:
    """On one line."""
    return msgspec.json.encode(record)


def record_of(content: bytes | str) -> AuditRecord | None:
    """The record of that JSON; None: it is none."""
    try:
        return _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def read_lines(content: bytes) -> tuple[list[AuditRecord], int]:
    """The records in the whole lines of a file, and how many bytes these lines have.

    What a machine that lost power has left of a line is passed over.
    """
    end = content.rfind(b"\n") + 1
    found = map(record_of, content[:end].splitlines())
    return [record for record in found if record is not None], end


class AuditTaken(Answer):
    """They are stored."""

    count: int


class TakeAudit(Request[AuditTaken], kw_only=True):
    """Store records of the audit in the topic `%SYS%AUDIT`. Only nodes of the cluster may: a user
    could forge them. Sent again, they are stored again; readers go by node, sequence and time."""

    routes = (Route("POST", "/v1/audit"),)
    needs = CHANGE_CLUSTER
    records: Annotated[list[AuditRecord], Meta(min_length=1, max_length=RECORDS_MAX)]
