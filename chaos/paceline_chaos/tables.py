"""Pure: tables of a file as dataclasses, checked by their annotations."""

from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from paceline.errors import ConfigError

T = TypeVar("T")


def build(cls: type[T], table: object, where: str) -> T:
    """One of dataclass `cls` from a table as TOML or JSON gives it, with others inside.

    ConfigError with one sentence that begins with `where`: unknown and missing keys, other types.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table, not {table!r}")
    hints = get_type_hints(cls)
    for key in table:
        if key not in hints:
            raise ConfigError(f"{where}: {key} is unknown; known: {', '.join(hints)}")
    for item in fields(cls):  # type: ignore[arg-type]
        is_required = item.default is MISSING and item.default_factory is MISSING
        if is_required and item.name not in table:
            raise ConfigError(f"{where}: {item.name} is missing")
    return cls(**{key: _value(hints[key], raw, f"{where}: {key}") for key, raw in table.items()})


def _value(hint: Any, raw: object, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _value(arguments[0], raw, where)
    if origin is tuple:
        if not isinstance(raw, list):
            raise ConfigError(f"{where} must be an array, not {raw!r}")
        return tuple(_value(arguments[0], item, f"{where}[{at}]") for at, item in enumerate(raw))
    if origin is not None:  # a Mapping: settings of other programs are checked by them
        if not isinstance(raw, dict):
            raise ConfigError(f"{where} must be a table, not {raw!r}")
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in raw.items()}
    if hint is Any:
        return raw
    if hint is float and type(raw) is int:
        return float(raw)
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, raw, where)
    if type(raw) is not hint:
        raise ConfigError(f"{where} must be {hint.__name__}, not {raw!r}")
    return raw
