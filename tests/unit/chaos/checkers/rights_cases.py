"""Cases of users and rights: who did, saw or was refused what (S31, S42 to S44, L12)."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.chaos.hand import SECOND, Hand
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.query_cases import CASES as CASES

from paceline_chaos.history.model import Outcome, Phase, Queue
from paceline_chaos.history.secured import MODE, REVOKE, ChangeRights, ListNames, SecurityApplied

HERE, _THERE = "10.0.0.7", "10.0.1.7"
_ROOT = {"type": "Super", "is_enabled": True, "keys": ["k-root"]}
_ANN = {"type": "Normal", "is_enabled": True, "keys": ["k-ann"]}


def entry_of(
    resource: str, *actions: str, decision: str = "Allow", sources: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "resource": resource,
        "actions": list(actions),
        "sources": list(sources),
        "decision": decision,
    }


_PUB = entry_of("Topic:t", "Pub")


def applied(
    hand: Hand,
    at: int,
    *custom: Mapping[str, Any],
    node: str = "b1",
    version: int = 1,
    mode: str = "on",
    **changes: Any,
) -> None:
    """A node goes by this from now on; `custom`: the policy of ann."""
    security = {
        "mode": mode,
        "users": {"root": _ROOT, "ann": {**_ANN, **changes.pop("ann", {})}},
        "policies": {"ann": {"custom": custom, **changes.pop("policy", {})}},
        **changes,
    }
    hand.add(SecurityApplied, at_us=at, node=node, version=version, security=security)


def _sent(hand: Hand, at: tuple[int, int] = (20, 30), **members: Any) -> Hand:
    """Ann sends to t, from here."""
    hand.send("a", 0, at, **{"access_key": "k-ann", "source": HERE, **members})
    return hand


@case("S31")
def sent_without_the_right(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, entry_of("Topic:t", "Sub" if is_bad else "Pub"))
    return _sent(hand)


@case("S31 of a denial of a name")
def sent_although_denied(is_bad: bool) -> Hand:
    hand = Hand()
    denied = "Topic:t" if is_bad else "Topic:ta"
    applied(hand, 5, entry_of("*", "All"), entry_of(denied, "Pub", decision="Deny"))
    return _sent(hand)


@case("S31 of a denial as strong as an allowance")
def sent_although_denied_as_well(is_bad: bool) -> Hand:
    hand = Hand()
    denied = entry_of("Topic:t*" if is_bad else "Topic:*", "All", decision="Deny")
    applied(hand, 5, denied, entry_of("Topic:t*", "Pub"))
    return _sent(hand)


@case("S31 of a default policy behind another")
def sent_by_default_although_denied(is_bad: bool) -> Hand:
    hand = Hand()
    denied = entry_of("*" if is_bad else "Topic:u*", "Pub", decision="Deny")
    applied(hand, 5, denied, policy={"default": [_PUB]})
    return _sent(hand)


@case("S31 of what holds messages of many topics")
def sent_where_only_a_name_allows(is_bad: bool) -> Hand:
    hand = Hand()
    shared = "paceline_REPLY_TOPIC"
    applied(hand, 5, entry_of("Topic:paceline*" if is_bad else f"Topic:{shared}", "Pub"))
    return _sent(hand, topic=shared, queue=Queue(shared, "g", 0))


@case("S31 of an address")
def sent_from_elsewhere(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, entry_of("Topic:t", "Pub", sources=["10.0.0.0/24"]))
    return _sent(hand, source=_THERE if is_bad else HERE)


@case("S31 of a key that was revoked")
def sent_with_a_revoked_key(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, _PUB, ann={"keys": ["k-new"] if is_bad else ["k-new", "k-ann"]})
    return _sent(hand)


@case("S31 of a user who was disabled before it was asked")
def sent_by_a_disabled_user(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, _PUB)
    if is_bad:
        applied(hand, 15, _PUB, version=2, ann={"is_enabled": False})
    hand.send("a", 0, (20, 30), access_key="k-ann", source=HERE)
    if not is_bad:  # between question and answer: nobody knows by which it was decided
        applied(hand, 25, _PUB, version=2, ann={"is_enabled": False})
    return hand


@case("S31 of another node")
def read_at_a_node_that_knows_better(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, node="b1", version=2)
    applied(hand, 6, entry_of("Topic:t", "Sub"), node="b2")
    hand.unknown("a")
    node = "b1" if is_bad else "b2"
    hand.pull(0, ["a"], (20, 30), access_key="k-ann", source=HERE, node=node)
    return hand


@case("S31 in a log")
def stored_for_a_stranger(is_bad: bool) -> Hand:
    hand = Hand()
    anonymous = {"anonymous": {"custom": [] if is_bad else [_PUB]}}
    applied(hand, 5, policies=anonymous)
    hand.unknown("a", (20, 30), access_key="", source=HERE)
    hand.send("b", 1, (40, 50), access_key="k-root", source=HERE)
    hand.dump(1, ["a", "b"])
    return hand


@case("S31 of a key that an operator was told is revoked")
def sent_long_after_a_revocation(is_bad: bool) -> Hand:
    hand = Hand()
    for number, (what, name) in enumerate(((MODE, "on"), (REVOKE, "k-ann"))):
        hand.add(
            ChangeRights,
            client="o",
            asked_us=10 * number + 1,
            answered_us=10 * number + 5,
            outcome=Outcome.OK,
            what=what,
            name=name,
        )
    at = (3 * SECOND, 3 * SECOND + 10)
    if is_bad:
        return _sent(hand, at)
    hand.send("a", 0, (30, 40), access_key="k-ann", source=HERE)  # before everybody knows
    failed: dict[str, Any] = {"outcome": Outcome.FAIL, "error": "UNAUTHENTICATED"}
    hand.send("b", at=at, access_key="k-ann", source=HERE, **failed)
    return hand


@case("S42")
def shown_what_is_not_his(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, _PUB, entry_of("Group:g*", "Get"))
    hand.add(
        ListNames,
        client="c",
        asked_us=20,
        answered_us=30,
        outcome=Outcome.OK,
        access_key="k-ann",
        source=HERE,
        what="/v1/routes",
        topics=("t",),
        consumer_groups=("g1", "h1") if is_bad else ("g1", "g2"),
    )
    return hand


@case("S43")
def refused_what_he_may(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, _PUB)
    _sent(hand)
    if not is_bad:
        applied(hand, 35, version=2, node="b2")
    hand.send(
        "b",
        at=(40, 50),
        outcome=Outcome.FAIL,
        error="NOT_AUTHORIZED",
        access_key="k-ann",
        source=HERE,
    )
    return hand


@case("S43 in a dry run")
def refused_in_a_dry_run(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, mode="dry-run")
    error = "UNAUTHENTICATED" if is_bad else "NOT_MASTER"
    hand.send("a", at=(20, 30), outcome=Outcome.FAIL, error=error, access_key="", source=HERE)
    return hand


@case("S44")
def nobody_left_who_gives_rights(is_bad: bool) -> Hand:
    hand = Hand()
    root = {"type": "Super", "is_enabled": True, "keys": [] if is_bad else ["k-root"]}
    applied(hand, 5, users={"root": root})
    return hand


@case("L12")
def news_that_do_not_arrive(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 1, node="c1")
    applied(hand, 2, node="b1")
    hand.add(Phase, at_us=5, name="heal")
    applied(hand, 11 * SECOND, node="c1", version=2)
    applied(hand, (14 if is_bad else 12) * SECOND, node="b1", version=2)
    hand.add(Phase, at_us=20 * SECOND, name="end")
    return hand
