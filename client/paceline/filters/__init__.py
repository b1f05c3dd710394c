"""Pure: which messages a subscription wants: tags (`a || b`) or SQL92 over properties.

The broker passes over batches in which nothing is wanted, the client over single records, both by
the same `Filter`, so that they can never differ.
"""

from paceline.filters.expression import Filter
from paceline.filters.filter import (
    ALL,
    Subscription,
    TagFilter,
    make_filter,
    of_told,
    subscriptions,
    told,
)

__all__ = [
    "ALL",
    "Filter",
    "Subscription",
    "TagFilter",
    "make_filter",
    "of_told",
    "subscriptions",
    "told",
]
