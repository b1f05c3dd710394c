"""Pure: how nodes put their audit into the topic of the audit."""

from typing import Annotated

from msgspec import Meta

from paceline.wire.audit import RECORDS_MAX, AuditRecord
from paceline.wire.calls.request import Answer, Request, Route
from paceline.wire.rights import CHANGE_CLUSTER


class AuditTaken(Answer):
    """They are stored."""

    count: int


class TakeAudit(Request[AuditTaken], kw_only=True):
    """Store records of the audit in the topic `%SYS%AUDIT`. Only nodes of the cluster may: a user
    could forge them. Sent again, they are stored again; readers go by node, sequence and time."""

    routes = (Route("POST", "/v1/audit"),)
    needs = CHANGE_CLUSTER
    records: Annotated[list[AuditRecord], Meta(min_length=1, max_length=RECORDS_MAX)]
