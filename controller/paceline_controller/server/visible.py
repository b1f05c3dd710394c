"""What an asker is shown: lists have only what the asker may see, as views have."""

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline.security.access import Asker
from paceline.wire.calls.request import Request
from paceline.wire.controller_calls.consumer_groups import ListConsumerGroups
from paceline.wire.controller_calls.topics import ListTopics
from paceline.wire.users import Policy
from paceline.wire.views.changes import ViewChanges


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


def visible_changes(asker: Asker, changes: ViewChanges | None) -> ViewChanges | None:
    """Changes for an asker that has a view of its own; None: it needs the whole view, since it may
    be shown others than before."""
    if changes is None or changes.are_rights:
        return None
    return changes.limited(
        sees_topic=lambda name: not asker.sees_less or asker.sees_topic(name),
        sees_group=lambda name: not asker.sees_less or asker.sees_group(name),
        namespace=asker.principal.namespace,
    )


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
