"""What a member of a consumer group tells of itself, checked."""

from typing import Any

from paceline.errors import BadRequestError
from paceline.wire.clients import MODELS, MODES, TOPICS_MAX
from paceline.wire.fields import Fields
from paceline.wire.names import check_name, check_readable_topic_name
from paceline_broker.service.groups.members import Owned

QUEUES_MAX = 40_000
"""Queues named in one call; a bound on work per loop turn."""
FILTER_LENGTH_MAX = 4096


def topics_of(fields: Fields) -> tuple[str, ...]:
    """The topics that a member subscribes to."""
    topics = fields.any("topics")
    if not isinstance(topics, list) or len(topics) > TOPICS_MAX:
        raise BadRequestError(f"topics must be a list of at most {TOPICS_MAX}", field="topics")
    return tuple(check_readable_topic_name(topic) for topic in topics)


def owned_of(fields: Fields) -> Owned:
    """The queues that a member works on."""
    owned = fields.any("owned")
    if not isinstance(owned, list) or len(owned) > QUEUES_MAX:
        raise BadRequestError(f"owned must be a list of at most {QUEUES_MAX}", field="owned")
    found: list[tuple[int, str, int]] = []
    for row in owned:
        match row:
            case [int(topic_id), str(group), int(queue)] if topic_id >= 0 and queue >= 0:
                found.append((topic_id, check_name(group, "owned"), queue))
            case _:
                raise BadRequestError("owned holds [topic_id, group, queue]", field="owned")
    return tuple(sorted(found))


def about_member(fields: Fields) -> dict[str, Any]:
    """What people read of it: message model, mode of consuming, filter of each topic."""
    about: dict[str, Any] = {}
    for key, known in (("message_model", MODELS), ("mode", MODES)):
        if fields.has(key):
            value = fields.text(key)
            if value not in known:
                raise fields.wrong(key, f"one of {', '.join(known)}", value)
            about[key] = value
    if fields.has("filters"):
        about["filters"] = _filters(fields.any("filters"))
    return about


def _filters(filters: Any) -> dict[str, str]:
    """By topic, the expression that chooses its messages."""
    if not isinstance(filters, dict) or len(filters) > TOPICS_MAX:
        raise BadRequestError(f"filters must be an object of at most {TOPICS_MAX}", field="filters")
    for topic, expression in filters.items():
        check_readable_topic_name(topic)
        if not isinstance(expression, str) or len(expression) > FILTER_LENGTH_MAX:
            message = f"a filter is a string of at most {FILTER_LENGTH_MAX} characters"
            raise BadRequestError(message, field="filters")
    return dict(filters)
