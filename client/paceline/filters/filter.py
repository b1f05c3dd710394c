"""Pure: filters of messages, by tag or by an SQL92 expression.

Expression types and the tag syntax are RocketMQ's: type "TAG" with "*" or "a || b", type "SQL92"
with an expression over the properties (`sql.py`), where TAGS and KEYS are the tag and the key.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from paceline.errors import BadRequestError
from paceline.filters.expression import SQL92, ByExpression, Filter
from paceline.records.decode import BatchView
from paceline.records.header import COLUMN_TAG, TAG_BYTES_MAX

TAG = "TAG"
TAGS_MAX = 128
"""Tags in one expression."""
EVERYTHING = "*"


class TagFilter(ByExpression):
    """Messages with one of some tags; with none of them ("*") all messages."""

    type = TAG
    terms = 0

    def __init__(self, tags: Iterable[str] = ()) -> None:
        self.tags = frozenset(tags)
        self.expression = " || ".join(sorted(self.tags)) or EVERYTHING

    def mask(
        self, view: BatchView, first: int = 0, end: int | None = None
    ) -> Sequence[bool] | None:
        if not self.tags:
            return None
        found = [tag in self.tags for tag in view.tags(first, end)]
        return None if all(found) else found

    def matches(self, properties: Mapping[str, str], *, tag: str, key: str | None) -> bool:
        return not self.tags or tag in self.tags

    def wants_any(self, view: BatchView, first: int = 0, end: int | None = None) -> bool:
        if not self.tags:
            return True
        has_tags = view.header.columns & COLUMN_TAG
        return bool(has_tags) and not self.tags.isdisjoint(view.tag_names())


ALL = TagFilter()


class Subscription(NamedTuple):
    """A topic and what is wanted of it."""

    topic: str
    filter: Filter = ALL

    @classmethod
    def by_tags(cls, topic: str, expression: str) -> "Subscription":
        """`expression`: "*" or "a || b". BadRequestError."""
        return cls(topic, make_filter(TAG, expression))

    @classmethod
    def by_sql(cls, topic: str, expression: str) -> "Subscription":
        """`expression`: SQL92 over the properties. BadRequestError with the place of the fault."""
        return cls(topic, make_filter(SQL92, expression))


def make_filter(type_: str, expression: str) -> Filter:
    """The filter of an expression; BadRequestError (field "filter") says what is wrong with it."""
    if type_ == TAG:
        return _tag_filter(expression)
    if type_ == SQL92:
        from paceline.filters.sql import SqlFilter  # the parser: 40 ms that few programs need

        return SqlFilter(expression)
    raise BadRequestError(
        f'filter type must be "{TAG}" or "{SQL92}", not {type_!r}', field="filter"
    )


def told(wanted: Filter) -> str:
    """What a member of a group says of its filter: one text, for people and for `of_told`."""
    return wanted.expression if wanted.type == TAG else f"{wanted.type}: {wanted.expression}"


def of_told(text: str) -> Filter:
    """The filter that `told` named. BadRequestError."""
    type_, colon, expression = text.partition(": ")
    return make_filter(type_, expression) if colon and type_ == SQL92 else make_filter(TAG, text)


def subscriptions(topics: Sequence[str | Subscription]) -> list[Subscription]:
    """Each topic as a subscription; a name alone wants everything."""
    return [topic if isinstance(topic, Subscription) else Subscription(topic) for topic in topics]


def _tag_filter(expression: str) -> Filter:
    if expression.strip() in ("", EVERYTHING):
        return ALL
    tags = [tag.strip() for tag in expression.split("||")]
    if not all(tags) or any("|" in tag for tag in tags):
        raise BadRequestError(
            f'a tag expression is "*" or tags between "||", not {expression[:80]!r}', field="filter"
        )
    if len(tags) > TAGS_MAX or any(len(tag) > TAG_BYTES_MAX for tag in tags):
        raise BadRequestError(f"a tag expression holds up to {TAGS_MAX} tags", field="filter")
    return TagFilter(tags)
