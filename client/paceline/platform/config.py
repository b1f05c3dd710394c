"""Configuration: one frozen dataclass per process, loaded once by `app.py`.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class BrokerConfig:
        data_dir: str = setting("Folder of the log; one broker per folder.")
        heartbeat_ms: int = setting("Time between heartbeats.", default=300, minimum=10)

        def validate(self) -> None:
            require(self.heartbeat_ms < 1500, f"heartbeat_ms ({self.heartbeat_ms}) must be ...")

    config = load(BrokerConfig, process="broker", toml_path=path, environment=os.environ, flags={})

Later sources win: defaults < TOML file < environment `PACELINE_<PROCESS>_<KEY>` < flags. A key that
no field has is refused, with the nearest field's name; a class may say in `REMOVED` which setting
counts in place of one that is no more. `environment` is given by `app.py`: nothing else in paceline
reads `os.environ`.

Field types: str, int, float, bool, an Enum (by value), a Literal, `Address`, `T | None`,
`tuple[T, ...]`, `Mapping[str, T]`; a NewType counts as what it is made of. As text (environment,
flags) a tuple is "a,b" and a mapping "k=v,k=v"; an empty text is an empty tuple or mapping, and
None for an optional field. In TOML they are arrays and tables, and numbers must be numbers.
"""

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click

from paceline.errors import ConfigError
from paceline.platform.address import parse_address
from paceline.platform.config_values import Text, convert, plain, toml_value

MASK = "********"

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def setting(
    doc: str,
    *,
    default: Any = dataclasses.MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    is_secret: bool = False,
) -> Any:
    """A field of a configuration class (Any, like `dataclasses.field`, so the annotation rules).

    `doc` is for operators: the reason and the danger. Without `default` the setting is required.
    `minimum` and `maximum` are inclusive. The value of a secret setting is never shown.
    """
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "is_secret": is_secret}
    if isinstance(default, dict | list | set):
        raise TypeError("a default must be immutable: use a tuple or types.MappingProxyType")
    if isinstance(default, types.MappingProxyType):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def require(is_met: bool, sentence: str) -> None:
    """For `validate()`: ConfigError with the sentence unless the relation holds."""
    if not is_met:
        raise ConfigError(sentence)


def require_addresses(name: str, addresses: Iterable[str]) -> None:
    """For `validate()`: each is "host:port"; ConfigError names the setting."""
    for address in addresses:
        try:
            parse_address(address)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error.message}") from error


def load(
    config_class: type[T],
    *,
    process: str,
    toml_path: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> T:
    """The effective configuration, checked field by field and then by its `validate()`.

    `flags` maps field names to values; None = flag not given. `PACELINE_<PROCESS>_CONFIG` names
    the TOML file if `toml_path` is None. Raises ConfigError with one sentence for the operator.
    """
    environment = environment or {}
    if toml_path is None:
        toml_path = environment.get(f"{_prefix(process)}CONFIG")
    given = _from_toml(config_class, toml_path) if toml_path else {}
    given |= _from_environment(config_class, process, environment)
    given |= _from_flags(config_class, flags or {})
    hints = get_type_hints(config_class)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        if field.name in given:
            origin, raw = given[field.name]
            values[field.name] = _checked(field, convert(hints[field.name], raw, origin), origin)
        elif _is_required(field):
            variable = f"{_prefix(process)}{field.name.upper()}"
            raise ConfigError(
                f"{field.name} is not set: give --{_dashed(field.name)}, {variable}, "
                f"or {field.name} in the TOML file",
                field=field.name,
            )
    config = config_class(**values)
    validate = getattr(config, "validate", None)
    if validate is not None:
        validate()
    return config


def options(config_class: type[Any]) -> Callable[[CommandT], CommandT]:
    """Click decorator: one `--dashed-name` option per field, passed on as None when not given.

    The command collects them as `**flags` and hands them to `load`.
    """

    def decorate(command: CommandT) -> CommandT:
        hints = get_type_hints(config_class)
        for removed in _removed(config_class):  # so that `load` says what to use in its place
            option = click.option(f"--{_dashed(removed)}", removed, default=None, hidden=True)
            command = option(command)
        for field in reversed(dataclasses.fields(config_class)):
            name = f"--{_dashed(field.name)}"
            is_switch = hints[field.name] is bool
            declaration = f"{name}/--no-{_dashed(field.name)}" if is_switch else name
            command = click.option(
                declaration,
                field.name,
                default=None,
                type=bool if is_switch else str,
                metavar=None if is_switch else "VALUE",
                help=_help(field),
            )(command)
        return command

    return decorate


def effective(config: Any) -> dict[str, Any]:
    """All settings as JSON values, secrets masked: for the log line at start and `doctor`."""
    shown: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        is_masked = field.metadata.get("is_secret", False) and bool(value)
        shown[field.name] = MASK if is_masked else plain(value)
    return shown


def example_toml(config_class: type[Any], *, title: str) -> str:
    """An example file: each setting with its doc and default, commented out (deploy/*.toml)."""
    lines = [f"# {title}", "# Generated from the dataclass; a test compares."]
    for field in dataclasses.fields(config_class):
        lines.append("")
        lines.extend(f"# {line}" for line in _wrapped(_help(field)))
        if _is_required(field):
            lines.append(f"# {field.name} = (required)")
        elif (value := plain(_default(field))) is None:
            lines.append(f"# {field.name} = (not set)")
        else:
            lines.append(f"# {field.name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


# -- the sources: each gives {field name: (where it came from, raw value)} -------------------------

_Given = dict[str, tuple[str, object]]


def _from_toml(config_class: type[Any], path: str) -> _Given:
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # also bad UTF-8, and digits without end
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    known = _names(config_class)
    for key in document:
        if key not in known:
            raise _unknown(f"{path}: {key}", key, config_class)
    return {key: (f"{path}: {key}", value) for key, value in document.items()}


def _from_environment(
    config_class: type[Any], process: str, environment: Mapping[str, str]
) -> _Given:
    prefix, known = _prefix(process), _names(config_class)
    given: _Given = {}
    for variable, text in environment.items():
        if not variable.startswith(prefix) or variable == f"{prefix}CONFIG":
            continue
        key = variable.removeprefix(prefix).lower()
        if key not in known:
            raise _unknown(
                f"environment: {variable}",
                key,
                config_class,
                show=lambda name: prefix + name.upper(),
            )
        given[key] = (f"environment: {variable}", Text(text))
    return given


def _from_flags(config_class: type[Any], flags: Mapping[str, object]) -> _Given:
    known = _names(config_class)
    given: _Given = {}
    for key, value in flags.items():
        if value is None:
            continue
        if key not in known:
            raise _unknown(
                f"flag --{_dashed(key)}", key, config_class, show=lambda k: f"--{_dashed(k)}"
            )
        raw = Text(value) if isinstance(value, str) else value
        given[key] = (f"flag --{_dashed(key)}", raw)
    return given


def _unknown(
    where: str, key: str, config_class: type[Any], *, show: Callable[[str], str] = str
) -> ConfigError:
    removed = _removed(config_class)
    if key in removed:
        return ConfigError(
            f"{where} is no setting any more: use {show(removed[key])} in its place", field=key
        )
    known = _names(config_class)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    hint = f"did you mean {show(near[0])}?" if near else f"known: {', '.join(map(show, known))}"
    return ConfigError(f"{where} is no known setting; {hint}", field=key)


def _checked(field: dataclasses.Field[Any], value: Any, where: str) -> Any:
    minimum, maximum = field.metadata.get("minimum"), field.metadata.get("maximum")
    if value is not None and minimum is not None and value < minimum:
        raise ConfigError(f"{where} is {value}; the least is {minimum}", field=field.name)
    if value is not None and maximum is not None and value > maximum:
        raise ConfigError(f"{where} is {value}; the most is {maximum}", field=field.name)
    if value == "" and _is_required(field):
        raise ConfigError(f"{where} is empty: {field.name} must be set", field=field.name)
    return value


# -- small things ---------------------------------------------------------------------------------


def _prefix(process: str) -> str:
    return f"PACELINE_{process.upper()}_"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _names(config_class: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(config_class)]


def _removed(config_class: type[Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = getattr(config_class, "REMOVED", {})
    return found


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    assert field.default_factory is not dataclasses.MISSING, field.name
    return field.default_factory()


def _help(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("doc", ""))


def _wrapped(text: str, width: int = 98) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
