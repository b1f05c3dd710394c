"""Which entry of a policy decides: against a naive oracle that reads RocketMQ's rule aloud."""

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rights import a_security, entry

from paceline.errors import BadRequestError
from paceline.security import decide
from paceline.security.decide import Rules, overridden_denials
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.rights import (
    DELETE,
    GET,
    PUB,
    SEE_GROUP,
    SEE_TOPIC,
    SUB,
    Action,
    Decision,
    Resource,
    ResourceType,
    topic_resource,
)
from paceline.wire.users import (
    ANONYMOUS,
    RESOURCE_PATTERN,
    Policy,
    PolicyEntry,
    Security,
    parse_resource,
)

SHARED = {
    "Topic:%SYS%AUDIT",
    "Topic:TRANS_CHECK_MAX_TIME_TOPIC",
    "Topic:paceline_REPLY_TOPIC",
    "Group:paceline.delay",
}
NAMESPACES = ["a", "ab", "n"]
IN_NAMESPACES = ["a%a", "ab%b", "n%a", "n%abc"]
NAMES = ["a", "ab", "abc", "b", "ab.c", *IN_NAMESPACES]
NAMES += [name.partition(":")[2] for name in sorted(SHARED)]
SOURCES = ["10.0.0.1", "10.0.1.1", "192.168.0.7", "::1", ""]
SOURCES += ["::ffff:10.0.0.1", "::ffff:192.168.0.7"]
NETWORKS = ["10.0.0.0/24", "10.0.0.1", "::1", "0.0.0.0/0"]
NETWORKS += ["::ffff:10.0.0.0/120", "::ffff:10.0.1.1", "::ffff:0.0.0.0/96", "::/0"]

resources = st.one_of(
    st.just("*"),
    st.builds(
        lambda kind, name, star: f"{kind}:{name}{star}",
        st.sampled_from(["Topic", "Group", "Cluster"]),
        st.sampled_from(["", "pace", "n%", *NAMES]),
        st.sampled_from(["", "*"]),
    ),
    st.builds(
        "Namespace:{}".format, st.sampled_from(["*", *NAMESPACES, *(f"{n}*" for n in NAMESPACES)])
    ),
).filter(lambda text: re.fullmatch(RESOURCE_PATTERN, text) is not None)
entries = st.builds(
    PolicyEntry,
    resource=resources,
    actions=st.lists(st.sampled_from(Action), min_size=1, max_size=3).map(tuple),
    sources=st.lists(st.sampled_from(NETWORKS), max_size=2).map(tuple),
    decision=st.sampled_from(Decision),
)
policies = st.builds(
    Policy,
    custom=st.lists(entries, max_size=5).map(tuple),
    default=st.lists(entries, max_size=3).map(tuple),
)
asked = st.builds(
    Resource,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER]),
    st.sampled_from(NAMES),
)


def oracle(policy: Policy, resource: Resource, actions: Sequence[Action], source: str) -> bool:
    """The rule of RocketMQ 5.5, one step after the other, without any of our code but the texts;
    that what holds messages of many topics is reached by its name only; and that each action is
    decided as if it were asked for alone."""
    if len(actions) > 1:
        return any(oracle(policy, resource, [one], source) for one in actions)
    for group in (policy.custom, policy.default):
        matching = []
        for one in group:
            kind, _, name = one.resource.partition(":")
            if one.resource == "*":
                kind, pattern, name = "Any", "ANY", ""
            elif name == "*":
                pattern = "ANY"
            elif name.endswith("*"):
                pattern, name = "PREFIXED", name[:-1]
            else:
                pattern = "LITERAL"
            compared = resource.name
            if kind == "Namespace" and resource.type.value in ("Topic", "Group"):
                if compared.find("%") < 1:  # a system name begins with it: it is in none
                    continue
                compared = compared.split("%")[0]
            elif kind not in ("Any", resource.type.value):
                continue
            if pattern == "LITERAL" and name != compared:
                continue
            if pattern == "PREFIXED" and not compared.startswith(name):
                continue
            if "All" not in one.actions and not set(one.actions) & set(actions):
                continue
            if one.sources and not any(is_in(source, each) for each in one.sources):
                continue
            if str(resource) in SHARED and pattern != "LITERAL" and one.decision == "Allow":
                continue
            order = {"LITERAL": 0, "PREFIXED": 1, "ANY": 2}[pattern]
            length = len(name) if pattern == "PREFIXED" else 0
            width = {"Any": 2, "Namespace": 1}.get(kind, 0)
            matching.append((width, order, -length, one.decision != "Deny"))
        if matching:
            return bool(min(matching)[3])
    return False


def is_in(source: str, network: str) -> bool:
    """An IPv4 address is the same in both of its forms, and ::/0 are those of IPv6."""
    if not source:
        return False
    address, _, length = network.partition("/")
    is_ipv4 = "." in source
    if is_ipv4 is not ("." in address):
        return False
    bits = 32 if is_ipv4 else 128
    wanted = int(length) if length else 128 if ":" in address else bits
    wanted -= 96 if is_ipv4 and ":" in address else 0
    numbers = [int(ipaddress.ip_address(text.replace("::ffff:", ""))) for text in (source, address)]
    return numbers[0] >> (bits - wanted) == numbers[1] >> (bits - wanted)


def of_ana(policy: Policy) -> Security:
    return Security(version=1, users={"ana": a_security().users["ana"]}, policies={"ana": policy})


def differences(
    policy: Policy, resource: Resource, actions: tuple[Action, ...], source: str
) -> bool:
    verdict = Rules(of_ana(policy)).decide("ana", resource, actions, source=source)
    return verdict.is_allowed != oracle(policy, resource, actions, source)


actions_asked = st.lists(st.sampled_from(Action), min_size=1, max_size=2).map(tuple)


@given(policies, asked, actions_asked, st.sampled_from(SOURCES))
def test_the_engine_decides_as_the_rule_says(
    policy: Policy, resource: Resource, actions: tuple[Action, ...], source: str
) -> None:
    assert not differences(policy, resource, actions, source)


SCENES = [
    (Policy(custom=(entry("Topic:a*", PUB), entry("Topic:a*", PUB, deny=True))), "a"),
    (Policy(custom=(entry("Topic:a", PUB), entry("Topic:a*", PUB, deny=True))), "a"),
    (Policy(custom=(entry("*", PUB, deny=True), entry("Topic:*", PUB))), "a"),
    (Policy(custom=(entry("Topic:a*", PUB, deny=True), entry("Topic:ab*", PUB))), "ab"),
    (Policy(custom=(entry("Topic:a", PUB, sources=("10.0.0.9",)),)), "a"),
    (Policy(custom=(entry("Topic:a", SUB, deny=True),), default=(entry("Topic:a", PUB),)), "a"),
    (Policy(custom=(entry("Topic:a", PUB, deny=True),), default=(entry("*", PUB),)), "a"),
    (Policy(custom=(entry("Namespace:n", PUB, deny=True), entry("Topic:*", PUB))), "n%a"),
    (Policy(custom=(entry("Namespace:n*", PUB), entry("*", PUB, deny=True))), "n%a"),
]


@pytest.mark.parametrize(
    ("allowed", "denied", "asked"),
    [(SUB, PUB, SEE_TOPIC), (PUB, SUB, SEE_TOPIC), (SUB, GET, SEE_GROUP), (GET, SUB, SEE_GROUP)],
)
@pytest.mark.parametrize("is_literal", [True, False])
def test_a_denial_of_one_action_leaves_the_others(
    allowed: Action, denied: Action, asked: tuple[Action, ...], is_literal: bool
) -> None:
    kind = ResourceType.TOPIC if asked is SEE_TOPIC else ResourceType.GROUP
    denial = entry(f"{kind}:orders" if is_literal else f"{kind}:*", denied, deny=True)
    rules = Rules(of_ana(Policy(custom=(entry(f"{kind}:*", allowed), denial))))

    def may(*actions: Action) -> bool:
        return rules.decide("ana", Resource(kind, "orders"), actions, source="").is_allowed

    assert may(*asked)
    assert may(allowed)
    assert not may(denied)


def test_a_refusal_names_the_entry_that_denies_rather_than_that_there_is_none() -> None:
    denial = entry("Topic:orders", SUB, deny=True)
    rules = Rules(of_ana(Policy(custom=(denial,))))

    verdict = rules.decide("ana", Resource(ResourceType.TOPIC, "orders"), SEE_TOPIC, source="")

    assert (verdict.is_allowed, verdict.entry) == (False, denial)


def broken_rank(without: str) -> Callable[[Any], Any]:
    def rank(rule: Any) -> Any:
        typed, prefix, length, allow = rule.rank
        return {
            "type": (0, prefix, length, allow),
            "namespace": (typed // 2, prefix, length, allow),
            "literal": (typed, False, 0, allow),
            "length": (typed, prefix, 0, allow),
            "deny": (typed, prefix, length, not allow),
        }[without]

    return rank


@pytest.mark.parametrize("without", ["type", "namespace", "literal", "length", "deny"])
def test_an_engine_without_part_of_the_order_is_caught(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "_rank", broken_rank(without))

    wrong = [
        name
        for policy, name in SCENES
        if differences(policy, Resource(ResourceType.TOPIC, name), (PUB,), "10.0.0.1")
    ]

    assert wrong


def test_an_engine_that_ignores_sources_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "_is_within", lambda source, networks: True)

    assert differences(SCENES[4][0], Resource(ResourceType.TOPIC, "a"), (PUB,), "10.0.0.1")


@pytest.mark.parametrize("network", ["::ffff:10.1.0.0/112", "::ffff:10.1.0.0/120", "10.1.0.0/16"])
@pytest.mark.parametrize("source", ["10.1.0.9", "::ffff:10.1.0.9"])
def test_a_denial_of_ipv4_addresses_counts_in_both_of_their_forms(
    network: str, source: str
) -> None:
    denial = entry("Topic:*", PUB, deny=True, sources=(network,))
    denial.check_given()
    rules = Rules(of_ana(Policy(custom=(entry("Topic:*", PUB), denial))))

    def may(source: str) -> bool:
        asked = Resource(ResourceType.TOPIC, "orders")
        return rules.decide("ana", asked, (PUB,), source=source).is_allowed

    assert not may(source)
    assert may("10.2.0.9")


@pytest.mark.parametrize("source", ["::ffff:10.1.0.0/16", "::ffff:10.1.0.0/95", "::ffff:a01:0/0"])
def test_a_source_that_nobody_comes_from_is_refused_and_an_old_one_is_for_nobody(
    source: str,
) -> None:
    denial = entry("Topic:*", PUB, deny=True, sources=(source,))

    with pytest.raises(BadRequestError, match="write the IPv4 network"):
        denial.check_given()

    rules = Rules(of_ana(Policy(custom=(entry("Topic:*", PUB), denial))))
    asked = Resource(ResourceType.TOPIC, "orders")
    assert rules.decide("ana", asked, (PUB,), source="10.1.0.9").is_allowed


@pytest.mark.parametrize("resource", sorted(SHARED))
def test_what_holds_messages_of_many_topics_is_reached_by_its_name_only(resource: str) -> None:
    kind, _, name = resource.partition(":")
    wide = [entry(text, Action.ALL) for text in ("*", f"{kind}:*", f"{kind}:{name}*")]

    def may(*entries: PolicyEntry) -> decide.Verdict:
        asked = Resource(ResourceType(kind), name)
        rules = Rules(of_ana(Policy(custom=entries)))
        return rules.decide("ana", asked, (SUB,), source="")

    assert not may(*wide).is_allowed
    assert may(*wide).why == "a policy of ana must name it, for it holds messages of many topics"
    assert may(*wide, entry(resource, SUB)).is_allowed
    assert not may(entry(f"{kind}:*", SUB, deny=True)).is_allowed
    denied = Policy(custom=(entry("*", SUB, deny=True),), default=(entry(resource, SUB),))
    asked = Resource(ResourceType(kind), name)
    assert not Rules(of_ana(denied)).decide("ana", asked, (SUB,), source="").is_allowed
    assert Rules(a_security()).decide("root", asked, (SUB,), source="").is_allowed


def test_an_engine_that_lets_a_prefix_reach_shared_topics_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide._Rule, "reaches", lambda rule, resource: True)

    policy = Policy(custom=(entry("Topic:*", SUB),))
    reply = Resource(ResourceType.TOPIC, "paceline_REPLY_TOPIC")
    assert differences(policy, reply, (SUB,), "10.0.0.1")


def decided(user: str, resource: str, *actions: Action, source: str = "") -> decide.Verdict:
    security = a_security(
        ana=(
            entry("Topic:orders*", PUB),
            entry("Topic:orders.secret*", PUB, deny=True),
            entry("Group:*", SUB, sources=("10.0.0.0/8",)),
        ),
        anonymous=(entry("Topic:news", SUB),),
    )
    parsed = parse_resource(resource)
    return Rules(security).decide(user, Resource(parsed.type, parsed.name), actions, source=source)


def test_a_verdict_names_the_entry_that_decides() -> None:
    assert decided("ana", "Topic:orders.1", PUB).why == (
        "the custom policy of ana allows it: Allow Pub on Topic:orders*"
    )
    assert decided("ana", "Topic:orders.secret.1", PUB).why == (
        "the custom policy of ana denies it: Deny Pub on Topic:orders.secret*"
    )
    assert decided("ana", "Topic:orders.1", GET).why == "no policy of ana matches"
    assert decided("root", "Topic:any", DELETE).why == "root is a super user"
    assert decided("eve", "Topic:any", PUB).why == "there is no user eve"


def test_a_source_is_an_address_or_a_network_also_of_mapped_addresses() -> None:
    assert decided("ana", "Group:g", SUB, source="10.9.9.9").is_allowed
    assert decided("ana", "Group:g", SUB, source="::ffff:10.9.9.9").is_allowed
    assert not decided("ana", "Group:g", SUB, source="11.0.0.1").is_allowed
    assert not decided("ana", "Group:g", SUB, source="").is_allowed
    assert not decided("ana", "Group:g", SUB, source="a name").is_allowed


def test_anonymous_has_what_its_policy_says_and_nothing_else() -> None:
    assert decided(ANONYMOUS, "Topic:news", SUB).is_allowed
    assert not decided(ANONYMOUS, "Topic:news", PUB).is_allowed


def test_a_disabled_super_user_may_do_nothing() -> None:
    security = a_security()
    root = msgspec.structs.replace(security.users["root"], is_enabled=False)
    rules = Rules(security.with_user("root", root))

    assert not rules.decide("root", Resource(ResourceType.TOPIC, "a"), (PUB,), source="").is_allowed


@pytest.mark.parametrize(
    ("entries", "is_found"),
    [
        ((entry("Topic:a*", PUB, deny=True), entry("Topic:ab", PUB)), True),
        ((entry("*", PUB, deny=True), entry("Topic:ab*", PUB)), True),
        ((entry("Topic:a*", PUB, deny=True), entry("Topic:b", PUB)), False),
        ((entry("Topic:ab", PUB, deny=True), entry("Topic:a*", PUB)), False),
        ((entry("Topic:a*", SUB, deny=True), entry("Topic:ab", PUB)), False),
        ((entry("Group:a*", PUB, deny=True), entry("Topic:ab", PUB)), False),
        ((entry("Topic:a*", Action.ALL, deny=True), entry("Topic:ab", PUB)), True),
        ((entry("Namespace:n", PUB, deny=True), entry("Topic:n%a", PUB)), True),
        ((entry("Namespace:n", PUB, deny=True), entry("Topic:m%a", PUB)), False),
        ((entry("Namespace:n", PUB, deny=True), entry("Topic:a", PUB)), False),
        ((entry("Namespace:n*", PUB, deny=True), entry("Group:n1%*", PUB)), True),
        ((entry("Namespace:n1", PUB, deny=True), entry("Topic:n*", PUB)), True),
        ((entry("Namespace:n1", PUB, deny=True), entry("Topic:n1x*", PUB)), False),
        ((entry("Namespace:n", PUB, deny=True), entry("Cluster:*", PUB)), False),
        ((entry("*", PUB, deny=True), entry("Namespace:n", PUB)), True),
        ((entry("Topic:n%a*", PUB, deny=True), entry("Namespace:n", PUB)), False),
    ],
)
def test_denials_that_an_allowance_beats_are_found(
    entries: tuple[PolicyEntry, ...], is_found: bool
) -> None:
    assert bool(overridden_denials(Policy(custom=entries))) is is_found


@given(resources, resources)
def test_a_denial_is_found_where_both_entries_match_some_name(denied: str, allowed: str) -> None:
    """Of all names that the alphabet of these tests can make."""
    policy = Policy(custom=(entry(denied, PUB, deny=True), entry(allowed, PUB)))
    only = (Policy(custom=policy.custom[:1]), Policy(custom=policy.custom[1:]))
    names = [
        *NAMES,
        "n%",
        "",
        "x",
        "a%z",
        "nn%z",
        "abc%z",
        "ab.c%z",
        "n%abcz",
        "n%ab.c",
        "n%z",
        "pace",
    ]
    names += [f"{name}z" for name in NAMES] + [
        f"{space}%{name}" for space in names for name in "ab"
    ]

    def entries_match(resource: Resource) -> bool:
        found = [Rules(of_ana(each)).decide("ana", resource, (PUB,), source="") for each in only]
        return all(verdict.entry is not None for verdict in found)

    def is_allowed(resource: Resource) -> bool:
        return Rules(of_ana(policy)).decide("ana", resource, (PUB,), source="").is_allowed

    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.NAMESPACE)
    shared = [
        resource
        for kind in kinds
        for name in dict.fromkeys(names)
        if (name.count("%") < 2 or name == AUDIT_TOPIC)
        and entries_match(resource := Resource(kind, name))
    ]
    assert bool(overridden_denials(policy)) is any(map(is_allowed, shared))


def test_a_decision_looks_at_no_entry_that_does_not_name_the_resource(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []
    matches = decide._Rule.matches

    def counted(rule: decide._Rule, action: Action, source: str) -> bool:
        looked.append(rule.entry.resource)
        return matches(rule, action, source)

    monkeypatch.setattr(decide._Rule, "matches", counted)
    others = tuple(entry(f"Topic:app{number}*", PUB) for number in range(1_000))
    rules = Rules(a_security(ana=(*others, entry("Topic:app7.news*", SUB))))

    allowed = rules.decide("ana", topic_resource("app7.news"), (SUB,), source="10.0.0.1")
    assert allowed.is_allowed
    assert sorted(looked) == ["Topic:app7*", "Topic:app7.news*"]
