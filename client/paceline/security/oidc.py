"""Tokens of an identity provider (OpenID Connect) in place of access keys.

A node fetches the provider's keys and checks tokens by itself: which algorithm, whose signature,
from whom, for whom, until when. Only the operator's settings say what is fetched, by https alone.
"""

import hashlib
import logging
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from paceline.errors import ConfigError, UnauthenticatedError
from paceline.platform.ports import Clock
from paceline.platform.runtime import pause
from paceline.platform.telemetry import Metrics
from paceline.security.node_settings import NodeSettings

log = logging.getLogger("paceline.security")

ALGORITHMS = ("RS256", "PS256", "ES256", "ES384")
"""That a signature may have; providers offer RS256 or ES256. Never "none", nor one with a shared
secret."""
LEEWAY_S = 60
"""Clocks of provider and node may differ by so much."""
FETCH_INTERVAL_MS, RETRY_INTERVAL_MS = 300_000, 10_000
FETCH_TIMEOUT_S = 5.0
DOCUMENT_BYTES_MAX = 1024 * 1024
KNOWN_MAX = 10_000
"""Tokens that were checked and are not checked again."""
DISCOVERY_PATH = "/.well-known/openid-configuration"


def open_identity_provider(settings: NodeSettings, clock: Clock) -> "IdentityProvider | None":
    """The one that `oidc_*` name; None without. ConfigError: a file or a package is missing."""
    if not settings.oidc_issuer:
        return None
    try:
        import joserfc  # noqa: F401  # an extra that few need
    except ImportError as error:
        raise ConfigError(
            "oidc_issuer is set, and the package joserfc is missing: pip install 'paceline[oidc]'"
        ) from error
    return IdentityProvider(settings, clock)


class IdentityProvider:
    """Checks tokens; `watch` keeps the keys current."""

    def __init__(self, settings: NodeSettings, clock: Clock) -> None:
        self._issuer = settings.oidc_issuer.rstrip("/")
        self._named_issuer = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._user_claim = settings.oidc_user_claim
        self._clock = clock
        try:
            self._tls = ssl.create_default_context(cafile=settings.oidc_ca or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"oidc_ca: cannot use {settings.oidc_ca}: {error}") from error
        self._keys: Any = None
        self._why = "it was not asked yet"
        self._known: dict[bytes, tuple[str, int]] = {}
        self.fetched_count = 0
        self.failed_count = 0

    # -- tokens -----------------------------------------------------------------------------------

    def read(self, token: str) -> tuple[str, int]:
        """The user that a token is for, and when it ends (Unix time, ms). UnauthenticatedError."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = self._known.get(digest)
        if found is None:
            found = self._checked(token)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[digest] = found
        user, expires_unix_ms = found
        if self._clock.unix_ms() >= expires_unix_ms:
            raise UnauthenticatedError(f"the token of {user} has expired; get a new one")
        return found

    def _checked(self, token: str) -> tuple[str, int]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        if self._keys is None:
            raise UnauthenticatedError(
                f"tokens cannot be checked: the keys of {self._issuer} are not here ({self._why})"
            )
        claims = jwt.JWTClaimsRegistry(
            now=self._clock.unix_ms() // 1000,
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._named_issuer},
            aud={"essential": True, "value": self._audience},
            exp={"essential": True},
        )
        try:
            read = jwt.decode(token, self._keys, algorithms=ALGORITHMS)
            claims.validate(read.claims)
        except (JoseError, ValueError, TypeError) as error:
            raise UnauthenticatedError(
                f"the token is none of {self._issuer} for {self._audience}:"
                f" {str(error) or type(error).__name__}"
            ) from error
        user = read.claims.get(self._user_claim)
        if not isinstance(user, str) or not user:
            raise UnauthenticatedError(f"the token has no claim {self._user_claim} with a text")
        return user, int(read.claims["exp"]) * 1000

    # -- keys -------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Fetch the keys now and then, until cancelled. A provider that cannot be reached changes
        nothing: the keys that were fetched count on."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S),
            connector=aiohttp.TCPConnector(ssl=self._tls, force_close=True),
        ) as http:
            while True:
                is_good = await self._fetch(http)
                await pause(FETCH_INTERVAL_MS if is_good else RETRY_INTERVAL_MS)

    async def _fetch(self, http: aiohttp.ClientSession) -> bool:
        try:
            found = await _document(http, self._issuer + DISCOVERY_PATH)
            if found.get("issuer") != self._named_issuer:
                raise ValueError(f"it says that it is {found.get('issuer')!r}")
            self.apply(await _document(http, str(found.get("jwks_uri"))))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._why = str(error) or type(error).__name__
            self.failed_count += 1
            log.warning("oidc_not_fetched", extra={"issuer": self._issuer, "why": self._why})
            return False
        self.fetched_count += 1
        return True

    def apply(self, document: Mapping[str, Any]) -> None:
        """Take a set of keys in place of the one of before. ValueError: it is none."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            keys = KeySet.import_key_set({"keys": [_public(key) for key in document["keys"]]})
        except (JoseError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its keys cannot be read: {error!r}") from error
        self._keys = keys
        self._known.clear()


def _public(key: Mapping[str, Any]) -> Any:
    """A key of the set. Signatures with a shared secret are not taken, whoever publishes one."""
    if key["kty"] not in ("RSA", "EC"):
        raise ValueError(f"a key of type {key['kty']!r}")
    return dict(key)


async def _document(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError, and what aiohttp raises."""
    if not url.startswith("https://"):
        raise ValueError(f"{url!r} is not https")
    async with http.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(f"{url} answered {answer.status}")
        content = bytearray()
        async for part in answer.content.iter_any():
            content += part
            if len(content) > DOCUMENT_BYTES_MAX:
                raise ValueError(f"{url} answered more than {DOCUMENT_BYTES_MAX} bytes")
    document = orjson.loads(content)
    if not isinstance(document, dict):
        raise ValueError(f"{url} answered no JSON object")
    return document


def register_oidc(metrics: Metrics, provider: IdentityProvider) -> None:
    """Metrics of the identity provider at a node."""
    metrics.sampled(
        "paceline_oidc_fetches_failed_total",
        "Times that the keys of the identity provider could not be fetched; alert when it grows.",
        lambda: provider.failed_count,
    )
