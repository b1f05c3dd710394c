"""What a node decides by: keys, needs, and what it keeps of decisions."""

import logging

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from tests.support.askers import PROOFS, Everywhere, proof_of
from tests.support.rights import SECRETS, a_security, bearer, entry

from paceline.errors import BadNameError, NotAuthorizedError, UnauthenticatedError
from paceline.http_api.rights import _principal
from paceline.platform.runtime import ManualClock, SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.security import access as access_module
from paceline.security.access import Access, Asker, Granted
from paceline.security.identity import Principal
from paceline.security.node_proof import NodeProofs
from paceline.security.tokens import LoginToken, Tokens, write_token
from paceline.security.visible import visible
from paceline.wire.calls.offsets import Commit, CommitRow
from paceline.wire.cluster import ClusterView
from paceline.wire.proof import DIGEST_HEADER, NODE_HEADER, SOURCE_HEADER
from paceline.wire.rights import PUB, SUB, Resource, ResourceType
from paceline.wire.users import NODE, AccessKey, Mode, Security, User, digest_of

HERE = "127.0.0.1"


def an_access(security: Security) -> Access:
    access = Access(ManualClock(), topic_name={1: "orders", 2: "%RETRY%billing"}.__getitem__)
    assert access.apply(security)
    return access


def of(access: Access, user: str) -> Asker:
    principal = access.authenticate(bearer(user)["Authorization"], source=HERE)
    return Asker(access, principal)


def test_who_shows_a_key_is_its_user() -> None:
    access = an_access(a_security())

    assert of(access, "ana").principal == Principal("ana", HERE, "key-ana")
    assert access.authenticate(None, source=HERE).user == "anonymous"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic YTpi",
        "Bearer",
        "Bearer key-ana",
        f"Bearer key-ana.{SECRETS['bob']}",
        f"Bearer key-eve.{SECRETS['ana']}",
        f"Bearer .{SECRETS['ana']}",
        f"key-ana.{SECRETS['ana']}",
    ],
)
def test_any_other_header_is_refused_and_says_nothing_of_the_key(header: str) -> None:
    access = an_access(a_security())

    with pytest.raises(UnauthenticatedError) as refused:
        access.authenticate(header, source=HERE)

    assert not any(secret in refused.value.message for secret in SECRETS.values())
    assert access.unauthenticated_count == 1


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_no_header_does_more_than_to_be_refused(text: str) -> None:
    """Also bytes that are no UTF-8: aiohttp hands them over as surrogates."""
    access = an_access(a_security())

    for header in (text, f"Bearer {text}", f"Bearer key-ana.{text}"):
        with pytest.raises(UnauthenticatedError):
            access.authenticate(header, source=HERE)
    assert not PROOFS.is_node("GET", "/", {"Paceline-Node": text})
    assert not PROOFS.is_node(
        "GET", "/", {**proof_of(PROOFS, "GET", "/"), "Authorization": text or "x"}
    )


def test_a_key_ends_with_its_time_with_its_user_and_when_it_is_revoked() -> None:
    clock = ManualClock()
    access = Access(clock)
    key = AccessKey(
        digest=digest_of(SECRETS["ana"]), created_unix_ms=0, expires_unix_ms=clock.unix_ms() + 10
    )
    security = a_security().with_user("ana", User(keys={"key-ana": key}))
    access.apply(security)
    asker = of(access, "ana")

    clock.advance(10)
    with pytest.raises(UnauthenticatedError, match="expired"):
        access.check_valid(asker.principal)
    access.apply(security.with_user("ana", User(is_enabled=False, keys={"key-ana": key})))
    with pytest.raises(UnauthenticatedError, match="disabled"):
        access.check_valid(asker.principal)
    access.apply(access.security.with_user("ana", User()))
    with pytest.raises(UnauthenticatedError, match="revoked"):
        access.check_valid(asker.principal)


def a_login(access: Access, user: str, *, expires_unix_ms: int, logins: int = 0) -> str:
    token = LoginToken(user, logins, expires_unix_ms, "abc")
    access_key, secret = write_token(token, cluster_id="", secrets=lambda: (b"secret",))
    return f"Bearer {access_key}.{secret}"


def test_a_login_ends_with_its_time_with_all_logins_and_with_its_user() -> None:
    clock = ManualClock()
    access = Access(clock, tokens=Tokens(lambda: (b"newer", b"secret")))
    security = a_security()
    access.apply(security)
    shown = a_login(access, "ana", expires_unix_ms=clock.unix_ms() + 10)
    principal = access.authenticate(shown, source=HERE)
    assert (principal.user, principal.access_key) == ("ana", "login-abc")

    for changed, why in (
        (User(logins=1), "ended"),
        (User(is_enabled=False), "disabled"),
    ):
        access.apply(access.security.with_user("ana", changed))
        with pytest.raises(UnauthenticatedError, match=why):
            access.check_valid(principal)
        with pytest.raises(UnauthenticatedError, match=why):
            access.authenticate(shown, source=HERE)
    access.apply(access.security.with_user("ana", User()))
    access.check_valid(principal)
    clock.advance(10)
    with pytest.raises(UnauthenticatedError, match="expired"):
        access.check_valid(principal)


def test_a_login_that_no_node_has_made_is_none() -> None:
    access = Access(ManualClock(), tokens=Tokens(lambda: (b"another",)))
    access.apply(a_security())

    with pytest.raises(UnauthenticatedError, match="no node of this cluster"):
        access.authenticate(a_login(access, "ana", expires_unix_ms=2**60), source=HERE)


def test_needs_are_checked_for_each_thing_that_a_request_names() -> None:
    access = an_access(a_security(ana=(entry("Topic:orders", SUB), entry("Group:billing", SUB))))
    ana = of(access, "ana")

    def commit(*topic_ids: int, group: str = "billing") -> Commit:
        rows = [CommitRow(topic_id=each, queue=0, offset=0) for each in topic_ids]
        return Commit(group=group, offsets=rows)

    ana.check_request(commit(1, 2))  # retries of a group are the group's
    with pytest.raises(NotAuthorizedError) as refused:
        ana.check_request(commit(1, group="other"))
    assert refused.value.details == {
        "user": "ana",
        "resource": "Group:other",
        "actions": ["Sub"],
        "rule": "no policy of ana matches",
    }
    assert "paceline acl set ana --resource Group:other --actions Sub" in refused.value.message


def test_what_a_refusal_advises_takes_no_right_away() -> None:
    access = an_access(a_security(ana=(entry("Topic:orders", SUB),)))

    with pytest.raises(NotAuthorizedError) as refused:
        of(access, "ana").check_topic("orders", PUB)

    message = refused.value.message
    assert "the custom policy of ana allows only Sub on it" in message
    assert "paceline acl set ana --resource Topic:orders --actions Sub,Pub" in message


def test_a_refusal_tells_no_name_to_whoever_tries_numbers() -> None:
    """Of topics and groups of other namespaces, above all."""
    access = an_access(a_security(ana=(entry("Topic:orders", PUB),)))
    for topic_id in (1, 2):
        with pytest.raises(NotAuthorizedError) as refused:
            of(access, "bob").check_topic(topic_id, SUB)
        told = str(refused.value.details) + refused.value.message
        assert "orders" not in told
        assert "billing" not in told
        assert refused.value.details["resource"] == f"Topic:{topic_id}"
    with pytest.raises(NotAuthorizedError) as seen:
        of(access, "ana").check_topic(1, SUB)
    assert seen.value.details["resource"] == "Topic:orders", "she sees it in lists"


def test_what_was_decided_does_not_outlive_the_version_it_was_decided_by() -> None:
    allowed = a_security(ana=(entry("Topic:orders", PUB),))
    access = an_access(allowed)
    ana = of(access, "ana")
    told: list[int] = []
    access.on_change(lambda: told.append(access.version))
    ana.check_topic("orders", PUB)

    assert not access.apply(a_security(version=1))
    access.apply(a_security(version=2))

    with pytest.raises(NotAuthorizedError):
        ana.check_topic("orders", PUB)
    assert told == [2]


def test_in_a_dry_run_nothing_is_refused_and_everything_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access = an_access(a_security(mode=Mode.DRY_RUN))

    with caplog.at_level(logging.WARNING, "paceline.security"):
        asker = Asker(access, access.authenticate("Bearer a.b", source=HERE))
        asker.check_topic("orders", PUB)
        asker.check_topic("orders", PUB)

    assert access.would_refuse_count == 2
    told = [record.msg for record in caplog.records]
    assert told == ["not_authenticated", "would_be_refused"], "a refusal once for a version"
    assert asker.sees_topic("orders")


def test_refusals_of_one_user_do_not_silence_those_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access = an_access(a_security(mode=Mode.DRY_RUN))
    nobody = Asker(access, access.authenticate(None, source=HERE))
    most = access_module.TOLD_OF_USER_MAX

    with caplog.at_level(logging.WARNING, "paceline.security"):
        for number in range(2 * most):
            nobody.check_topic(f"made-up-{number}", PUB)
        of(access, "ana").check_topic("orders", PUB)

    *many, full, last = caplog.records
    assert [record.msg for record in many] == ["would_be_refused"] * most
    assert (full.msg, vars(full)["user"]) == ("refusals_not_told", "anonymous"), "said once"
    assert (last.msg, vars(last)["user"]) == ("would_be_refused", "ana")
    assert access.would_refuse_count == 2 * most + 1

    caplog.clear()
    access.apply(a_security(mode=Mode.DRY_RUN, version=2))
    nobody.check_topic("orders", PUB)
    assert [record.msg for record in caplog.records] == ["would_be_refused"]


def test_in_a_dry_run_whoever_does_not_count_any_more_goes_on_and_is_counted() -> None:
    access = an_access(a_security(mode=Mode.DRY_RUN, ana=(entry("Topic:orders", PUB),)))
    ana = of(access, "ana")._replace(granted=Granted())
    access.apply(access.security.with_user("ana", User(is_enabled=False)))

    ana.check_topic("orders", PUB)

    assert ana.still_holds()
    assert access.unauthenticated_count == 1


def test_in_a_dry_run_a_certificate_of_nobody_is_let_in_and_counted() -> None:
    access = an_access(a_security(mode=Mode.DRY_RUN))
    assert access.authenticate_certificate({"unknown"}, source=HERE).user == "anonymous"
    assert access.unauthenticated_count == 1


def test_where_rights_are_off_nothing_is_looked_at() -> None:
    access = an_access(a_security(mode=Mode.OFF))
    asker = Asker(access, access.authenticate("nonsense", source=HERE))

    asker.check_topic("orders", PUB)
    assert not asker.sees_less


def test_an_asker_knows_whether_what_it_was_allowed_still_holds() -> None:
    both = (entry("Topic:orders", PUB), entry("Topic:news", PUB))
    access = an_access(a_security(ana=both))
    asker = of(access, "ana")._replace(granted=Granted())
    asker.check_topic("orders", PUB)

    access.apply(a_security(version=2, ana=both[:1]))
    assert asker.still_holds(), "it never sent to the other one"
    access.apply(a_security(version=3, ana=both[1:]))
    assert not asker.still_holds()


def test_a_node_may_do_everything_and_anonymous_is_none() -> None:
    access = an_access(a_security(anonymous=(entry("Topic:news", SUB),)))
    topic = Resource(ResourceType.TOPIC, "orders")

    assert access.may(Principal(NODE, HERE, is_node=True), topic, (PUB,))
    assert not access.may(Principal("anonymous", HERE), topic, (PUB,))
    assert not access.may(Principal(NODE, HERE), topic, (PUB,)), "a user called so is none"


@pytest.mark.parametrize("mode", Mode)
def test_a_user_has_its_default_namespace_also_while_rights_are_off(mode: Mode) -> None:
    security = a_security(mode=mode)
    ana = msgspec.structs.replace(security.users["ana"], namespace="shop")
    access = an_access(security.with_user("ana", ana))
    view = ClusterView(cluster_id="c", version=1)

    by_certificate = Asker(access, access.authenticate_certificate({"ana"}, source=HERE))
    for asker in (of(access, "ana"), by_certificate):
        assert asker.has_own_view
        assert visible(asker, view).namespace == "shop"
    for other in (of(access, "root"), Asker(access, access.authenticate(None, source=HERE))):
        assert visible(other, view).namespace == ""


def test_the_namespace_of_retries_and_dead_letters_decides_as_that_of_their_group() -> None:
    access = an_access(a_security(ana=(entry("Namespace:shop", SUB, PUB),)))
    ana = of(access, "ana")

    for topic in ("shop%orders", "%RETRY%shop%billing", "%DLQ%shop%billing"):
        ana.check_topic(topic, SUB)
    for topic in ("orders", "shops%orders", "%RETRY%billing", "%DLQ%shops%billing"):
        with pytest.raises(NotAuthorizedError):
            ana.check_topic(topic, SUB)


def test_a_certificate_is_for_one_user_who_must_count() -> None:
    access = an_access(a_security(ana=(entry("Topic:orders", PUB),)))

    ana = Asker(access, access.authenticate_certificate({"ana"}, source=HERE))
    ana.check_topic("orders", PUB)
    assert ana.principal == Principal("ana", HERE)
    assert access.authenticate_certificate(set(), source=HERE).user == "anonymous"
    for users in ({"eve"}, {"ana", "root"}, {"anonymous"}, {"node"}):
        with pytest.raises(UnauthenticatedError):
            access.authenticate_certificate(users, source=HERE)
    access.apply(access.security.with_user("ana", User(is_enabled=False)))
    assert not ana._replace(granted=Granted()).still_holds()


def test_a_node_proves_its_request_and_no_other() -> None:
    def a_proof() -> dict[str, str]:
        told = proof_of(
            PROOFS, "POST", "/v1/call", b"{}", source="10.0.0.1", authorization="Bearer a"
        )
        return {**told, "Authorization": "Bearer a"}

    headers = a_proof()
    other = NodeProofs(
        ClusterSecrets(b"another secret of one"),
        node_id="c1",
        addresses=Everywhere,
        clock=SystemClock(),
        random=SystemRandom(),
    )

    assert not PROOFS.is_node("PUT", "/v1/call", headers)
    assert not PROOFS.is_node("POST", "/v1/calls", headers)
    for name, value in (
        (SOURCE_HEADER, "10.0.0.2"),
        (DIGEST_HEADER, "00" * 32),
        ("Authorization", "Bearer b"),
    ):
        assert not PROOFS.is_node("POST", "/v1/call", {**headers, name: value}), name
    for index in range(5):
        parts = headers[NODE_HEADER].split(" ")
        parts[index] = parts[index][:-1] + ("0" if parts[index][-1] != "0" else "1")
        changed = {**headers, NODE_HEADER: " ".join(parts)}
        assert not PROOFS.is_node("POST", "/v1/call", changed), index
    without_source = {name: each for name, each in headers.items() if name != SOURCE_HEADER}
    assert not PROOFS.is_node("POST", "/v1/call", without_source), "it would be the node's own"
    assert not other.is_node("POST", "/v1/call", headers)
    assert PROOFS.is_node("POST", "/v1/call", headers)


@pytest.mark.parametrize("source", ["", "10.0.0.1"])
def test_who_relays_never_asks_for_itself(source: str) -> None:
    """A user who breaks off his connection has no address: the node that relays is not asking."""
    relayed = proof_of(PROOFS, "PUT", "/v1/users/bob", source=source)
    assert relayed[SOURCE_HEADER] == source
    own = {name: each for name, each in relayed.items() if name != SOURCE_HEADER}
    assert not PROOFS.is_node("PUT", "/v1/users/bob", own)
    assert PROOFS.is_node("PUT", "/v1/users/bob", relayed)

    own = proof_of(PROOFS, "PUT", "/v1/users/bob")
    assert SOURCE_HEADER not in own
    assert not PROOFS.is_node("PUT", "/v1/users/bob", {**own, SOURCE_HEADER: source})


def test_who_has_no_address_is_nobody_while_rights_are_on() -> None:
    access = an_access(a_security())
    request = make_mocked_request("GET", "/v1/routes", headers=bearer("root"))
    assert request.remote is None
    with pytest.raises(UnauthenticatedError, match="came from"):
        _principal(access, PROOFS, request)
    access.apply(access.security.changed(mode=Mode.OFF))
    assert _principal(access, PROOFS, request).user == "anonymous"


def test_names_that_strangers_make_up_are_not_kept() -> None:
    access = an_access(a_security(ana=(entry("Topic:p-*", SUB),)))
    ana, nobody = of(access, "ana"), Asker(access, access.authenticate(None, source=HERE))
    for number in range(50):
        with pytest.raises(UnauthenticatedError):
            nobody.check_topic(f"p-{number}", SUB)
        ana.check_topic(f"p-{number}", SUB)
    assert len(access._verdicts) == 50, "of the user"
    for asker in (ana, nobody):
        with pytest.raises(BadNameError):
            asker.check_topic("p-" + "x" * 300, SUB)
    assert len(access._verdicts) == 50


def test_what_one_stream_was_allowed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "GRANTED_MAX", 10)
    access = an_access(a_security(ana=(entry("Topic:p-*", SUB),)))
    ana = of(access, "ana")._replace(granted=Granted())
    for number in range(9):
        ana.check_topic(f"p-{number}", SUB)
    assert ana.still_holds()
    for number in range(100):
        ana.check_topic(f"p-{number}", SUB)
    assert len(ana.granted or ()) == 10
    access.apply(a_security(version=2, ana=(entry("Topic:p-*", SUB),)))
    assert not ana.still_holds(), "nobody knows all that it was allowed: it comes again"


def test_to_move_a_group_back_needs_update() -> None:
    access = an_access(a_security(ana=(entry("Group:g", SUB), entry("Topic:t", SUB))))
    ana, rows = of(access, "ana"), [CommitRow(topic="t", queue=0, offset=0)]
    ana.check_request(Commit(group="g", offsets=rows))
    with pytest.raises(NotAuthorizedError, match="Update"):
        ana.check_request(Commit(group="g", offsets=rows, reset=True))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "c1",
        "c1 a - zz zz",
        "c1 a - 00 00",
        f"c1 {'0' * 32} {'0' * 64}",
        f"c1 there - {'0' * 32} {'0' * 64}",
    ],
)
def test_what_is_no_proof_proves_nothing(text: str) -> None:
    assert not PROOFS.is_node("GET", "/", {"Paceline-Node": text})


@pytest.mark.parametrize("mode", [None, Mode.OFF, Mode.DRY_RUN, Mode.ON])
def test_a_node_that_others_reach_enforces_rights_whatever_the_cluster_says(
    mode: Mode | None,
) -> None:
    access = Access(ManualClock(), is_closed=True)
    if mode is not None:
        access.apply(a_security(mode=mode))

    assert (access.is_on, access.is_enforced, access.mode) == (True, True, Mode.ON)
    with pytest.raises(UnauthenticatedError):
        Asker(access, access.authenticate(None, source=HERE)).check_topic("orders", PUB)
