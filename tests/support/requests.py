"""The least document of each request of the tables of calls: to send every one of them once."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import orjson

from paceline.wire.calls.request import CALLED, Request, names_in_path

_NAMED: dict[str, Any] = {
    "topic": "orders",
    "topic_id": 1,
    "group": "billing",
    "source": "billing",
    "queue": 0,
    "client_id": "c-1",
    "expression": "*",
    "type": "TAG",
    "user": "ana",
    "subject": "User:ana",
    "access_key": "key-of-somebody",
    "secret_key": "sk_0123456789abcdef",
    "password": "correct horse battery",
    "resource": "Topic:orders",
    "action": "Pub",
    "store": "store-1",
    "raft": "127.0.0.1:1",
    "client": "127.0.0.1:2",
    "controller": "c1",
    "controller_id": "c9",
    "language": "PYTHON",
    "id": "0",
    "from": 0,
    "to": 1,
}
"""Fields whose values mean something; the others are the least that their type allows."""


def least(call: type[Request[Any]]) -> dict[str, Any]:
    """What must be there, with `call`."""
    document = _struct(msgspec.inspect.type_info(call))
    document.pop(CALLED, None)
    return document


def least_path(path: str) -> str:
    """An address with names in place of the braces."""
    for name in names_in_path(path):
        value = {"queue": "0", "replica": "1", "owner": "billing"}.get(name, _NAMED.get(name, "x"))
        path = path.replace(f"{{{name}}}", str(value))
    return path


def _struct(type_: Any) -> dict[str, Any]:
    found = {
        field.encode_name: _NAMED.get(field.encode_name, _value(field.type))
        if not isinstance(field.type, msgspec.inspect.ListType)
        else _value(field.type)
        for field in type_.fields
        if field.required
    }
    if any(field.encode_name == "topic_id" for field in type_.fields) and "topic_id" not in found:
        found["topic"] = "orders"  # a row names its queue by one of both
    return found


def _value(type_: Any) -> Any:
    match type_:
        case msgspec.inspect.StructType():
            return _struct(type_)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            count = type_.min_length or 0
            return [_value(type_.item_type)] * max(1, count)
        case msgspec.inspect.TupleType():
            return [_value(each) for each in type_.item_types]
        case msgspec.inspect.UnionType():
            return _value(type_.types[0])
        case msgspec.inspect.LiteralType():
            return type_.values[0]
        case msgspec.inspect.IntType():
            return type_.ge or 0
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.EnumType():
            return next(iter(type_.cls)).value
        case msgspec.inspect.StrType():
            return "orders"
        case _:
            return {}


async def ask_least_by_route(
    http: aiohttp.ClientSession,
    base: str,
    call: type[Request[Any]],
    *,
    headers: dict[str, str],
    within_s: float,
) -> tuple[int, str]:
    """As `ask_least`, of a request with one route."""
    [route] = call.routes
    return await ask_least(
        http, route.method, base, route.path, call, headers=headers, within_s=within_s
    )


async def ask_least(
    http: aiohttp.ClientSession,
    method: str,
    base: str,
    path: str,
    call: type[Request[Any]] | None,
    *,
    headers: dict[str, str],
    within_s: float,
) -> tuple[int, str]:
    """Send the least request of a route to the node at `base`: status and code; (0, "") of one that
    waits for something."""
    body: dict[str, Any] | None = {} if method in ("PUT", "POST") else None
    address = least_path(path)
    if call is not None:
        rest = {name: each for name, each in least(call).items() if f"{{{name}}}" not in path}
        if body is None:
            address = f"{address}?{urlencode(rest)}" if rest else address
        else:
            body = rest
    try:
        async with (
            asyncio.timeout(within_s),
            http.request(method, f"{base}{address}", json=body, headers=headers) as answer,
        ):
            content = await answer.read()
            is_problem = answer.content_type == "application/problem+json"
            return answer.status, orjson.loads(content)["code"] if is_problem else ""
    except TimeoutError:
        return 0, ""
