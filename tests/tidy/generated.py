"""Files generated from code: `make docs` writes them, `test_generated` compares."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from paceline.cli.needs import ASKS, needs_line
from paceline.errors import BY_CODE, PacelineError, Retry
from paceline.platform.config import example_toml
from paceline.wire.calls.request import CALLED, Request, Route
from paceline.wire.calls.table import CALLS
from paceline.wire.controller_calls.table import CALLS as CONTROLLER_CALLS
from paceline.wire.rights import ANYBODY, KNOWN_USER, Need, Needs, ResourceType

ROOT = Path(__file__).parents[2]

_PROCESSES = ("broker", "container", "controller", "gateway")

_RETRY = {
    Retry.NEVER: "no",
    Retry.SAME_NODE: "same node, later",
    Retry.NEW_MASTER: "master or leader, after asking for routes",
}

_ERRORS_HEAD = """\
# Error codes

Generated from `client/paceline/errors.py` by `make docs`; a test compares. A code is a contract: it
is never renamed and never gets another meaning.

Over HTTP an error is a problem document (RFC 9457, `application/problem+json`), on a stream the
body of an error frame is the same document:

    {"type": "https://paceline.dev/errors/NOT_MASTER", "title": "Not master", "status": 421,
     "code": "NOT_MASTER", "detail": "...", "retry": "new_master", "definite": true, "master": null}

- `code` is for programs, `detail` for people. Members beyond the standard ones are details of the
  code, named below.
- `retry` says what may help: `never`, `same_node` (later, with back-off) or `new_master` (ask for
  routes first).
- `definite` says that a write which got this answer has certainly stored nothing. Only then may
  the same batch go to another queue, or be reported as not stored. After an indefinite answer the
  one safe thing is the same batch, byte for byte, on the same queue: the broker recognises it by
  producer id, epoch and sequence (R31, R32).
- A code that a client does not know counts as indefinite.

| code | status | retry | definite | meaning |
|---|---|---|---|---|
"""


def errors_document() -> str:
    """docs/protocol/errors.md."""
    rows = [_row(BY_CODE[code]) for code in sorted(BY_CODE)]
    return _ERRORS_HEAD + "\n".join(rows) + "\n"


def _row(error: type[PacelineError]) -> str:
    meaning = " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split())
    if error is PacelineError:
        meaning = "A bug of the node that answers; its log has more."
    definite = "yes" if error.is_definite else "**no**"
    return (
        f"| {error.code} | {int(error.status)} | {_RETRY[error.retry]} | {definite} | {meaning} |"
    )


_CALLS_HEAD = """\
# Calls

Generated from `client/paceline/wire/calls/` by `make docs`; a test compares. A call is one JSON
object in and one out: as CALL on a stream ([stream.md](stream.md)), by `POST /v1/call`, and where a
line says so as a resource of its own. `GET /v1/openapi.json` has the same for programs.

Requests are read strictly: unknown fields and wrong types are BAD_REQUEST, whose `field` names the
place; a field with a default may be absent or null. Every answer carries `epoch`, `broker`
(`{"group", "replica_id"}`) and `confirm`, that of an acting master also `acting: true` and
`maybe_stale: true` (R36). Queues are named by `topic` or `topic_id`, and `queue`.
"""


_CONTROLLER_CALLS_HEAD = """\
# Requests to controllers

Generated from `client/paceline/wire/controller_calls/` by `make docs`; a test compares. Any
controller of the cluster may be asked. [controller.md](controller.md) says what an answer is worth,
and how a write is asked for again. `GET /v1/openapi.json` has the same for programs.

A name in braces is part of the path. The other fields of GET and DELETE are query parameters, those
of PUT and POST members of a JSON object. Requests are read strictly: unknown fields and wrong types
are BAD_REQUEST, whose `field` names the place; a field with a default may be absent or null.
"""


def calls_document() -> str:
    """docs/protocol/calls.md."""
    return _CALLS_HEAD + "".join(map(_call, CALLS.values()))


def controller_calls_document() -> str:
    """docs/protocol/controller-calls.md."""
    return _CONTROLLER_CALLS_HEAD + "".join(map(_call, CONTROLLER_CALLS.values()))


def _call(call: type[Request[Any]]) -> str:
    text = f"\n## `{call.call_name()}`\n\n{inspect.cleandoc(call.__doc__ or '')}\n"
    for route in call.routes:
        text += f"\n`{route.method} {route.path}`{_status(route)}\n"
    found = f"; {' or '.join(call.finds)} on the topic of the message" if call.finds else ""
    text += f"\nRights: {_needs(call.needs or ())}{found}.\n"
    rows = list(_fields(call))
    text += "\n| field | type | default | |\n|---|---|---|---|\n" if rows else ""
    for name, type_, default, said in rows:
        text += f"| `{name}` | {type_} | {default} | {said} |\n"
    answer = call.answer_type()
    if not (isinstance(answer, type) and issubclass(answer, msgspec.Struct)):
        return text
    told = inspect.cleandoc(answer.__doc__ or "")
    answers = [f"| `{name}` | {type_} | {said} |\n" for name, type_, _, said in _fields(answer)]
    if not answers:
        return text
    return f"{text}\nAnswer: {told}\n\n| field | type | |\n|---|---|---|\n{''.join(answers)}"


def _needs(needs: Needs) -> str:
    """As people read them."""
    if needs == ANYBODY:
        return "none"
    if needs == KNOWN_USER:
        return "any user, and more by what the request names"
    return "; ".join(_need(need) for need in needs)


def _need(need: Need) -> str:
    actions = " or ".join(need.actions)
    if need.type is ResourceType.CLUSTER:
        return f"{actions} on the cluster"
    where = "the consumer group" if need.type is ResourceType.GROUP else "each topic"
    return f"{actions} on {where} in `{need.field}`"


def _status(route: Route) -> str:
    return "" if route.status == 200 else f": {route.status} {HTTPStatus(route.status).phrase}"


def _fields(struct: Any) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, what its docstring says) of the fields of a struct."""
    said = _said(struct)
    for field in msgspec.structs.fields(struct):
        default = "required" if field.required else f"`{_shown(field.default)}`"
        name = field.encode_name
        yield name, _type(field.type), default, said.get(field.name, "")


def _shown(default: Any) -> str:
    if default is msgspec.NODEFAULT:
        return "[]"
    if default is msgspec.UNSET:
        return "absent"
    return msgspec.json.encode(default).decode()


def _said(struct: Any) -> dict[str, str]:
    """Field -> the string below it, of the class and those it inherits from."""
    found: dict[str, str] = {}
    for of in reversed(struct.__mro__):
        if of.__module__.startswith("paceline."):
            tree = ast.parse(inspect.getsource(importlib.import_module(of.__module__)))
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name == of.__name__:
                    found |= dict(_docs(node))
    return found


def _docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, following in zip(node.body, node.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            match following:
                case ast.Expr(ast.Constant(str(text))):
                    yield one.target.id, " ".join(text.split())


def _type(type_: Any) -> str:
    """A type for people."""
    schema, components = msgspec.json.schema_components([type_], ref_template="{name}")
    return _of_schema(schema[0], components)


def _of_schema(schema: Any, components: Any) -> str:
    if "enum" in (named := components.get(schema.get("$ref"), {})):
        return _of_schema(named, components)
    if "$ref" in schema:
        fields = components[schema["$ref"]]["properties"]
        needed = components[schema["$ref"]].get("required", [])
        marks = (f"`{name}`{'' if name in needed else '?'}" for name in fields if name != CALLED)
        return "{" + ", ".join(marks) + "}"
    if "anyOf" in schema:
        return " or ".join(_of_schema(one, components) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{msgspec.json.encode(one).decode()}`" for one in schema["enum"])
    match schema.get("type"):
        case "array" if schema.get("items"):
            return "list of " + _of_schema(schema["items"], components)
        case "array":
            parts = (_of_schema(one, components) for one in schema["prefixItems"])
            return "[" + ", ".join(parts) + "]"
        case "object" if schema.get("additionalProperties"):
            return "object of " + _of_schema(schema["additionalProperties"], components)
        case "integer":
            low, high = schema.get("minimum"), schema.get("maximum")
            is_bounded = high is not None and high < 2**62
            return f"{low} to {high}" if is_bounded else "integer" if low is None else f"from {low}"
        case str(name):
            return {"boolean": "true or false", "string": "text"}.get(name, name)
    return "anything"


_RIGHTS = "## Rights that commands need\n"


def commands_document(path: Path) -> str:
    """docs/CLI.md with its section of rights as `paceline.cli.needs` has them."""
    before, _, rest = path.read_text().partition(_RIGHTS)
    after = rest.partition("\n## ")[2]
    by_needs: dict[str, list[str]] = {}
    for command in ASKS:
        if line := needs_line(command):
            by_needs.setdefault(line.removeprefix("Needs: ").rstrip("."), []).append(command)
    rows = (f"| {needs} | {', '.join(named)} |\n" for needs, named in sorted(by_needs.items()))
    return f"{before}{_RIGHTS}{_RIGHTS_HEAD}{''.join(rows)}\n## {after}"


_RIGHTS_HEAD = """\
While users and rights are on. The help of each command (`--help`) ends with the same. Whoever lacks
one gets exit code 1 and a sentence that says which, and how a super user can allow it (with
`--json` status 403, code NOT_AUTHORIZED, `resource` and `actions`). A topic or group that one may
not see is refused alike whether it exists or not, and lists do not show it. Commands that are not
in the table ask nothing of a cluster that is there.

| needs | commands |
|---|---|
"""


def documents() -> dict[Path, str]:
    """Every generated file with the content it must have."""
    return {
        ROOT / "docs/CLI.md": commands_document(ROOT / "docs/CLI.md"),
        ROOT / "docs/protocol/errors.md": errors_document(),
        ROOT / "docs/protocol/calls.md": calls_document(),
        ROOT / "docs/protocol/controller-calls.md": controller_calls_document(),
        **{ROOT / f"deploy/{process}.example.toml": _example(process) for process in _PROCESSES},
    }


def _example(process: str) -> str:
    package = {"container": "paceline_broker.container"}.get(process, f"paceline_{process}")
    module = importlib.import_module(f"{package}.config")
    program = {"container": "broker-container"}.get(process, process)
    title = f"Settings of one {process}: paceline-{program} --config FILE"
    return example_toml(getattr(module, f"{process.capitalize()}Config"), title=title)


def main() -> None:
    """Write what differs."""
    for path, content in documents().items():
        if not path.exists() or path.read_text() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


if __name__ == "__main__":
    main()
