"""Pure: values of settings, from text or TOML to the type of a field and back to plain JSON values.

`config` says which types a field may have and how each is written.
"""

import json
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from paceline.errors import ConfigError
from paceline.platform.address import Address, parse_address

_NUMBER_MAX = 2**53
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Text(str):
    """A value that arrived as text (environment, flag) and may mean a number, a list or None."""

    __slots__ = ()


def convert(hint: Any, raw: object, where: str) -> Any:
    """`raw` as the type `hint`; ConfigError names `where` it came from and what was expected.

    TypeError if the configuration class has a field of a type that paceline does not support.
    """
    hint = getattr(hint, "__supertype__", hint)
    kind = get_origin(hint)
    if kind in (Union, types.UnionType):
        return _optional(hint, raw, where)
    if kind is Literal:
        return _one_of(get_args(hint), raw, where)
    if kind is tuple:
        return _tuple(hint, raw, where)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return _mapping(hint, raw, where)
    if hint is Address:
        return raw if isinstance(raw, Address) else _address(raw, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        value = raw.value if isinstance(raw, Enum) else raw
        return hint(_one_of(tuple(member.value for member in hint), value, where))
    return _scalar(hint, raw, where)


def _scalar(hint: Any, raw: object, where: str) -> Any:
    text = str(raw).strip() if isinstance(raw, Text) else None
    if hint is str and isinstance(raw, str):
        return str(raw)
    if hint is bool:
        if isinstance(raw, bool):
            return raw
        if text is not None and text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
    if hint in (int, float):
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            if hint is float or isinstance(raw, int):
                return hint(_meant(raw, where))
        elif text is not None:
            number = _number(hint, text)
            if number is not None:
                return _meant(number, where)
    names = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    if hint not in names:
        raise TypeError(f"{where}: a setting cannot be of type {hint}")
    raise ConfigError(f"{where} must be {names[hint]}, not {raw!r}")


def _number(kind: type[int] | type[float], text: str) -> float | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _meant(number: float, where: str) -> float:
    """ConfigError for NaN, which no minimum refuses, and for more than a clock or a disk has."""
    if not -_NUMBER_MAX <= number <= _NUMBER_MAX:
        raise ConfigError(f"{where} must be a number up to {_NUMBER_MAX}")
    return number


def _optional(hint: Any, raw: object, where: str) -> Any:
    inner = [argument for argument in get_args(hint) if argument is not types.NoneType]
    if len(inner) != 1:
        raise TypeError(f"{where}: a setting cannot be of type {hint}")
    if raw is None or (isinstance(raw, Text) and not raw.strip()):
        return None
    return convert(inner[0], raw, where)


def _one_of(choices: tuple[Any, ...], raw: object, where: str) -> Any:
    for choice in choices:
        if raw == choice or (isinstance(raw, Text) and raw.strip() == str(choice)):
            return choice
    shown = ", ".join(str(choice) for choice in choices)
    raise ConfigError(f"{where} must be one of {shown}, not {raw!r}")


def _tuple(hint: Any, raw: object, where: str) -> tuple[Any, ...]:
    item_hint, *rest = get_args(hint)
    if rest != [Ellipsis]:
        raise TypeError(f"{where}: a setting cannot be of type {hint}")
    if isinstance(raw, Text):
        raw = [Text(part.strip()) for part in raw.split(",") if part.strip()]
    if not isinstance(raw, list | tuple):
        raise ConfigError(f"{where} must be a list, not {raw!r}")
    return tuple(convert(item_hint, item, where) for item in raw)


def _mapping(hint: Any, raw: object, where: str) -> Mapping[str, Any]:
    _, value_hint = get_args(hint)
    if isinstance(raw, Text):
        pairs: dict[str, object] = {}
        for part in filter(None, (part.strip() for part in raw.split(","))):
            key, separator, value = part.partition("=")
            if not separator or not key.strip() or key.strip() in pairs:
                raise ConfigError(f"{where}: {part!r} must be name=value, each name once")
            pairs[key.strip()] = Text(value.strip())
        raw = pairs
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} must be a table of name = value, not {raw!r}")
    converted = {
        str(key): convert(value_hint, value, f"{where}.{key}") for key, value in raw.items()
    }
    return types.MappingProxyType(converted)


def _address(raw: object, where: str) -> Address:
    if not isinstance(raw, str):
        raise ConfigError(f'{where} must be a text "host:port", not {raw!r}')
    try:
        return parse_address(raw)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error


def plain(value: Any) -> Any:
    """The value as JSON values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def toml_value(value: Any) -> str:
    """A JSON value in TOML notation."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value)  # texts, numbers and booleans are written the same in both
