"""Pure: what a message must be like to be wanted, for each expression that histories know.

Written down by hand, once more: nothing of the product's filters is asked, so that S39 cannot
share a mistake with them.
"""

from collections.abc import Callable, Mapping

from paceline_chaos.history.model import Send

TAGS = "red || box"
SQL = (
    "(grams BETWEEN 100 AND 500 OR colour IN ('red', 'green'))"
    " AND NOT (rank > 3) AND (TAGS IS NULL OR TAGS <> 'box')"
)
"""What is not there, or is no number, makes its part unknown, which is not wanted (also with NOT),
unless the other side of an OR is true."""
AT_BOUNDS = (99, 100, 101, 499, 500, 501)
"""Of grams: where a filter that is off by one shows."""


def is_wanted(send: Send, expression: str) -> bool:
    """Whether a group with this filter is to be given a message; "" = it wants all."""
    return expression == "" or _WANTED[expression](send.tag, send.properties or {})


def _by_tags(tag: str, properties: Mapping[str, str]) -> bool:
    return tag in ("red", "box")


def _by_sql(tag: str, properties: Mapping[str, str]) -> bool:
    grams, rank = _whole(properties, "grams"), _whole(properties, "rank")
    is_sized = grams is not None and 100 <= grams <= 500
    is_coloured = properties.get("colour") in ("red", "green")
    is_ranked = rank is not None and rank <= 3
    return (is_sized or is_coloured) and is_ranked and tag != "box"


def _whole(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name, "")
    return int(text) if text.isdecimal() else None


_WANTED: Mapping[str, Callable[[str, Mapping[str, str]], bool]] = {TAGS: _by_tags, SQL: _by_sql}
