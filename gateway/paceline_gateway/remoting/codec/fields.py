"""Pure: the fields of requests, read strictly. BadRequestError names the field."""

import re

from paceline.errors import BadRequestError
from paceline_gateway.remoting.codec.frames import Command

_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)


def text(request: Command, name: str, default: str | None = None) -> str:
    """A field that must be there, if it has no default."""
    found = request.fields.get(name)
    if found:
        return found
    if default is None:
        raise BadRequestError(f"{name} is missing", field=name)
    return default


def integer(request: Command, name: str, default: int | None = None) -> int:
    """A whole number of 64 bits."""
    found = request.fields.get(name)
    if found is None or found == "":
        if default is None:
            raise BadRequestError(f"{name} is missing", field=name)
        return default
    if _INTEGER.fullmatch(found) is None or not -(2**63) <= int(found) < 2**63:
        raise BadRequestError(f"{name} must be a whole number, not {found[:32]}", field=name)
    return int(found)


def flag(request: Command, name: str, *, default: bool = False) -> bool:
    """true or false; 1 or 0, as the C++ client writes it."""
    found = request.fields.get(name)
    return default if found is None else found.lower() in ("true", "1")
