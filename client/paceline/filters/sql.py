"""Pure: SQL92 expressions over the properties of a message, as RocketMQ's users write them.

Comparisons `= <> > >= < <=`, `[NOT] BETWEEN a AND b`, `[NOT] IN ('a', 'b')`, `IS [NOT] NULL`,
`[NOT] CONTAINS | STARTSWITH | ENDSWITH 'text'`, AND, OR, NOT, parentheses, TRUE and FALSE. Names
are properties; TAGS and KEYS are the tag and the key. Keywords in any case, names as they stand.

Properties are text. Beside a number a property is read as one; beside TRUE or FALSE as "true" or
"false". What cannot be read so, or is not there, gives *unknown*: NOT unknown is unknown, and a
message is wanted only where the whole is true (SQL's three values).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from paceline.errors import BadRequestError
from paceline.filters.filter import SQL92, ByExpression
from paceline.records.decode import BatchView

EXPRESSION_LENGTH_MAX = 8_192
DEPTH_MAX = 200
"""Parentheses inside each other and NOTs; the evaluation calls itself for each."""

Truth: TypeAlias = bool | None
"""None = unknown."""
Row: TypeAlias = Mapping[str, str]
Test: TypeAlias = Callable[[Row], Truth]
Value: TypeAlias = str | int | float | bool | None
Read: TypeAlias = Callable[[Row], Value]

_GRAMMAR = r"""
?start: any
?any: all ("OR"i all)*            -> any
?all: negated ("AND"i negated)*   -> all
?negated: "NOT"i negated          -> negation
    | test
?test: operand "=" operand        -> equal
    | operand "<>" operand        -> unequal
    | operand ">" operand         -> greater
    | operand ">=" operand        -> greater_or_equal
    | operand "<" operand         -> less
    | operand "<=" operand        -> less_or_equal
    | operand "IS"i "NULL"i       -> is_null
    | operand "IS"i "NOT"i "NULL"i                     -> is_not_null
    | operand "BETWEEN"i operand "AND"i operand        -> between
    | operand "NOT"i "BETWEEN"i operand "AND"i operand -> not_between
    | operand "IN"i "(" STRING ("," STRING)* ")"       -> among
    | operand "NOT"i "IN"i "(" STRING ("," STRING)* ")" -> not_among
    | operand "CONTAINS"i STRING            -> contains
    | operand "NOT"i "CONTAINS"i STRING     -> not_contains
    | operand "STARTSWITH"i STRING          -> starts_with
    | operand "NOT"i "STARTSWITH"i STRING   -> not_starts_with
    | operand "ENDSWITH"i STRING            -> ends_with
    | operand "NOT"i "ENDSWITH"i STRING     -> not_ends_with
    | operand                     -> as_truth
    | "(" any ")"
?operand: NUMBER                  -> number
    | STRING                      -> string
    | "TRUE"i                     -> true
    | "FALSE"i                    -> false
    | NAME                        -> name
NUMBER: /[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?/
STRING: /'([^']|'')*'/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
%ignore /[ \t\r\n]+/
"""
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,300}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


class SqlFilter(ByExpression):
    """A parsed expression."""

    type = SQL92

    def __init__(self, expression: str) -> None:
        """Raises BadRequestError with the place of the fault."""
        self.expression = expression
        self._test = _compiled(expression)

    def matches(self, properties: Row, *, tag: str = "", key: str | None = None) -> bool:
        """Whether one message is wanted."""
        return self._test(_row(properties, tag, key)) is True

    def mask(self, view: BatchView) -> Sequence[bool] | None:
        test = self._test
        columns = zip(view.properties(), view.tags(), view.keys(), strict=True)
        found = [test(_row(properties, tag, key)) is True for properties, tag, key in columns]
        return None if all(found) else found

    def wants_any(self, view: BatchView) -> bool:
        test = self._test
        columns = zip(view.properties(), view.tags(), view.keys(), strict=True)
        return any(test(_row(properties, tag, key)) is True for properties, tag, key in columns)


def _row(properties: Row, tag: str, key: str | None) -> Row:
    row = dict(properties)
    if tag:
        row["TAGS"] = tag
    if key:
        row["KEYS"] = key
    return row


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)


def _compiled(expression: str) -> Test:
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise BadRequestError(
            f"an SQL92 expression has up to {EXPRESSION_LENGTH_MAX} characters", field="filter"
        )
    _check_depth(expression)
    try:
        return _Compiler().transform(_parser().parse(expression))
    except UnexpectedInput as error:
        raise BadRequestError(_fault(expression, error), field="filter") from error
    except VisitError as error:
        if isinstance(error.orig_exc, BadRequestError):
            raise error.orig_exc from error
        raise


def _check_depth(expression: str) -> None:
    """Before parsing; text in quotes is counted as well, which only makes it stricter."""
    marks = re.findall(r"[()]|\bNOT\b", expression, re.IGNORECASE)
    depth = deepest = 0
    for mark in marks:
        depth += {"(": 1, ")": -1}.get(mark, 0)
        deepest = max(deepest, depth)
    negations = sum(mark not in "()" for mark in marks)
    if deepest + negations > DEPTH_MAX:
        raise BadRequestError(
            f"an SQL92 expression has up to {DEPTH_MAX} parentheses in each other and NOTs",
            field="filter",
        )


def _fault(expression: str, error: UnexpectedInput) -> str:
    at = error.pos_in_stream if isinstance(error.pos_in_stream, int) else len(expression)
    match error:
        case UnexpectedToken() if error.token.type == "$END":
            return "the SQL92 expression ends too early"
        case UnexpectedToken():
            what = f"{str(error.token)[:40]!r}"
        case UnexpectedCharacters():
            what = f"{expression[at : at + 1]!r}"
        case _:
            what = "what stands there"
    return f"SQL92 expression: {what} is not understood at character {at + 1}"


@v_args(inline=True)
class _Compiler(Transformer[Token, Test]):
    """From the parse tree to nested functions of a row."""

    def any(self, *tests: Test) -> Test:
        return tests[0] if len(tests) == 1 else lambda row: _any(tests, row)

    def all(self, *tests: Test) -> Test:
        return tests[0] if len(tests) == 1 else lambda row: _all(tests, row)

    def negation(self, test: Test) -> Test:
        return _negated(test)

    def as_truth(self, read: Read) -> Test:
        return lambda row: _truth(read(row))

    # -- operands ----------------------------------------------------------------------------------

    def number(self, token: Token) -> Read:
        value = _number(str(token))
        if value is None:
            raise BadRequestError(f"SQL92 expression: {token[:40]} is no number", field="filter")
        return lambda row: value

    def string(self, token: Token) -> Read:
        value = _text(token)
        return lambda row: value

    def true(self) -> Read:
        return lambda row: True

    def false(self) -> Read:
        return lambda row: False

    def name(self, token: Token) -> Read:
        name = str(token)
        return lambda row: row.get(name)

    # -- tests -------------------------------------------------------------------------------------

    def equal(self, left: Read, right: Read) -> Test:
        return lambda row: _equal(left(row), right(row))

    def unequal(self, left: Read, right: Read) -> Test:
        return _negated(self.equal(left, right))

    def greater(self, left: Read, right: Read) -> Test:
        return lambda row: _compare(left(row), right(row), lambda order: order > 0)

    def greater_or_equal(self, left: Read, right: Read) -> Test:
        return lambda row: _compare(left(row), right(row), lambda order: order >= 0)

    def less(self, left: Read, right: Read) -> Test:
        return self.greater(right, left)

    def less_or_equal(self, left: Read, right: Read) -> Test:
        return self.greater_or_equal(right, left)

    def is_null(self, read: Read) -> Test:
        return lambda row: read(row) is None

    def is_not_null(self, read: Read) -> Test:
        return lambda row: read(row) is not None

    def between(self, read: Read, low: Read, high: Read) -> Test:
        return self.all(self.greater_or_equal(read, low), self.greater_or_equal(high, read))

    def not_between(self, read: Read, low: Read, high: Read) -> Test:
        return _negated(self.between(read, low, high))

    def among(self, read: Read, *values: Token) -> Test:
        wanted = frozenset(map(_text, values))
        return lambda row: None if (text := _as_text(read(row))) is None else text in wanted

    def not_among(self, read: Read, *values: Token) -> Test:
        return _negated(self.among(read, *values))

    def contains(self, read: Read, part: Token) -> Test:
        wanted = _text(part)
        return lambda row: None if (text := _as_text(read(row))) is None else wanted in text

    def not_contains(self, read: Read, part: Token) -> Test:
        return _negated(self.contains(read, part))

    def starts_with(self, read: Read, part: Token) -> Test:
        wanted = _text(part)
        return lambda row: (
            None if (text := _as_text(read(row))) is None else text.startswith(wanted)
        )

    def not_starts_with(self, read: Read, part: Token) -> Test:
        return _negated(self.starts_with(read, part))

    def ends_with(self, read: Read, part: Token) -> Test:
        wanted = _text(part)
        return lambda row: None if (text := _as_text(read(row))) is None else text.endswith(wanted)

    def not_ends_with(self, read: Read, part: Token) -> Test:
        return _negated(self.ends_with(read, part))


def _any(tests: Sequence[Test], row: Row) -> Truth:
    is_unknown = False
    for test in tests:
        truth = test(row)
        if truth:
            return True
        is_unknown |= truth is None
    return None if is_unknown else False


def _all(tests: Sequence[Test], row: Row) -> Truth:
    is_unknown = False
    for test in tests:
        truth = test(row)
        if truth is False:
            return False
        is_unknown |= truth is None
    return None if is_unknown else True


def _negated(test: Test) -> Test:
    return lambda row: None if (truth := test(row)) is None else not truth


def _truth(value: Value) -> Truth:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def _equal(left: Value, right: Value) -> Truth:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        truths = _truth(left), _truth(right)
        return None if None in truths else truths[0] == truths[1]
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return _compare(left, right, lambda order: order == 0)


def _compare(left: Value, right: Value, wanted: Callable[[int], bool]) -> Truth:
    """By number; unknown where a side is none."""
    numbers = _as_number(left), _as_number(right)
    if numbers[0] is None or numbers[1] is None:
        return None
    return wanted((numbers[0] > numbers[1]) - (numbers[0] < numbers[1]))


def _as_number(value: Value) -> int | float | None:
    if isinstance(value, str):
        return _number(value)
    return None if isinstance(value, bool) else value


def _as_text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _number(text: str) -> int | float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _text(token: Any) -> str:
    return str(token)[1:-1].replace("''", "'")
