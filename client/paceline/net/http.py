"""HTTP with JSON to any node: problem documents become errors, every wait has an end."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import aiohttp
import orjson
from yarl import URL

from paceline.errors import (
    DeadlineError,
    NotAuthorizedError,
    OutcomeUnknownError,
    PacelineError,
    PeerError,
    UnauthenticatedError,
    from_problem,
    in_words,
)
from paceline.net.connect import Shown

BATCH_MEDIA_TYPE = "application/vnd.paceline.batch"


class Proofs(Protocol):
    """Shows that one holds the cluster's secret (`security.node_proof`)."""

    def request(
        self,
        http: aiohttp.ClientSession,
        method: str,
        address: str,
        path: str,
        *,
        url: str,
        body: bytes = b"",
        **options: Any,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The answer of the node at `address`; `path` with its query, as it is sent."""


class HttpClient:
    """Owner of an aiohttp session; `close` ends it. Addresses are "host:port"."""

    def __init__(
        self,
        *,
        source_host: str = "",
        credentials: Shown | None = None,
        tls: ssl.SSLContext | None = None,
        proofs: Proofs | None = None,
    ) -> None:
        """`source_host`: where connections start from; empty: the system chooses."""
        self._credentials = credentials
        self._proofs = proofs
        self._tls = tls
        self.is_encrypted = tls is not None
        self._scheme = "http" if tls is None else "https"
        self._source = (source_host, 0) if source_host else None
        self._session: aiohttp.ClientSession | None = None

    async def get(
        self, address: str, path: str, *, params: Mapping[str, str] | None = None, timeout_ms: int
    ) -> dict[str, Any]:
        """GET a JSON object. PeerError: not reached or no JSON; DeadlineError; the node's error."""
        return await self._json("GET", address, path, params, None, {}, timeout_ms)

    async def get_if_answered(
        self, address: str, path: str, *, timeout_ms: int
    ) -> dict[str, Any] | None:
        """As `get`; None from a node that does not answer, which is part of the picture.
        NotAuthorizedError, UnauthenticatedError: the picture is not for this user."""
        try:
            return await self.get(address, path, timeout_ms=timeout_ms)
        except (NotAuthorizedError, UnauthenticatedError):
            raise
        except PacelineError:
            return None

    async def send(
        self,
        method: str,
        address: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int,
    ) -> dict[str, Any]:
        """A request that may change something, with a JSON body.

        PeerError (definite): never sent. OutcomeUnknownError, DeadlineError: it may have happened.
        """
        body = None if document is None else orjson.dumps(document)
        media = {} if body is None else {"Content-Type": "application/json"}
        headers = {**media, **(headers or {})}
        return await self._json(method, address, path, None, body, headers, timeout_ms)

    async def post_bytes(
        self, address: str, path: str, body: bytes, *, content_type: str, timeout_ms: int
    ) -> tuple[str, bytes]:
        """POST bytes; (content type, body) of the answer. Errors as for `send`."""
        headers = {"Content-Type": content_type, "Accept": content_type}
        return await self._exchange("POST", address, path, None, body, headers, timeout_ms)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _json(
        self,
        method: str,
        address: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_ms: int,
    ) -> dict[str, Any]:
        _, content = await self._exchange(method, address, path, params, body, headers, timeout_ms)
        if not content:
            return {}
        document = _parsed(content)
        if not isinstance(document, dict):
            raise PeerError(f"{address}{path} answered no JSON object")
        return document

    async def _exchange(
        self,
        method: str,
        address: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_ms: int,
    ) -> tuple[str, bytes]:
        if self._credentials is not None:
            shown = self._credentials.authorization(address, is_encrypted=self.is_encrypted)
            headers = {**headers, "Authorization": shown}
        url = URL(f"{self._scheme}://{address}{path}").extend_query(params or {})
        if self._session is None:
            # No total timeout of aiohttp's own: ours below covers the whole exchange.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(local_addr=self._source),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        try:
            async with (
                asyncio.timeout(timeout_ms / 1000),
                self._asking(self._session, method, address, url, body, headers) as response,
            ):
                content = await response.read()
                if response.status >= 400:
                    raise _problem(address, path, response.status, content)
                return response.content_type, content
        except TimeoutError:
            raise DeadlineError(
                f"{address} did not answer {method} {path} within {timeout_ms} ms"
            ) from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = error.certificate_error
            raise PeerError(f"the certificate of {address} is refused: {why}") from error
        except aiohttp.ClientConnectorSSLError as error:
            raise PeerError(f"TLS with {address} failed: {error.os_error}") from error
        except aiohttp.ClientConnectorError as error:
            raise PeerError(f"{address} cannot be reached: {error.os_error}") from error
        except (aiohttp.ClientError, OSError) as error:
            message = f"{address} broke off {method} {path}: {in_words(error)}"
            if isinstance(error, aiohttp.ClientResponseError):
                message += "; or it is another port, as one of a gateway's doors"
            if method == "GET":
                raise PeerError(message) from error
            raise OutcomeUnknownError(message) from error

    def _asking(
        self,
        session: aiohttp.ClientSession,
        method: str,
        address: str,
        url: URL,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        options: dict[str, Any] = {
            "headers": headers,
            "allow_redirects": False,  # no node sends any, and a key goes nowhere else
            "ssl": True if self._tls is None else self._tls,
        }
        if self._proofs is None:
            return session.request(method, url, data=body, **options)
        path = url.raw_path_qs
        return self._proofs.request(
            session, method, address, path, url=str(url), body=body or b"", **options
        )


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _problem(address: str, path: str, status: int, content: bytes) -> PacelineError:
    document = _parsed(content)
    if isinstance(document, dict) and "code" in document:
        return from_problem(document)
    return PeerError(f"{address}{path} answered HTTP {status} without a problem document")
