"""Pure: what a version of users and rights allows, written down once more, by hand.

Made from the tables of docs/features/rights.md, not from the code that decides in the product:
a checker that called that would share its mistakes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

TOPIC, CONSUMER_GROUP, NAMESPACE = "Topic", "Group", "Namespace"
_OF_GROUPS = ("%RETRY%", "%DLQ%")
"""How topics begin that hold what a consumer group is given again, or has given up."""
_ANONYMOUS = "anonymous"
_SHARED = (
    (TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC"),
    (TOPIC, "paceline_REPLY_TOPIC"),
    (CONSUMER_GROUP, "paceline.delay"),
)
"""They hold messages of many topics: who may use them is named in full."""
SHARED_TOPICS = frozenset(name for kind, name in _SHARED if kind == TOPIC)
OPEN: Mapping[str, Any] = {"mode": "off", "users": {}, "policies": {}}
"""What counts where nobody has ever set anything."""


class Need(NamedTuple):
    """One of the actions, on one resource."""

    kind: str
    name: str
    actions: tuple[str, ...]


def on_topic(name: str, *actions: str) -> Need:
    """On a topic; on the consumer group of which it holds retries or dead letters."""
    for prefix in _OF_GROUPS:
        if name.startswith(prefix):
            return Need(CONSUMER_GROUP, name[len(prefix) :], actions)
    return Need(TOPIC, name, actions)


def on_group(name: str, *actions: str) -> Need:
    """On a consumer group."""
    return Need(CONSUMER_GROUP, name, actions)


def may_all(
    security: Mapping[str, Any], *, access_key: str, source: str, needs: Iterable[Need]
) -> bool:
    """Whether whoever shows this access key, from this address, meets all needs."""
    if security["mode"] != "on":
        return True
    name = _user_of(security, access_key)
    if name is None:
        return False
    user = security["users"].get(name)
    if user is not None and not user["is_enabled"]:
        return False
    if user is not None and user["type"] == "Super":
        return True
    policy = security["policies"].get(name, {})
    return all(
        any(_is_allowed(policy, need._replace(actions=(one,)), source) for one in need.actions)
        for need in needs
    )


def can_be_governed(security: Mapping[str, Any]) -> bool:
    """Whether somebody could still give rights, where they count."""
    supers = [user for user in security["users"].values() if user["type"] == "Super"]
    return security["mode"] != "on" or any(u["is_enabled"] and u["keys"] for u in supers)


def _user_of(security: Mapping[str, Any], access_key: str) -> str | None:
    if access_key == "":
        return _ANONYMOUS
    for name, user in security["users"].items():
        if access_key in user["keys"]:
            return str(name)
    return None


def _is_allowed(policy: Mapping[str, Any], need: Need, source: str) -> bool:
    """Of a need of one action. The strongest entry decides; the default policy only if no custom
    entry is for it."""
    for part in ("custom", "default"):
        verdicts = [
            (_strength(entry), entry["decision"] == "Deny")
            for entry in policy.get(part, ())
            if _is_for(entry, need)
            and _comes_from(source, entry["sources"])
            and _reaches(entry, need)
        ]
        if verdicts:
            return not max(verdicts)[1]
    return False


def _is_for(entry: Mapping[str, Any], need: Need) -> bool:
    if "All" not in entry["actions"] and not set(entry["actions"]) & set(need.actions):
        return False
    if entry["resource"] == "*":
        return True
    kind, _, name = entry["resource"].partition(":")
    wanted = need.name
    if kind == NAMESPACE and need.kind in (TOPIC, CONSUMER_GROUP):
        wanted, end, _ = need.name.partition("%")
        if not (wanted and end):
            return False  # in no namespace
    elif kind != need.kind:
        return False
    return wanted.startswith(name[:-1]) if name.endswith("*") else wanted == name


def _reaches(entry: Mapping[str, Any], need: Need) -> bool:
    is_named = not entry["resource"].endswith("*") or entry["decision"] == "Deny"
    return is_named or (need.kind, need.name) not in _SHARED


def _strength(entry: Mapping[str, Any]) -> tuple[int, int]:
    """A type is stronger than a namespace, and that than `*`; of one sort a name is stronger than
    all prefixes, the longer prefix than the shorter."""
    resource = entry["resource"]
    if resource == "*":
        return 0, 0
    sort = 1 if resource.startswith(f"{NAMESPACE}:") else 2
    return sort, len(resource) if resource.endswith("*") else 1_000_000


def _comes_from(source: str, networks: Iterable[str]) -> bool:
    wanted = list(networks)
    return not wanted or any(_is_in(source, network) for network in wanted)


def _is_in(source: str, network: str) -> bool:
    """IPv4 only: worlds and their machines have nothing else."""
    address, _, bits = network.partition("/")
    shift = 32 - int(bits or 32)
    return _number(source) >> shift == _number(address) >> shift


def _number(address: str) -> int:
    number = 0
    for part in address.split("."):
        number = number * 256 + int(part)
    return number
