"""Pure: which entry of a policy decides, in RocketMQ's order (ACL 2.0).

Entries that match the resource, the action and the source are candidates; those of the default
policy only if none of the custom one is. The most special candidate decides: one for a type
of resource comes before one for a namespace, that before one for any, a name before a prefix, a
longer prefix before a shorter one; of two that are equal a denial comes first. Where nothing
matches, the answer is no. A topic or group without a namespace is in none.

Some resources of the cluster's own hold messages of many topics (`SHARED_RESOURCES`). An allowance
for a prefix or for all names does not reach them, which is not so in RocketMQ; a denial does.

So an allowance for one topic counts more than a denial for a prefix of its name, which surprises
people: `overridden_denials` finds such entries.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from paceline.errors import NotAuthorizedError
from paceline.wire.names import NAMESPACE_END, namespace_of
from paceline.wire.rights import SHARED_RESOURCES, Action, Decision, Resource, ResourceType
from paceline.wire.users import (
    ANONYMOUS,
    Network,
    ParsedResource,
    Policy,
    PolicyEntry,
    Security,
    UserType,
    network_of,
    parse_resource,
)

Rank: TypeAlias = tuple[int, bool, int, bool]

IN_NAMESPACES = (ResourceType.TOPIC, ResourceType.GROUP)
"""Types of resources that may stand in a namespace."""
_WIDTHS = {ResourceType.NAMESPACE: 1, ResourceType.ANY: 2}
"""How much more an entry is for than one type of resource (0)."""


class Verdict(NamedTuple):
    """What was decided, and why."""

    is_allowed: bool
    why: str
    """A sentence without its full stop."""
    entry: PolicyEntry | None = None
    """What decided; None: no entry did."""
    given: tuple[Action, ...] = ()
    """If none did: what the custom policy allows on that very resource."""


class _Rule(NamedTuple):
    """An entry, made ready to be matched."""

    entry: PolicyEntry
    resource: ParsedResource
    networks: tuple[Network, ...]

    def matches(self, action: Action, source: str) -> bool:
        """Of a resource that it names."""
        actions = self.entry.actions
        is_for = action in actions or Action.ALL in actions
        return is_for and (not self.networks or _is_within(source, self.networks))

    def reaches(self, resource: Resource) -> bool:
        """Whether it counts for a resource that it matches."""
        is_named = not self.resource.is_prefix or self.entry.decision is Decision.DENY
        return is_named or resource not in SHARED_RESOURCES

    @property
    def rank(self) -> Rank:
        """The least decides."""
        own = self.resource
        return (
            _WIDTHS.get(own.type, 0),
            own.is_prefix,
            -len(own.name) if own.is_prefix else 0,
            self.entry.decision is Decision.ALLOW,
        )


class _OfType:
    """Entries for one type of resource, by what they name."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[_Rule]] = {}
        self._by_prefix: dict[str, list[_Rule]] = {}
        self._lengths: set[int] = set()
        """Of the prefixes."""

    def add(self, rule: _Rule) -> None:
        name = rule.resource.name
        if rule.resource.is_prefix:
            self._by_prefix.setdefault(name, []).append(rule)
            self._lengths.add(len(name))
        else:
            self._by_name.setdefault(name, []).append(rule)

    def naming(self, name: str) -> Iterable[_Rule]:
        """Those that are for what has this name."""
        yield from self._by_name.get(name, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._by_prefix.get(name[:length], ())


class PolicyIndex:
    """Entries by what they name, so that a decision costs no more with many of them."""

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self._of: dict[ResourceType, _OfType] = {}
        self.has_sources = False
        """One of them is for some addresses only."""
        for rule in _rules(entries):
            self._of.setdefault(rule.resource.type, _OfType()).add(rule)
            self.has_sources = self.has_sources or bool(rule.networks)

    def naming(self, resource: Resource) -> list[_Rule]:
        """Those that are for a resource, whatever its actions and sources."""
        found: list[_Rule] = []
        for kind in (resource.type, ResourceType.ANY):
            if kind in self._of:
                found += self._of[kind].naming(resource.name)
        if ResourceType.NAMESPACE in self._of and resource.type in IN_NAMESPACES:
            namespace = namespace_of(resource.name)
            if namespace:
                found += self._of[ResourceType.NAMESPACE].naming(namespace)
        return found


class Rules:
    """The policies of one `Security`, each made ready when it is first asked for."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._ready: dict[str, tuple[PolicyIndex, PolicyIndex]] = {}

    def decide(
        self, user: str, resource: Resource, actions: Sequence[Action], *, source: str
    ) -> Verdict:
        """Whether a user may do one of `actions` on a resource, coming from that address.

        Each is decided alone: a denial of one takes nothing from the others. So not in RocketMQ,
        where it hides a topic from whoever may use it otherwise. Why not, is what an entry says.
        """
        found = self._security.users.get(user)
        if found is None and user != ANONYMOUS:
            return Verdict(False, f"there is no user {user}")
        if found is not None and not found.is_enabled:
            return Verdict(False, f"user {user} is disabled")
        if found is not None and found.type is UserType.SUPER:
            return Verdict(True, f"{user} is a super user")
        named = [index.naming(resource) for index in self._indexes(user)]
        if not any(named):
            return Verdict(False, f"no policy of {user} matches")
        refusals: list[Verdict] = []
        for action in actions:
            verdict = _decide_one(user, resource, action, source, named)
            if verdict.is_allowed:
                return verdict
            refusals.append(verdict)
        refused = next((each for each in refusals if each.entry is not None), refusals[0])
        return refused if refused.entry is not None else _with_given(refused, user, resource, named)

    def has_sources(self, user: str) -> bool:
        """Whether what is decided for a user depends on where it comes from."""
        return any(index.has_sources for index in self._indexes(user))

    def _indexes(self, user: str) -> tuple[PolicyIndex, PolicyIndex]:
        """Of the custom policy, and of the default one."""
        ready = self._ready.get(user)
        if ready is None:
            policy = self._security.policies.get(user, Policy())
            ready = self._ready[user] = (PolicyIndex(policy.custom), PolicyIndex(policy.default))
        return ready


def _with_given(
    refused: Verdict, user: str, resource: Resource, named: Sequence[list[_Rule]]
) -> Verdict:
    """A verdict that tells which other actions the custom policy allows on that very resource."""
    given = [
        action
        for rule in named[0]
        if rule.entry.resource == str(resource)
        and rule.entry.decision is Decision.ALLOW
        and not rule.networks
        for action in rule.entry.actions
    ]
    if not given:
        return refused
    why = f"the custom policy of {user} allows only {','.join(given)} on it"
    return refused._replace(why=why, given=tuple(given))


def _decide_one(
    user: str, resource: Resource, action: Action, source: str, named: Sequence[list[_Rule]]
) -> Verdict:
    """What the policy of a user says of one action; `named`: of both parts, for the resource."""
    why = f"no policy of {user} matches"
    for name, rules in zip(("custom", "default"), named, strict=True):
        candidates = [rule for rule in rules if rule.matches(action, source)]
        matching = [rule for rule in candidates if rule.reaches(resource)]
        if candidates:
            why = f"a policy of {user} must name it, for it holds messages of many topics"
        if matching:
            entry = min(matching, key=_rank).entry
            is_allowed = entry.decision is Decision.ALLOW
            verb = "allows" if is_allowed else "denies"
            why = f"the {name} policy of {user} {verb} it: {entry_text(entry)}"
            return Verdict(is_allowed, why, entry)
    return Verdict(False, why)


def entry_text(entry: PolicyEntry) -> str:
    """As people write it."""
    sources = f" from {', '.join(entry.sources)}" if entry.sources else ""
    return f"{entry.decision} {','.join(entry.actions)} on {entry.resource}{sources}"


def refusal(
    user: str, resource: Resource, actions: Sequence[Action], verdict: Verdict
) -> NotAuthorizedError:
    """What a user is told who may do none of the actions."""
    what = f"{user} may not {either(actions)} on {resource}: {verdict.why}"
    if verdict.entry is None:
        wanted = ",".join((*verdict.given, actions[0]))  # `set` replaces what is there
        give = f"paceline acl set {user} --resource {resource} --actions {wanted}"
        what += f"; a super user can allow it ({give})"
    return NotAuthorizedError(
        what,
        user=user,
        resource=str(resource),
        actions=[str(action) for action in actions],
        rule=verdict.why,
    )


def refusal_of_id(user: str, topic_id: int, actions: Sequence[Action]) -> NotAuthorizedError:
    """As `refusal`, of a topic whose name the user may not see."""
    return NotAuthorizedError(
        f"{user} may not {either(actions)} on the topic with id {topic_id}, and may not see its"
        " name; a super user can allow it",
        user=user,
        resource=f"{ResourceType.TOPIC}:{topic_id}",
        actions=[str(action) for action in actions],
    )


def either(actions: Sequence[Action]) -> str:
    """As people say it."""
    return " or ".join(actions)


def overridden_denials(policy: Policy) -> list[tuple[PolicyEntry, PolicyEntry]]:
    """Each denial with an allowance that counts more on some resource that both are for."""
    found = []
    for entries in (policy.custom, policy.default):
        rules = _rules(entries)
        found += [
            (denial.entry, allowance.entry)
            for denial in rules
            if denial.entry.decision is Decision.DENY
            for allowance in rules
            if allowance.entry.decision is Decision.ALLOW
            and allowance.rank < denial.rank
            and _do_overlap(denial, allowance)
        ]
    return found


def _do_overlap(one: _Rule, other: _Rule) -> bool:
    actions = set(one.entry.actions) & set(other.entry.actions)
    has_all = Action.ALL in (*one.entry.actions, *other.entry.actions)
    return (bool(actions) or has_all) and _share_a_name(one.resource, other.resource)


def _share_a_name(one: ParsedResource, other: ParsedResource) -> bool:
    """Whether some resource is one that both are for."""
    types = {one.type, other.type}
    if len(types) == 1 or ResourceType.ANY in types:
        wide, narrow = sorted((one, other), key=_narrowness)
        return wide.has(narrow.name)
    if ResourceType.NAMESPACE not in types or not types.intersection(IN_NAMESPACES):
        return False
    namespaces, names = (one, other) if one.type is ResourceType.NAMESPACE else (other, one)
    namespace, end, _ = names.name.partition(NAMESPACE_END)
    if end:
        return namespaces.has(namespace)
    # Without a namespace a prefix is also how namespaces begin.
    own = ParsedResource(ResourceType.NAMESPACE, names.name, is_prefix=True)
    return names.is_prefix and _share_a_name(own, namespaces)


def _narrowness(resource: ParsedResource) -> tuple[bool, int]:
    return (not resource.is_prefix, len(resource.name))


def _rank(rule: _Rule) -> Rank:
    return rule.rank


def _rules(entries: Iterable[PolicyEntry]) -> list[_Rule]:
    return [
        _Rule(
            entry,
            parse_resource(entry.resource),
            tuple(map(network_of, entry.sources)),
        )
        for entry in entries
    ]


def _is_within(source: str, networks: Iterable[Network]) -> bool:
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return False  # of no address at all: no network has it
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
