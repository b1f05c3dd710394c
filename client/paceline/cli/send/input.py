"""Pure: what `paceline send` reads, block by block, as message bodies and keys.

Each reader takes blocks of bytes as they come and gives the rows that they complete, so a file of
any size passes through in bounded memory, and a slow pipe is sent line by line. A row that is
wrong is a BadRequestError that names its line.
"""

import csv
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import orjson

from paceline.errors import BadRequestError, TooLargeError
from paceline.records.header import MESSAGE_BYTES_MAX

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One message to be: its body, and its key where a column holds it."""

    body: bytes
    key: str | None


class RowReader(Protocol):
    """Turns blocks of a file or pipe into rows."""

    def feed(self, block: bytes) -> Iterable[Row]:
        """The rows that are complete with this block."""

    def finish(self) -> Iterable[Row]:
        """The rest, at the end of the input."""


class Lines:
    """Splits blocks into lines without their ends; `number` counts those given out."""

    def __init__(self) -> None:
        self.number = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Lines completed by `block`. TooLargeError for one that no message could hold."""
        *whole, rest = block.split(b"\n")
        if whole:
            whole[0] = b"".join((*self._rest, whole[0]))
            self._rest.clear()
            self._rest_bytes = 0
        if rest:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
        yield from self._numbered(whole)
        if self._rest_bytes > MESSAGE_BYTES_MAX + 1:  # one more: the \r of a line end
            raise _too_large(self.number + 1)

    def finish(self) -> Iterator[bytes]:
        """The last line, if no newline ended it."""
        rest, self._rest = self._rest, []
        self._rest_bytes = 0
        if rest:
            yield from self._numbered([b"".join(rest)])

    def _numbered(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.number += 1
            text = line.removesuffix(b"\r")
            if len(text) > MESSAGE_BYTES_MAX:
                raise _too_large(self.number)
            yield text


class TextReader:
    """One message a line: its bytes as they are."""

    def __init__(self) -> None:
        self._lines = Lines()

    def feed(self, block: bytes) -> Iterator[Row]:
        return (Row(line, None) for line in self._lines.feed(block))

    def finish(self) -> Iterator[Row]:
        return (Row(line, None) for line in self._lines.finish())


class JsonLinesReader:
    """One message a line, which must be JSON; blank lines are skipped."""

    def __init__(self, *, key_member: str | None) -> None:
        """`key_member`: the member of each object that is the message's key."""
        self._lines = Lines()
        self._key_member = key_member

    def feed(self, block: bytes) -> Iterator[Row]:
        return self._rows(self._lines.feed(block))

    def finish(self) -> Iterator[Row]:
        return self._rows(self._lines.finish())

    def _rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        for line in lines:
            if self._lines.number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            body = line.strip()
            if body:
                yield Row(body, self._key_of(body))

    def _key_of(self, body: bytes) -> str | None:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise _wrong(self._lines.number, f"is not JSON: {error}") from error
        if self._key_member is None:
            return None
        if not isinstance(document, dict):
            raise _wrong(self._lines.number, "is not an object, so it has no key")
        value = document.get(self._key_member)
        if value is None:
            return None
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        raise _wrong(self._lines.number, f"has no text or number as {self._key_member!r}")


class CsvReader:
    """One message a row, as a JSON object of text with the header's names (RFC 4180, UTF-8)."""

    def __init__(self, *, key_column: str | None) -> None:
        """`key_column`: the column that is the message's key; its cell may be empty: no key."""
        self._lines = Lines()
        self._key_column = key_column
        self._names: list[str] | None = None
        self._open: list[str] = []  # lines of a row whose quoted field goes on
        self._open_bytes = 0
        self._open_from = 0

    def feed(self, block: bytes) -> Iterator[Row]:
        return self._rows(self._lines.feed(block))

    def finish(self) -> Iterator[Row]:
        yield from self._rows(self._lines.finish())
        if self._open:
            raise _wrong(self._open_from, "begins a quoted field that has no end")
        if self._names is None:
            raise BadRequestError("the CSV input is empty: its first line must name the columns")

    def _rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        for cells in self._cells(lines):
            if self._names is None:
                self._names = self._header(cells)
            elif cells:
                yield self._row(self._names, cells)

    def _cells(self, lines: Iterable[bytes]) -> Iterator[list[str]]:
        """The fields of each row. A row ends at the first line end outside quotes."""
        for line in lines:
            text = self._decoded(line)
            # Quotes inside a quoted field are doubled, so an odd count means an open field.
            is_odd = text.count('"') % 2 == 1
            if is_odd or self._open:
                self._open_from = self._open_from if self._open else self._lines.number
                self._open.append(text + "\n")
                self._open_bytes += len(line) + 1
                if self._open_bytes > MESSAGE_BYTES_MAX:
                    raise _too_large(self._open_from)
                if is_odd != (len(self._open) > 1):
                    continue
                text, self._open, self._open_bytes = "".join(self._open), [], 0
            try:
                yield next(csv.reader([text], strict=True), [])
            except csv.Error as error:
                raise _wrong(self._lines.number, f"is not CSV: {error}") from error

    def _decoded(self, line: bytes) -> str:
        if self._lines.number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise _wrong(self._lines.number, "is not UTF-8") from error

    def _header(self, names: list[str]) -> list[str]:
        if not any(names):
            raise BadRequestError("the CSV input's first line must name the columns")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadRequestError(f"column {twice!r} is there twice")
        if self._key_column is not None and self._key_column not in names:
            raise BadRequestError(
                f"there is no column {self._key_column!r}; the columns are {', '.join(names)}"
            )
        return names

    def _row(self, names: list[str], cells: list[str]) -> Row:
        if len(cells) != len(names):
            raise _wrong(self._lines.number, f"has {len(cells)} fields, the header {len(names)}")
        document = dict(zip(names, cells, strict=True))
        key = None if self._key_column is None else document[self._key_column] or None
        return Row(orjson.dumps(document), key)


def _wrong(number: int, problem: str) -> BadRequestError:
    return BadRequestError(f"line {number} {problem}", line=number)


def _too_large(number: int) -> TooLargeError:
    return TooLargeError(
        f"line {number} is over {MESSAGE_BYTES_MAX} bytes, the limit of a message",
        limit=MESSAGE_BYTES_MAX,
        line=number,
    )
