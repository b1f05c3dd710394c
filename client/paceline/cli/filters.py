"""The options by which commands choose messages: --filter and --sql."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

from paceline.errors import BadRequestError

F = TypeVar("F", bound=Callable[..., Any])


def filter_options(command: F) -> F:
    """Adds --filter and --sql; the command gets `wanted`, a `Filter`. UsageError for bad ones."""

    @click.option("--filter", "tags", metavar="TAGS", help='Only these tags, e.g. "red || blue".')
    @click.option(
        "--sql", metavar="EXPRESSION", help='Only these properties, e.g. "price > 5" (SQL92).'
    )
    @wraps(command)
    def filtered(*arguments: Any, tags: str | None, sql: str | None, **options: Any) -> Any:
        from paceline.filters import ALL, Filter, make_filter

        if tags is not None and sql is not None:
            raise click.UsageError("give --filter or --sql, not both")
        wanted: Filter = ALL
        try:
            if tags is not None:
                wanted = make_filter("TAG", tags)
            elif sql is not None:
                wanted = make_filter("SQL92", sql)
        except BadRequestError as error:
            raise click.UsageError(error.message) from error
        return command(*arguments, wanted=wanted, **options)

    return cast(F, filtered)
