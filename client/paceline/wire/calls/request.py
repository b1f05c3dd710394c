"""Pure: what every call has: how a request is read strictly, and how it is written.

A request is a struct. Reading one refuses unknown fields, wrong types (`true` and `1.0` are no
integers) and what is out of range; a field that is null counts as absent where it may be absent.
`parse_json_object` has refused NaN and duplicate keys before.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar, get_args
from urllib.parse import quote, urlencode

import msgspec
import orjson
from msgspec import Meta

from paceline.errors import BadRequestError, OutcomeUnknownError, PacelineError
from paceline.wire.fields import ADDRESS_PATTERN, I64_MAX
from paceline.wire.names import CLIENT_ID_PATTERN
from paceline.wire.rights import Action, Needs

U16_MAX = 2**16 - 1
U32_MAX = 2**32 - 1
QUEUES_MAX = 40_000
"""Queues named in one call; a bound on work per loop turn."""
EXPRESSION_LENGTH_MAX = 8_192
CALLED = "call"
"""The member that names a call."""


def matching(pattern: str) -> Meta:
    """The whole text matches; `$` alone would let a line feed follow."""
    return Meta(min_length=1, max_length=255, pattern=rf"^(?:{pattern})$(?!\n)")


Number: TypeAlias = Annotated[int, Meta(ge=0, le=I64_MAX)]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
ClientId: TypeAlias = Annotated[str, matching(CLIENT_ID_PATTERN.replace(r"\Z", "$"))]
TopicNumber: TypeAlias = Annotated[int, Meta(ge=1, le=U32_MAX)]
QueueNumber: TypeAlias = Annotated[int, Meta(ge=0, le=U16_MAX)]
LockToken: TypeAlias = tuple[Number, Number]
"""[epoch, position]: compares as a pair."""


def snake_case(name: str) -> str:
    """The name of a class in lower case, words joined by "_"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


AnswerT = TypeVar("AnswerT")
RequestT = TypeVar("RequestT", bound="Request[Any]")
StructT = TypeVar("StructT", bound=msgspec.Struct)


class Route(NamedTuple):
    """The resource of a call over HTTP. `{name}` in the path is a field of the request. GET and
    DELETE have the others as query parameters (`query_fields`), PUT and POST in the body."""

    method: str
    path: str
    status: int = 200
    """Of the answer."""

    @property
    def has_body(self) -> bool:
        return self.method in ("PUT", "POST")


class Row(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An object inside a request."""

    @classmethod
    def read(cls, document: object, *, name: str) -> Self:
        """From outside. BadRequestError names the field of what is called `name`."""
        return read_struct(cls, document, name=name)


class Answer(msgspec.Struct):
    """An answer, or an object inside one. A reader passes over fields that it does not know, and
    needs all others: a field that is added later has a default, as older brokers do not send it."""


class BrokerName(Answer):
    """Which broker answered."""

    group: str
    replica_id: int | None


class Envelope(Answer, kw_only=True):
    """What every answer of a call carries. `acting` and `maybe_stale` are there, and true, if an
    acting master answered (R36)."""

    epoch: int
    broker: BrokerName
    confirm: int
    acting: bool = False
    maybe_stale: bool = False


class Reply(NamedTuple, Generic[AnswerT]):
    """What a broker answered a call."""

    answer: AnswerT
    envelope: Envelope


class Request(
    msgspec.Struct,
    Generic[AnswerT],
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field=CALLED,
    tag=snake_case,
):
    """One call. Its name on the wire is the class's in lower case, words joined by "_"."""

    routes: ClassVar[tuple[Route, ...]] = ()
    needs: ClassVar[Needs | None] = None
    """Rights that whoever asks must have. None would be undeclared: a test finds it, and nodes
    carry out no such request."""
    finds: ClassVar[tuple[Action, ...]] = ()
    """One of these is needed on the topic that the request does not name and its handler finds,
    which checks it."""
    also_names: ClassVar[Needs] = ()
    """Fields with names of topics or consumer groups that `needs` says nothing of: a client in a
    namespace gives them its own names."""
    lists_all: ClassVar[tuple[str, ...]] = ()
    """Fields of the answer with a row for each topic or group there is, of whatever namespace."""
    is_told: ClassVar[bool] = False
    """The audit tells each one, not only a sample, though it needs no right to change anything."""

    def needed(self) -> Needs:
        """What this very request needs."""
        assert self.needs is not None, f"{type(self).__name__} declares no rights"
        return self.needs

    def to_json(self) -> dict[str, Any]:
        """As on the wire, `call` included; what is as by default is left out."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def call_name(cls) -> str:
        """As on the wire."""
        return tag_of(cls)

    @classmethod
    def answer_type(cls) -> Any:
        """The type of the answer."""
        base, *_ = cls.__orig_bases__  # type: ignore[attr-defined]
        return get_args(base)[0]


def read_request(type_: type[RequestT], document: Mapping[str, Any]) -> RequestT:
    """The request that a JSON object is. BadRequestError names the field."""
    given = without_nulls(type_, document)
    given.setdefault(CALLED, type_.call_name())
    return read_struct(type_, given, name=type_.call_name())


def read_struct(type_: type[StructT], document: object, *, name: str) -> StructT:
    """The struct that a JSON object is. BadRequestError names the field, and `name` the object."""
    try:
        return msgspec.convert(document, type_)
    except msgspec.ValidationError as error:
        raise refused(name, str(error), type_=type_) from error


def tag_of(type_: type[msgspec.Struct]) -> str:
    """The name of a request or command on the wire."""
    tag = type_.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def without_nulls(type_: type[msgspec.Struct], document: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a document but its fields that are null."""
    fields = type_.__struct_encode_fields__
    return {
        name: value for name, value in document.items() if value is not None or name not in fields
    }


def requests_of(*modules: ModuleType) -> dict[str, type[Request[Any]]]:
    """Name on the wire -> each request with a name that the modules define."""
    return {
        value.call_name(): value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Request)
        and value.__module__ == module.__name__
    }


class HttpForm(NamedTuple):
    """A request as it is sent over HTTP."""

    method: str
    path: str
    """With the query."""
    body: dict[str, Any] | None


def http_form(request: Request[Any]) -> HttpForm:
    """By its first route."""
    route, document = request.routes[0], request.to_json()
    del document[CALLED]
    path = re.sub(r"\{(\w+)\}", lambda name: quote(str(document.pop(name[1])), safe=""), route.path)
    if route.has_body:
        return HttpForm(route.method, path, document if body_fields(type(request), route) else None)
    query = {name: _in_query(value) for name, value in document.items()}
    return HttpForm(route.method, f"{path}?{urlencode(query)}" if query else path, None)


def _in_query(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_answer(type_: Any, document: object) -> Any:
    """The answer, or the envelope, that a JSON object has. ValidationError."""
    return msgspec.convert(document, type_)


def read_reply(request: Request[AnswerT], document: object) -> Reply[AnswerT]:
    """What a broker answered `request`. OutcomeUnknownError: it may have been carried out."""
    try:
        answer = read_answer(request.answer_type(), document)
        return Reply(answer, read_answer(Envelope, document))
    except msgspec.ValidationError as error:
        name = request.call_name()
        raise OutcomeUnknownError(f"the answer to {name} cannot be read: {error}") from error


def refused_rows(type_: type[StructT], error: PacelineError) -> StructT:
    """The answer in the details of an error that refuses every row for a reason of its own. An
    error that has none there is raised."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(error.details, type_)
    raise error


def names_in_path(path: str) -> list[str]:
    """The names that stand in braces, in order."""
    return re.findall(r"\{(\w+)\}", path)


def query_fields(type_: type[Request[Any]], route: Route) -> list[str]:
    """The fields that can be query parameters: not in the path, and a text can stand for them."""
    rest = body_fields(type_, route)
    return [
        field.encode_name
        for field in msgspec.structs.fields(type_)
        if field.encode_name in rest and _is_scalar(msgspec.inspect.type_info(field.type))
    ]


def body_fields(type_: type[Request[Any]], route: Route) -> list[str]:
    """The fields that are not in the path."""
    in_path = names_in_path(route.path)
    return [
        field.encode_name
        for field in msgspec.structs.fields(type_)
        if field.encode_name not in in_path
    ]


def _is_scalar(type_: msgspec.inspect.Type) -> bool:
    if isinstance(type_, msgspec.inspect.UnionType):
        return all(map(_is_scalar, type_.types))
    return isinstance(
        type_,
        msgspec.inspect.IntType
        | msgspec.inspect.StrType
        | msgspec.inspect.BoolType
        | msgspec.inspect.LiteralType
        | msgspec.inspect.EnumType
        | msgspec.inspect.NoneType,
    )


def to_json(value: object) -> Any:
    """JSON values of requests and answers. What is JSON text already stays so."""
    return msgspec.to_builtins(value, builtin_types=(orjson.Fragment,))


_PLACE = re.compile(r"(?P<what>.*?)(?: - at (?:key in )?`\$\.?(?P<path>.*)`)?")
_MATCHED = re.compile(r"(.*) matching regex '\^\(\?:(.*)\)\$\(\?!\\+n\)'")
_NAMED = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`")


def refused(name: str, said: str, *, type_: type[msgspec.Struct]) -> BadRequestError:
    """What msgspec said of an object of that type as our error: call, place, and the field."""
    place = _PLACE.fullmatch(said)
    assert place is not None, said
    path = place["path"] or ""
    where = f"{name}: {path}" if path else name
    named = _NAMED.fullmatch(place["what"])
    if named is not None:
        field = named["name"]
        is_missing = named["what"].startswith("missing")
        what = f"{field} is missing" if is_missing else f"unknown field {field}"
        return BadRequestError(f"{where}: {what}", field=field[:64])
    field = re.sub(r"\[.*?\]", "", path).rpartition(".")[2] or name
    what = place["what"].replace("`", "")
    if matched := _MATCHED.fullmatch(what):
        pattern = matched[2].replace("\\\\", "\\")
        is_address = pattern == ADDRESS_PATTERN
        what = 'must be an address "host:port"' if is_address else f"must match {pattern}"
    if what.startswith("Invalid enum value"):
        choices = ", ".join(map(str, _choices(msgspec.inspect.type_info(type_), field)))
        what = f"must be one of {choices}, got{what.removeprefix('Invalid enum value')}"
    return BadRequestError(f"{where}: {what[:1].lower()}{what[1:]}", field=field)


def _choices(struct: Any, field: str) -> list[object]:
    """What a field of few values may be, in that struct or in one inside it."""
    for each in struct.fields:
        for one in getattr(each.type, "types", (each.type,)):
            if isinstance(one, msgspec.inspect.StructType):
                if found := _choices(one, field):
                    return found
            elif each.encode_name == field and isinstance(one, msgspec.inspect.LiteralType):
                return list(one.values)
    return []
