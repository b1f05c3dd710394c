"""Not-found errors: each says the name that was asked for, and where to look."""

from collections.abc import Iterable

from paceline.errors import GroupNotFoundError, TopicNotFoundError


def no_topic(name: str) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"topic {name} does not exist; `paceline topic list` shows those that do", topic=name
    )


def no_consumer_group(name: str) -> GroupNotFoundError:
    return GroupNotFoundError(
        f"consumer group {name} is not on record; `paceline group list` shows those that are",
        group=name,
    )


def no_broker_group(name: str, known: Iterable[str], **details: str) -> GroupNotFoundError:
    """`details`: of the error; the field of the request that named it."""
    there = ", ".join(sorted(known)) or "none yet"
    return GroupNotFoundError(
        f"there is no broker group {name}; known: {there}", **{"group": name, **details}
    )
