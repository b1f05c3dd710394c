"""Pure: the columns of a row, their types as Spark's schema text, and which of them may be null.

| column | type | null |
|---|---|---|
| topic, broker_group | string | never |
| queue_id | int | never |
| offset | long | never |
| key, tag | string | where the message has none |
| body | binary | never; empty is empty |
| properties | map of strings | never; {} is none |
| born_at, stored_at | timestamp (UTC, to the millisecond) | never |
"""

from typing import NamedTuple

from paceline.errors import BadRequestError


class Column(NamedTuple):
    name: str
    type: str
    """As in Spark's DDL."""
    is_nullable: bool


COLUMNS = (
    Column("topic", "string", False),
    Column("broker_group", "string", False),
    Column("queue_id", "int", False),
    Column("offset", "bigint", False),
    Column("key", "string", True),
    Column("tag", "string", True),
    Column("body", "binary", False),
    Column("properties", "map<string,string>", False),
    Column("born_at", "timestamp", False),
    Column("stored_at", "timestamp", False),
)
BY_NAME = {column.name: column for column in COLUMNS}


def columns_named(names: tuple[str, ...], *, option: str = "columns") -> tuple[Column, ...]:
    """The columns in the order asked. BadRequestError: one does not exist, or comes twice."""
    found = []
    for name in names:
        if name not in BY_NAME:
            raise BadRequestError(
                f"{option}: there is no column {name!r}; there are {', '.join(BY_NAME)}",
                field=option,
            )
        found.append(BY_NAME[name])
    if not found or len(set(found)) != len(found):
        raise BadRequestError(
            f"{option} must name each column once, and at least one", field=option
        )
    return tuple(found)
