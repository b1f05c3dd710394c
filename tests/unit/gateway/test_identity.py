"""Whose request it is that a client of RocketMQ has signed."""

import base64
import hashlib
import hmac
import logging
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import structs
from tests.support.controller.harness import SECRET, controllers, eventually
from tests.support.rights import SECRETS, a_security, bearer, entry

from paceline.cli.local.free_ports import free_ports
from paceline.errors import NotYetAvailableError, UnauthenticatedError
from paceline.platform.runtime import ManualClock, SystemClock, SystemRandom, cancel_and_wait, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.security.access import Access
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.security.sealed_keys import seal_key
from paceline.security.tokens import Tokens
from paceline.wire.rights import PUB
from paceline.wire.users import Mode, PolicyEntry, Security, User
from paceline_gateway.identity import _LATE, Authenticator, ToldSecurity

FAR = "192.0.2.7"
DATE = "20260301T101500Z"
HOUR_MS = 3_600_000
NOW = 1_772_360_100_000
"""The date."""


def signing(security: Security) -> Security:
    """Ana's key signs, and no other."""
    ana = security.users["ana"]
    sealed = seal_key(
        SECRETS["ana"],
        access_key="key-ana",
        cluster_id=security.cluster_id,
        secrets=(SECRET,),
        random=SystemRandom(),
    )
    key = structs.replace(ana.keys["key-ana"], sealed=sealed)
    kept = structs.replace(ana, keys={"key-ana": key}, namespace="shop")
    return structs.replace(security, users={**security.users, "ana": kept})


class Gate:
    """A gateway that knows some users."""

    def __init__(
        self,
        mode: Mode = Mode.ON,
        *,
        anonymous: tuple[PolicyEntry, ...] = (),
        allow_plaintext: bool = False,
    ) -> None:
        self.clock = ManualClock(unix_ms=NOW)
        self.access = Access(self.clock, tokens=Tokens(lambda: (SECRET,)))
        self.access.apply(signing(a_security(mode=mode, anonymous=anonymous)))
        self.refused: list[tuple[str, str, str]] = []
        self.door = Authenticator(
            self.access,
            clock=self.clock,
            allow_plaintext=allow_plaintext,
            on_refused=lambda door, source, error: self.refused.append(
                (door, source, error.message)
            ),
        )

    def grpc(
        self,
        access_key: str = "key-ana",
        *,
        signed: str = DATE,
        user: str = "ana",
        date: str | None = DATE,
        form: str = "MQv2-HMAC-SHA1 Credential={}, SignedHeaders=x-mq-date-time, Signature={}",
        **other: Any,
    ) -> Any:
        signature = hmac.digest(SECRETS[user].encode(), signed.encode(), "sha1").hex()
        given = {"source": FAR, "is_encrypted": True, **other}
        return self.door.grpc(form.format(access_key, signature), date, **given)


@pytest.mark.parametrize(
    "form",
    [
        "MQv2-HMAC-SHA1 Credential={}, SignedHeaders=x-mq-date-time, Signature={}",
        "MQv2-HMAC-SHA1 Credential={}//Rocketmq, SignedHeaders=x-mq-date-time, Signature={}",
        "MQv2-HMAC-SHA1 Credential={}/cn/x/Rocketmq,SignedHeaders=x-mq-date-time,Signature={}",
    ],
)
def test_a_call_is_of_the_user_whose_key_has_signed_its_date(form: str) -> None:
    found = Gate().grpc(form=form)

    assert (found.user, found.access_key, found.source, found.door, found.namespace) == (
        "ana",
        "key-ana",
        FAR,
        "grpc",
        "shop",
    )


def test_the_hexadecimal_may_be_of_either_case() -> None:
    gate = Gate()
    signature = hmac.digest(SECRETS["ana"].encode(), DATE.encode(), hashlib.sha1).hex().upper()
    shown = f"MQv2-HMAC-SHA1 Credential=key-ana, Signature={signature}"

    assert gate.door.grpc(shown, DATE, FAR, is_encrypted=True).user == "ana"


def test_a_password_is_refused_where_others_could_read_it() -> None:
    door = Gate().door

    door.check_encrypted(FAR, is_encrypted=True, what="a password")
    door.check_encrypted("127.0.0.1", is_encrypted=False, what="a password")
    Gate(allow_plaintext=True).door.check_encrypted(FAR, is_encrypted=False, what="a password")
    with pytest.raises(UnauthenticatedError, match="a password that is not encrypted"):
        door.check_encrypted(FAR, is_encrypted=False, what="a password")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"user": "bob"}, "another secret key"),
        ({"signed": "20260301T101501Z"}, "another secret key"),
        ({"access_key": "key-nobody"}, "unknown, or"),
        ({"access_key": "key-bob", "user": "bob"}, "paceline user add-key USER --signs"),
        ({"date": None}, "x-mq-date-time is missing"),
        ({"date": "yesterday", "signed": "yesterday"}, "no date"),
        ({"form": "Bearer {}.{}"}, "must begin with MQv2-HMAC-SHA1"),
        ({"form": "MQv2-HMAC-SHA1 Credential={}"}, "must have Credential=KEY and Signature"),
        ({"form": "MQv2-HMAC-SHA1 Credential={}, Signature=no{}"}, "Signature=HEXADECIMAL"),
        ({"access_key": ""}, "give this client an access key that signs"),
        ({"is_encrypted": False}, "allow_plaintext = true"),
    ],
)
def test_what_is_not_signed_by_a_users_key_is_nobodys(change: dict[str, Any], why: str) -> None:
    gate = Gate()

    with pytest.raises(UnauthenticatedError, match=why):
        gate.grpc(**change)
    assert gate.access.unauthenticated_count == 1


@pytest.mark.parametrize("date", [DATE, "2026-03-01T12:15:00.123456789+02:00"])
@pytest.mark.parametrize("hours", [-14, 0, 26])
def test_a_date_may_be_a_local_time(date: str, hours: int) -> None:
    gate = Gate()
    gate.clock.step_wall(hours * HOUR_MS)

    assert gate.grpc(date=date, signed=date).user == "ana"


@pytest.mark.parametrize("hours", [-27, 27])
def test_a_date_of_another_day_is_refused(hours: int) -> None:
    gate = Gate()
    gate.clock.step_wall(hours * HOUR_MS)

    with pytest.raises(UnauthenticatedError, match="more than a day away"):
        gate.grpc()


def test_whoever_shows_nothing_is_told_what_to_show() -> None:
    with pytest.raises(UnauthenticatedError, match="paceline user add-key USER --signs"):
        Gate().door.grpc(None, None, FAR)

    some = Gate(anonymous=(entry("Topic:open", PUB),)).door.grpc(None, None, FAR)
    assert (some.user, some.door) == ("anonymous", "grpc")


def test_while_rights_are_off_a_signature_says_only_where_names_are() -> None:
    gate = Gate(Mode.OFF)

    for found in (gate.grpc(), gate.grpc(is_encrypted=False)):
        assert found.user == "anonymous"
    assert gate.grpc().namespace == "shop"
    assert gate.grpc(user="bob").namespace == ""


def test_on_the_own_machine_or_where_one_says_so_a_signature_need_not_be_encrypted() -> None:
    assert Gate().grpc(source="127.0.0.1", is_encrypted=False).user == "ana"
    assert Gate(allow_plaintext=True).grpc(is_encrypted=False).user == "ana"


def test_a_certificate_says_who_it_is_where_nothing_is_signed() -> None:
    found = Gate().door.remoting(None, b"", FAR, certified=("bob",), is_encrypted=True)

    assert (found.user, found.access_key, found.door) == ("bob", "", "remoting")


@pytest.mark.parametrize(("version", "has_flag"), [(399, False), (401, True)])
def test_a_remoting_request_is_signed_over_its_fields_by_name_and_its_body(
    version: int, *, has_flag: bool
) -> None:
    fields = {"topic": "orders", "AccessKey": "key-ana", "_UNIQUE_KEY_QUERY": "true", "b": "2"}
    content = "key-ana" + ("true" if has_flag else "") + "2" + "orders"
    signature = hmac.digest(SECRETS["ana"].encode(), content.encode() + b"body", "sha1")
    shown = {**fields, "Signature": base64.b64encode(signature).decode()}
    door = Gate().door

    found = door.remoting(shown, b"body", FAR, version=version, is_encrypted=True)
    assert (found.user, found.access_key, found.door) == ("ana", "key-ana", "remoting")
    for fields, body in ((shown, b"bodY"), ({**shown, "topic": "other"}, b"body")):
        with pytest.raises(UnauthenticatedError, match="another secret key"):
            door.remoting(fields, body, FAR, version=version, is_encrypted=True)
    for signature_text in ("", "###"):
        with pytest.raises(UnauthenticatedError, match="no Signature in base64"):
            door.remoting({**shown, "Signature": signature_text}, b"", FAR, is_encrypted=True)


def test_a_key_that_was_revoked_signs_no_more() -> None:
    gate = Gate()
    found = gate.grpc()

    gate.access.apply(gate.access.security.with_user("ana", User()))

    with pytest.raises(UnauthenticatedError, match="unknown, or"):
        gate.grpc()
    with pytest.raises(UnauthenticatedError, match="revoked"):
        gate.door.check_valid(found)


def test_a_gateway_that_knows_no_users_yet_says_so() -> None:
    access = Access(SystemClock(), is_current=lambda: False)
    door = Authenticator(access, clock=SystemClock(), allow_plaintext=False)

    with pytest.raises(NotYetAvailableError):
        door.grpc(None, None, FAR)


# -- what controllers tell ------------------------------------------------------------------------


def a_gateway(access: Access, addresses: list[str], *, secret: bytes = SECRET) -> ToldSecurity:
    proofs = NodeProofs(
        ClusterSecrets(secret),
        node_id="gateway",
        addresses=lambda: (),
        clock=SystemClock(),
        random=SystemRandom(),
    )
    return ToldSecurity(
        access, controllers=addresses, proofs=proofs, dial=Dial(), random=SystemRandom()
    )


async def test_a_gateway_is_told_users_and_rights_at_once_and_as_they_change() -> None:
    async with controllers(2) as cluster:
        access = Access(SystemClock(), tokens=Tokens(lambda: (SECRET,)))
        told = a_gateway(access, [str(each) for each in cluster.addresses])
        running = spawn(told.run(), name="told")
        try:
            await told.known.wait()
            assert access.mode is Mode.OFF
            key = {"secret_key": SECRETS["ana"], "signs": True}
            for path, document in (
                ("/v1/users/ana", {"type": "Super", "new": True}),
                ("/v1/users/ana/keys/key-ana", key),
                ("/v1/security", {"mode": "on"}),
            ):
                assert (await cluster.ask("PUT", path, document))[0] == 200
            await eventually(lambda: access.mode is Mode.ON, "the gateway was told")
        finally:
            await cancel_and_wait(running)
        door = Authenticator(access, clock=SystemClock(), allow_plaintext=True)
        fields = {"AccessKey": "key-ana"}
        signature = hmac.digest(SECRETS["ana"].encode(), b"key-ana", "sha1")
        fields["Signature"] = base64.b64encode(signature).decode()

        assert door.remoting(fields, b"", FAR).user == "ana"


async def test_nobody_but_nodes_is_told_all_users(caplog: pytest.LogCaptureFixture) -> None:
    path = "/v1/security/watch?from=-1"
    async with controllers() as cluster:
        nobody, _ = await cluster.ask("GET", path)
        cluster.leader.access.apply(a_security())
        root, _ = await cluster.ask("GET", path, headers=bearer("root"))
        access = Access(SystemClock())
        told = a_gateway(access, [str(cluster.addresses[0])], secret=b"another secret, made up")
        running = spawn(told.run(), name="told")
        await eventually(lambda: "security_not_told" in caplog.text, "it was refused")
        await cancel_and_wait(running)

    assert (nobody, root) == (403, 403)
    assert not told.known.is_set()
    assert "does not accept that this gateway is a node of its cluster" in told.why_not


async def test_a_gateway_says_why_no_controller_tells_it_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as broker:
        free = free_ports(1, host="127.0.0.1")[0]
        addresses = [f"127.0.0.1:{broker.port}", f"127.0.0.1:{free}"]
        told = a_gateway(Access(SystemClock()), addresses)
        running = spawn(told.run(), name="told")
        await eventually(lambda: len(asked) > _LATE + 1, "it tried often")
        await cancel_and_wait(running)

    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    whys = sorted(getattr(each, "why") for each in warned)  # noqa: B009
    assert len(whys) == 2, whys
    assert any(f"{addresses[0]} is no controller" in why for why in whys)
    assert any(f"{addresses[1]} cannot be reached" in why for why in whys)


def test_whoever_is_refused_is_told_of_with_door_source_and_why() -> None:
    gate = Gate()
    for refused in (
        lambda: gate.grpc(user="bob"),
        lambda: gate.grpc(is_encrypted=False),
        lambda: gate.door.grpc(None, None, FAR, certified={"nobody-known"}),
        lambda: gate.door.remoting({}, b"", FAR),
    ):
        with pytest.raises(UnauthenticatedError):
            refused()
    gate.grpc()

    assert [(door, source) for door, source, _ in gate.refused] == [
        *[("grpc", FAR)] * 3,
        ("remoting", FAR),
    ]
    whys = ("another secret key", "not encrypted", "no user nobody-known", "give this client")
    for why, (_, _, told) in zip(whys, gate.refused, strict=True):
        assert why in told
