"""Pure: SQL92 expressions over the properties of a message, as RocketMQ's users write them.

Comparisons `= <> > >= < <=`, `[NOT] BETWEEN a AND b`, `[NOT] IN ('a', 'b')`, `IS [NOT] NULL`,
`[NOT] CONTAINS | STARTSWITH | ENDSWITH 'text'`, AND, OR, NOT, parentheses, TRUE and FALSE. Names
are properties; TAGS and KEYS are the tag and the key. Keywords in any case, names as they stand.

Properties are text. Beside a number a property is read as one; beside TRUE or FALSE as "true" or
"false". What cannot be read so, or is not there, gives *unknown*: NOT unknown is unknown, and a
message is wanted only where the whole is true (SQL's three values).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from paceline.errors import BadRequestError
from paceline.filters.expression import SQL92, ByExpression
from paceline.records.decode import BatchView

EXPRESSION_LENGTH_MAX = 8_192
TOKENS_MAX = 1_024
TERMS_MAX = 64
"""Single tests, each of which may be evaluated for each of 65,535 records of a batch."""
DEPTH_MAX = 200
"""Parentheses inside each other and NOTs; the evaluation calls itself for each."""

Truth: TypeAlias = bool | None
"""None = unknown."""
Row: TypeAlias = Mapping[str, str]
Test: TypeAlias = Callable[[Row], Truth]
Value: TypeAlias = str | int | float | bool | None
Read: TypeAlias = Callable[[Row], Value]

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
    | (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<sign><>|>=|<=|[=<>(),])
    """,
    re.VERBOSE,
)
_KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE", "BETWEEN", "IN", "CONTAINS", "STARTSWITH")
    + ("ENDSWITH",)
)
_SHORT_NUMBER = 32
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,300}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


class SqlFilter(ByExpression):
    """A parsed expression."""

    type = SQL92

    def __init__(self, expression: str) -> None:
        """Raises BadRequestError with the place of the fault."""
        self.expression = expression
        self._test, self.terms = _compiled(expression)

    def matches(self, properties: Row, *, tag: str = "", key: str | None = None) -> bool:
        """Whether one message is wanted."""
        return self._test(_row(properties, tag, key)) is True

    def mask(self, view: BatchView, first: int = 0, end: int | None = None) -> list[bool] | None:
        found = list(self._each(view, first, end))
        return None if all(found) else found

    def wants_any(self, view: BatchView, first: int = 0, end: int | None = None) -> bool:
        return any(self._each(view, first, end))

    def _each(self, view: BatchView, first: int, end: int | None) -> Iterator[bool]:
        test = self._test
        columns = zip(
            view.properties(first, end), view.tags(first, end), view.keys(first, end), strict=True
        )
        return (test(_row(properties, tag, key)) is True for properties, tag, key in columns)


def _row(properties: Row, tag: str, key: str | None) -> Row:
    row = dict(properties)
    if tag:
        row["TAGS"] = tag
    if key:
        row["KEYS"] = key
    return row


def _compiled(expression: str) -> tuple[Test, int]:
    """The test of an expression, and how many single tests it is made of."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise BadRequestError(
            f"an SQL92 expression has up to {EXPRESSION_LENGTH_MAX} characters", field="filter"
        )
    _check_depth(expression)
    compiler = _Compiler(expression)
    return compiler.whole(), compiler.terms


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


class _Token(NamedTuple):
    kind: str
    """"number", "string", "name", "sign", "keyword" or "end"."""
    text: str
    at: int


def _tokens(expression: str) -> Iterator[_Token]:
    at = count = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise _misunderstood(expression[at : at + 1], at)
        kind, text = str(found.lastgroup), found[0]
        if kind == "name" and text.upper() in _KEYWORDS:
            kind, text = "keyword", text.upper()
        if kind != "space":
            count += 1
            if count > TOKENS_MAX:
                what = f"an SQL92 expression has up to {TOKENS_MAX} words and signs"
                raise BadRequestError(what, field="filter")
            yield _Token(kind, text, at)
        at = found.end()
    yield _Token("end", "", at)


def _misunderstood(what: str, at: int) -> BadRequestError:
    return BadRequestError(
        f"SQL92 expression: {what[:40]!r} is not understood at character {at + 1}", field="filter"
    )


class _Compiler:
    """From an expression to nested functions of a row, by recursive descent:

    any      = all {"OR" all}
    all      = negated {"AND" negated}
    negated  = "NOT" negated | "(" any ")" | test
    test     = operand [comparison operand | "IS" ["NOT"] "NULL"
               | ["NOT"] ("BETWEEN" operand "AND" operand | "IN" "(" string {"," string} ")"
               | ("CONTAINS" | "STARTSWITH" | "ENDSWITH") string)]
    """

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens(expression)
        self._next = next(self._tokens)
        self.terms = 0

    def whole(self) -> Test:
        """The test; BadRequestError with the place of the fault."""
        test = self._any()
        if self._next.kind != "end":
            raise self._fault()
        return test

    def _fault(self) -> BadRequestError:
        kind, _, at = self._next
        if kind == "end":
            return BadRequestError("the SQL92 expression ends too early", field="filter")
        text = (
            self._next.text if kind != "keyword" else self._expression[at:][: len(self._next.text)]
        )
        return _misunderstood(text, at)

    def _take(self, kind: str) -> str:
        """The next token, which must be of that kind."""
        if self._next.kind != kind:
            raise self._fault()
        text = self._next.text
        self._next = next(self._tokens)
        return text

    def _takes(self, text: str) -> bool:
        """Whether the next token is that keyword or sign; then it is taken."""
        if self._next.text != text or self._next.kind not in ("keyword", "sign"):
            return False
        self._next = next(self._tokens)
        return True

    def _must(self, text: str) -> None:
        if not self._takes(text):
            raise self._fault()

    def _any(self) -> Test:
        tests = [self._all()]
        while self._takes("OR"):
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else lambda row: _any(tests, row)

    def _all(self) -> Test:
        tests = [self._negated()]
        while self._takes("AND"):
            tests.append(self._negated())
        return tests[0] if len(tests) == 1 else lambda row: _all(tests, row)

    def _negated(self) -> Test:
        if self._takes("NOT"):
            return _negated(self._negated())
        if self._takes("("):
            test = self._any()
            self._must(")")
            return test
        return self._test()

    def _test(self) -> Test:
        self.terms += 1
        if self.terms > TERMS_MAX:
            raise BadRequestError(
                f"an SQL92 expression has up to {TERMS_MAX} tests (one IN is one)", field="filter"
            )
        left = self._operand()
        for sign, made in _COMPARISONS.items():
            if self._takes(sign):
                return made(left, self._operand())
        if self._takes("IS"):
            is_negated = self._takes("NOT")
            self._must("NULL")
            test = _is_null(left)
            return _negated(test) if is_negated else test
        is_negated = self._takes("NOT")
        test = self._worded(left, is_negated)
        return _negated(test) if is_negated else test

    def _worded(self, left: Read, is_negated: bool) -> Test:
        if self._takes("BETWEEN"):
            low = self._operand()
            self._must("AND")
            high = self._operand()
            both = (_at_least(left, low), _at_least(high, left))
            return lambda row: _all(both, row)
        if self._takes("IN"):
            self._must("(")
            texts = [_text(self._take("string"))]
            while self._takes(","):
                texts.append(_text(self._take("string")))
            self._must(")")
            wanted = frozenset(texts)
            return _of_text(left, wanted.__contains__)
        for word, made in _PARTS.items():
            if self._takes(word):
                return _of_text(left, made(_text(self._take("string"))))
        if is_negated:
            raise self._fault()
        return lambda row: _truth(left(row))

    def _operand(self) -> Read:
        kind, text, _ = self._next
        match kind:
            case "number":
                value: Value = _number(text)
                if value is None:
                    what = f"SQL92 expression: {text[:40]} is no number"
                    raise BadRequestError(what, field="filter")
            case "string":
                value = _text(text)
            case "keyword" if text in ("TRUE", "FALSE"):
                value = text == "TRUE"
            case "name":
                self._take("name")
                return lambda row: row.get(text)
            case _:
                raise self._fault()
        self._take(kind)
        return lambda row: value


def _equal_to(left: Read, right: Read) -> Test:
    return lambda row: _equal(left(row), right(row))


def _greater(left: Read, right: Read) -> Test:
    return lambda row: _compare(left(row), right(row), lambda order: order > 0)


def _at_least(left: Read, right: Read) -> Test:
    return lambda row: _compare(left(row), right(row), lambda order: order >= 0)


def _is_null(read: Read) -> Test:
    return lambda row: read(row) is None


def _of_text(read: Read, wanted: Callable[[str], bool]) -> Test:
    return lambda row: None if (text := _as_text(read(row))) is None else wanted(text)


_COMPARISONS: Mapping[str, Callable[[Read, Read], Test]] = {
    "=": _equal_to,
    "<>": lambda left, right: _negated(_equal_to(left, right)),
    ">": _greater,
    ">=": _at_least,
    "<": lambda left, right: _greater(right, left),
    "<=": lambda left, right: _at_least(right, left),
}
_PARTS: Mapping[str, Callable[[str], Callable[[str], bool]]] = {
    "CONTAINS": lambda part: lambda text: part in text,
    "STARTSWITH": lambda part: lambda text: text.startswith(part),
    "ENDSWITH": lambda part: lambda text: text.endswith(part),
}


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
    return _short_number(text) if len(text) <= _SHORT_NUMBER else _any_number(text)


@lru_cache(maxsize=1024)
def _short_number(text: str) -> int | float | None:
    """Many tests read the same few properties as numbers."""
    return _any_number(text)


def _any_number(text: str) -> int | float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _text(token: str) -> str:
    return token[1:-1].replace("''", "'")
