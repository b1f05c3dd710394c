"""What an asker is shown: views and lists have only what the asker may see."""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from paceline.security.access import Asker
from paceline.wire.calls.request import Request
from paceline.wire.controller_calls.consumer_groups import ListConsumerGroups
from paceline.wire.controller_calls.topics import ListTopics
from paceline.wire.users import Policy
from paceline_controller.server.call_context import Node

KEPT_MAX = 64


class VisibleViews:
    """The cluster view as text, for each asker; made once for each version."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._versions = (-1, -1)
        self._kept: dict[tuple[str, str, str], bytes] = {}

    def body(self, asker: Asker) -> bytes:
        """The JSON."""
        if not asker.has_own_view:
            return self._node.view_body()
        versions = (self._node.machine.version, asker.access.version)
        if versions != self._versions:
            self._versions = versions
            self._kept.clear()
        principal = asker.principal
        who = (principal.user, principal.source, principal.namespace)
        if who not in self._kept:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[who] = orjson.dumps(asker.visible(self._node.view()).to_json())
        return self._kept[who]


def visible_answer(
    call: Request[Any], answer: Mapping[str, Any], asker: Asker
) -> Mapping[str, Any]:
    """The answer; of a list what the asker may see."""
    if not asker.sees_less:
        return answer
    if isinstance(call, ListTopics):
        topics = [row for row in answer["topics"] if asker.sees_topic(row["topic"])]
        return {**answer, "topics": topics}
    if isinstance(call, ListConsumerGroups):
        groups = [row for row in answer["groups"] if asker.sees_group(row["group"])]
        return {**answer, "groups": groups}
    return answer


def whoami(asker: Asker) -> dict[str, Any]:
    """What `/v1/whoami` answers."""
    security, principal = asker.access.security, asker.principal
    user = security.users.get(principal.user)
    return {
        "user": principal.user,
        "access_key": principal.access_key or None,
        "type": None if user is None else user.type,
        "namespace": principal.namespace,
        "mode": asker.access.mode,
        "policy": msgspec.to_builtins(security.policies.get(principal.user, Policy())),
    }
