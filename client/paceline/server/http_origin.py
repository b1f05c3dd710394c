"""Pure: which HTTP requests a web page may have made a browser send, told by Host and Origin.

A page of any site can make the browser of an operator send requests to this machine. Three rules
keep such a page from reading messages and ordering elections:

- Browsers put `Origin` on every request that changes something and on every WebSocket. No client
  of paceline sends it, so a request with `Origin` is refused.
- Browsers say with `Sec-Fetch-Site` whose page has caused a request, reads included. One of another
  site is refused; what a person has typed in ("none") is not.
- A page can point a name of its own domain at this machine (DNS rebinding); then the browser
  takes the answers for the page's own, and reads carry no `Origin`. But the `Host` of such a
  request is a name that somebody has registered. So `Host` must be an IP address, a name without
  a dot, a name that no one can register (RFC 6761, RFC 6762, RFC 8375), or a name that this node
  is configured with.
"""

import ipaddress
from collections.abc import Collection, Iterable

from paceline.errors import BadRequestError, ForbiddenError

ANY_HOST = "*"
"""In `allowed_hosts`: every name is taken."""
_SUFFIXES_NOBODY_REGISTERS = (".localhost", ".local", ".internal", ".home.arpa", ".test")


def own_hosts(*hosts: str, allowed: Iterable[str]) -> frozenset[str]:
    """The names for `check_browser`: those of this node, and what the operator allows."""
    return frozenset(name.lower().rstrip(".") for name in (*hosts, *allowed))


def check_target(target: str) -> None:
    """BadRequestError unless a request's target is a path, with its query: what a relay sends on
    has no fragment, and the node's address in place of another one."""
    if not target.startswith("/") or "#" in target:
        raise BadRequestError("the target of a request must be a path without a fragment (#)")


def check_browser(
    *, host: str | None, origin: str | None, site: str | None, own: Collection[str]
) -> None:
    """Raise ForbiddenError for a request that a page of another site may have caused.

    `host`, `origin` and `site` (Sec-Fetch-Site) are the headers; None for a request without them,
    as programs send. `own` comes from `own_hosts`.
    """
    if site not in (None, "none", "same-origin"):
        raise ForbiddenError(
            "the page of another site had a browser send this request (Sec-Fetch-Site); pages may"
            " not use this port",
            field="Sec-Fetch-Site",
        )
    if origin is not None:
        raise ForbiddenError(
            "requests with an Origin header come from web pages, and pages may not use this port",
            field="Origin",
        )
    if host is not None and not _is_allowed(_name_of(host), own):
        raise ForbiddenError(
            "the host name of this request is not one of this node: use its address, or have the"
            " operator put the name into allowed_hosts",
            field="Host",
        )


def _name_of(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _is_allowed(name: str, own: Collection[str]) -> bool:
    if "." not in name or name.endswith(_SUFFIXES_NOBODY_REGISTERS):
        return True
    if name in own or ANY_HOST in own:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
