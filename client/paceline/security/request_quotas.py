"""Which namespaces a request counts for, where their bytes are limited."""

from typing import Any

from paceline.errors import TopicNotFoundError
from paceline.security.access import Asker
from paceline.security.quotas import UserQuota
from paceline.wire.calls.request import Request
from paceline.wire.rights import ResourceType, named


def namespace_quotas(asker: Asker, request: Request[Any]) -> list[UserQuota]:
    """As `Asker.namespace_quota`, of all topics and consumer groups that a request is about. What
    nodes ask counts for none."""
    found: dict[UserQuota, None] = {}
    if asker.principal.is_node or not asker.access.quotas.limits_namespaces:
        return []
    for need in request.needed():
        if need.type not in (ResourceType.TOPIC, ResourceType.GROUP):
            continue
        for name in named(getattr(request, need.field)):
            quota = asker.namespace_quota(_name_of(asker, name))
            if quota is not None:
                found[quota] = None
    return list(found)


def _name_of(asker: Asker, topic: str | int) -> str:
    """Of what a request names by either; empty: there is no such topic."""
    try:
        return topic if isinstance(topic, str) else asker.access.topic_name(topic)
    except TopicNotFoundError:
        return ""
