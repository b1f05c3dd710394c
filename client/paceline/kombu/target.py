"""The URL of a broker or a result backend, `paceline://host:port,host:port/namespace`.

    paceline://[access_key:secret_key@]host:port[,host:port ...][/namespace][?name=value&...]

An access key and its secret, a namespace, and in the query `tls_ca`, `tls_cert`, `tls_key` (PEM
files), `token_file`, and `allow_plaintext=1`; what they mean says `paceline.net.connect`.
"""

from urllib.parse import parse_qsl, unquote, urlsplit

from paceline.errors import ConfigError
from paceline.net.connect import ClientTls, ConnectSettings, Credentials, Shown, TokenFile

SCHEME = "paceline"
_KNOWN = frozenset({"tls_ca", "tls_cert", "tls_key", "token_file", "allow_plaintext"})


def connect_settings_of(url: str) -> ConnectSettings:
    """What the URL says; ConfigError says what is wrong with it."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME:
        raise ConfigError(f"a URL of paceline begins with {SCHEME}://, not with {parts.scheme}://")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(query.keys() - _KNOWN)
    if unknown:
        raise ConfigError(f"a URL of paceline has no {unknown[0]}: {', '.join(sorted(_KNOWN))}")
    user, _, addresses = parts.netloc.rpartition("@")
    if not addresses:
        raise ConfigError("a URL of paceline needs host:port of a controller or broker")
    namespace = unquote(parts.path.strip("/"))
    return ConnectSettings(
        addresses,
        credentials=_shown(user, query),
        tls=_tls(query),
        namespace=namespace or None,
    )


def masked(url: str, mask: str = "**") -> str:
    """The URL for people: without the secret key."""
    head, scheme, rest = url.partition("://")
    user, at, behind = rest.rpartition("@")
    access_key = user.partition(":")[0]
    return f"{head}{scheme}{access_key}:{mask}@{behind}" if at else url


def _shown(user: str, query: dict[str, str]) -> Shown | None:
    allow_plaintext = query.get("allow_plaintext") in ("1", "true")
    token_file = query.get("token_file", "")
    if token_file:
        if user:
            raise ConfigError("a URL has an access key or a token_file, not both")
        return TokenFile(path=token_file, allow_plaintext=allow_plaintext)
    if not user:
        return None
    access_key, _, secret_key = user.partition(":")
    if not access_key or not secret_key:
        raise ConfigError("an access key and its secret key go together: access_key:secret_key@")
    return Credentials(
        access_key=unquote(access_key),
        secret_key=unquote(secret_key),
        allow_plaintext=allow_plaintext,
    )


def _tls(query: dict[str, str]) -> ClientTls | None:
    if not query.get("tls_ca"):
        return None
    return ClientTls(
        ca_file=query["tls_ca"],
        cert_file=query.get("tls_cert", ""),
        key_file=query.get("tls_key", ""),
    )
