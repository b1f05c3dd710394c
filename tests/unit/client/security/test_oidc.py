"""Tokens of an identity provider: a real one over HTTPS, and every way in which a token is none."""

import base64
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.controller.harness import eventually
from tests.support.idp import (
    CLAIMS,
    ISSUER,
    KEY,
    NOW_S,
    OTHER_KEY,
    RSA_KEY,
    Idp,
    a_token,
    an_idp,
    public,
)
from tests.support.rights import a_security

from paceline.errors import ConfigError, UnauthenticatedError
from paceline.net.connect import TokenFile, credentials_of
from paceline.platform.address import Address
from paceline.platform.runtime import ManualClock, cancel_and_wait, spawn
from paceline.security import oidc
from paceline.security.access import Access
from paceline.security.node_settings import NodeSettings
from paceline.security.oidc import IdentityProvider, open_identity_provider
from paceline.security.tokens import Tokens

CLOCK = ManualClock()


SETTINGS = NodeSettings(
    listen=Address("127.0.0.1", 0), secret_file="none", oidc_issuer=ISSUER, oidc_audience="paceline"
)


def a_provider(**settings: Any) -> IdentityProvider:
    provider = IdentityProvider(replace(SETTINGS, **settings), CLOCK)
    provider.apply(public(KEY, RSA_KEY))
    return provider


@pytest.mark.parametrize("audience", ["paceline", ["other", "paceline"]])
def test_a_token_is_its_users_until_it_ends(audience: object) -> None:
    assert a_provider().read(a_token(aud=audience)) == ("ana", (NOW_S + 100) * 1000)
    rsa = a_token(RSA_KEY, header={"alg": "RS256", "kid": "two"})
    assert a_provider().read(rsa)[0] == "ana"
    named = a_token(email="ana@example.org")
    assert a_provider(oidc_user_claim="email").read(named)[0] == "ana@example.org"


def base64_text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def by_hand(algorithm: str) -> str:
    """What is signed of a token, with a header that the library does not make."""
    head = orjson.dumps({"alg": algorithm, "kid": "one"})
    return f"{base64_text(head)}.{base64_text(orjson.dumps(CLAIMS))}"


def signed_with_what_everybody_knows() -> str:
    """HMAC with the public key as its secret: the oldest trick."""
    mac = hmac.digest(KEY.as_pem(private=False), by_hand("HS256").encode(), "sha256")
    return f"{by_hand('HS256')}.{base64_text(mac)}"


BAD = {
    "another key": a_token(OTHER_KEY),
    "expired": a_token(exp=NOW_S - 61),
    "no end": a_token(exp=None),
    "an end that is no time": a_token(exp="soon"),
    "not yet": a_token(nbf=NOW_S + 61),
    "another issuer": a_token(iss="https://other.example"),
    "no issuer": a_token(iss=None),
    "for another": a_token(aud="other"),
    "for nobody": a_token(aud=None),
    "of nobody": a_token(sub=None),
    "of a number": a_token(sub=7),
    "a key nobody has": a_token(header={"alg": "ES256", "kid": "three"}),
    "another signature": a_token()[:-4] + "AAAA",
    "not signed": by_hand("none") + ".",
    "a public key as secret": signed_with_what_everybody_knows(),
    "no JSON": "a.b.c",
    "nothing": "..",
    "no text": "\udcff.\udcff.\udcff",
}


@pytest.mark.parametrize("name", BAD)
def test_any_other_token_is_none(name: str) -> None:
    with pytest.raises(UnauthenticatedError) as refused:
        a_provider().read(BAD[name])
    assert "eyJ" not in refused.value.message, "what was shown is not told"


def test_a_known_token_ends_with_its_time_and_with_its_key() -> None:
    clock = ManualClock()
    provider = IdentityProvider(SETTINGS, clock)
    provider.apply(public(KEY))
    token = a_token()
    provider.read(token)

    provider.apply(public(OTHER_KEY))
    with pytest.raises(UnauthenticatedError, match="none of https://idp.example"):
        provider.read(token)
    provider.apply(public(KEY))
    provider.read(token)
    clock.advance(100_000)
    with pytest.raises(UnauthenticatedError, match="expired"):
        provider.read(token)


def test_a_token_counts_only_for_a_user_that_the_cluster_knows() -> None:
    access = Access(CLOCK, tokens=Tokens(provider=a_provider()))
    access.apply(a_security())

    principal = access.authenticate(f"Bearer {a_token()}", source="10.0.0.1")
    assert (principal.user, principal.access_key) == ("ana", "token")
    with pytest.raises(UnauthenticatedError, match="no user eve"):
        access.authenticate(f"Bearer {a_token(sub='eve')}", source="10.0.0.1")
    without = Access(CLOCK)
    without.apply(a_security())
    with pytest.raises(UnauthenticatedError):
        without.authenticate(f"Bearer {a_token()}", source="10.0.0.1")
    access.apply(access.security.changed(users={}))
    with pytest.raises(UnauthenticatedError, match="no user ana"):
        access.check_valid(principal)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (replace(SETTINGS, oidc_audience=""), "belong together"),
        (replace(SETTINGS, oidc_issuer=""), "belong together"),
        (replace(SETTINGS, oidc_issuer="http://idp.example"), "must begin with https"),
        (replace(SETTINGS, oidc_issuer="file:///etc/passwd"), "must begin with https"),
    ],
)
def test_settings_that_do_not_go_together_are_told(settings: NodeSettings, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings.require_protection({})


def test_without_an_issuer_there_is_no_provider() -> None:
    without = replace(SETTINGS, oidc_issuer="", oidc_audience="")
    assert open_identity_provider(without, CLOCK) is None
    assert open_identity_provider(SETTINGS, CLOCK) is not None
    with pytest.raises(ConfigError, match="oidc_ca: cannot use /nowhere"):
        open_identity_provider(replace(SETTINGS, oidc_ca="/nowhere"), CLOCK)


# -- fetching -------------------------------------------------------------------------------------


@asynccontextmanager
async def watching(idp: Idp, **changes: Any) -> AsyncIterator[IdentityProvider]:
    settings = replace(SETTINGS, oidc_issuer=idp.issuer, oidc_ca=idp.authority)
    provider = IdentityProvider(replace(settings, **changes), CLOCK)
    task = spawn(provider.watch(), name="provider")
    try:
        yield provider
    finally:
        await cancel_and_wait(task)


async def test_keys_are_fetched_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "FETCH_INTERVAL_MS", 1)
    async with an_idp(tmp_path) as idp, watching(idp) as provider:
        await eventually(lambda: provider.fetched_count, "the keys are here")
        token = a_token(iss=idp.issuer)
        assert provider.read(token)[0] == "ana"

        idp.keys = public(OTHER_KEY)
        seen = provider.fetched_count
        await eventually(lambda: provider.fetched_count > seen + 1, "the new keys are here")
        assert provider.read(a_token(OTHER_KEY, iss=idp.issuer))[0] == "ana"
        with pytest.raises(UnauthenticatedError):
            provider.read(token)

        idp.keys = {"keys": [{"kty": "oct", "k": "AAAA"}]}
        await eventually(lambda: provider.failed_count, "no key of the provider is a secret")
        assert provider.read(a_token(OTHER_KEY, iss=idp.issuer))[0] == "ana", "the last ones count"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"document": {"issuer": "https://other.example"}}, "says that it is"),
        ({"document": {"jwks_uri": "http://127.0.0.1:1/keys"}}, "is not https"),
        ({"document": {"jwks_uri": "file:///etc/passwd"}}, "is not https"),
        ({"document": {"jwks_uri": None}}, "is not https"),
        ({"redirect": "https://127.0.0.1:1/"}, "answered 302"),
        ({"keys": {"keys": 7}}, "cannot be read"),
        ({"keys": {"keys": [{"kty": "EC"}]}}, "cannot be read"),
        ({"keys": {"keys": "x" * 1_100_000}}, "more than"),
        ({"authority": ""}, "ertificate"),
    ],
)
async def test_a_provider_that_answers_wrongly_is_told_and_no_token_counts(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    async with an_idp(tmp_path) as idp:
        for name, value in changes.items():
            setattr(idp, name, value)
        async with watching(idp) as provider:
            await eventually(lambda: provider.failed_count, "the fetch has failed")
            with pytest.raises(UnauthenticatedError, match=why):
                provider.read(a_token(iss=idp.issuer))


def test_a_token_in_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a.b.c\n")
    shown = credentials_of({"PACELINE_TOKEN_FILE": str(path)})
    assert isinstance(shown, TokenFile)

    assert shown.authorization("127.0.0.1:1", is_encrypted=False) == "Bearer a.b.c"
    path.write_text("d.e.f")
    assert shown.authorization("10.0.0.1:1", is_encrypted=True) == "Bearer d.e.f"
    with pytest.raises(ConfigError, match="not encrypted"):
        shown.authorization("10.0.0.1:1", is_encrypted=False)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read the token"):
        shown.authorization("127.0.0.1:1", is_encrypted=False)
    with pytest.raises(ConfigError, match="set one of them"):
        credentials_of({"PACELINE_TOKEN_FILE": "x", "PACELINE_ACCESS_KEY": "y"})
