"""How a node of the cluster shows another one over HTTP that it is one.

A follower that relays a request vouches for where it came from: policies may name addresses. A
leader or a broker that asks a master something is no user, and may do what it asks. They hold the
cluster secret, and send a proof over the request: method, path, Authorization, and a digest of the
body, with which the body is compared when it is read (`server.http_guard`).

So that nobody repeats what he has overheard, a proof also covers the address of the node that it is
for, a nonce, and a challenge: random bytes that this node gave out. A challenge is good for one to
two minutes of that node's running time, or CHALLENGE_PROOFS_MAX to twice as many proofs, and so
long it remembers the nonces. Whoever has none, or an old one, is answered 401 with the present one,
before anything has been done, and asks once more. Wall clocks are not compared: they may be wrong.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from paceline.errors import UnauthenticatedError
from paceline.platform.ports import Clock, Random
from paceline.platform.runtime import SystemClock, SystemRandom
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import strangers
from paceline.security.delegation import Delegation, read_delegation
from paceline.wire.proof import (
    CHALLENGE_HEADER,
    DIGEST_HEADER,
    NODE_HEADER,
    NONCE_BYTES,
    PROOF_BYTES,
    SOURCE_HEADER,
    Statement,
)

CHALLENGE_MS = 60_000
"""A request that somebody held up is good for no longer than twice that."""
CHALLENGE_PROOFS_MAX = 4096
"""Nonces that are remembered: 0.5 MiB for both challenges."""
_NONE = "-"
_CHALLENGE = re.compile(f"[0-9a-f]{{{2 * NONCE_BYTES}}}")
_PEERS_MAX = 1024
"""Addresses whose challenge is kept; nodes are far fewer, and addresses change with them."""


class NodeProofs:
    """Makes and checks the headers; one for each node. Owned by its event loop."""

    def __init__(
        self,
        secrets: ClusterSecrets,
        *,
        node_id: str,
        addresses: Callable[[], Container[str]],
        clock: Clock,
        random: Random,
    ) -> None:
        """`addresses`: by which other nodes reach this one, as they know them."""
        self._secrets = secrets
        self._node_id = node_id
        self._addresses = addresses
        self._clock = clock
        self._random = random
        self._present = _Challenge(self._random.token(NONCE_BYTES), clock.monotonic_ms())
        self._past = self._present
        self._learned: dict[str, str] = {}

    # -- of requests to other nodes

    @asynccontextmanager
    async def request(
        self,
        http: aiohttp.ClientSession,
        method: str,
        address: str,
        path: str,
        *,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        source: str | None = None,
        **options: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of the node at `address`; `path` with its query, `url` as it is dialled.

        `source`: where a relayed request came from; None: the node asks for itself.
        """
        given = headers or {}
        for is_last in (False, True):
            proof = self.headers(
                method,
                address,
                path,
                body,
                source=source,
                authorization=given.get("Authorization", ""),
            )
            used = self._learned.get(address)
            async with http.request(
                method,
                URL(url, encoded=True),  # as the proof says
                data=body or None,
                headers={**given, **proof},
                **options,
            ) as answer:
                told = self.learn(address, answer.headers)
                is_refused = answer.status == UnauthenticatedError.status
                if is_last or not is_refused or told in (None, used):
                    yield answer
                    return

    def headers(
        self,
        method: str,
        address: str,
        path: str,
        body: bytes = b"",
        *,
        source: str | None = None,
        authorization: str = "",
    ) -> dict[str, str]:
        """Of one request, not to be sent twice."""
        nonce, digest = self._random.token(NONCE_BYTES), hashlib.sha256(body).hexdigest()
        challenge = self._learned.get(address, _NONE)
        parts = (self._node_id, address, challenge, method, path, digest, source or "")
        proof = _statement((*parts, authorization), nonce, is_relayed=source is not None).proof(
            self._secrets.current
        )
        said = (self._node_id, address, challenge, nonce.hex(), proof.hex())
        headers = {NODE_HEADER: " ".join(said), DIGEST_HEADER: digest}
        if source is not None:
            headers[SOURCE_HEADER] = source
        return headers

    def learn(self, address: str, headers: Mapping[str, str]) -> str | None:
        """The challenge that an answer tells of, if it does: what is said there covers it."""
        challenge = headers.get(CHALLENGE_HEADER)
        if challenge is None or _CHALLENGE.fullmatch(challenge) is None:
            return None
        if len(self._learned) >= _PEERS_MAX:
            self._learned.clear()
        self._learned[address] = challenge
        return challenge

    # -- of requests to this node

    @property
    def challenge(self) -> str:
        """What proofs are to cover now."""
        present, now_ms = self._present, self._clock.monotonic_ms()
        is_old = now_ms - present.since_ms >= CHALLENGE_MS
        if is_old or len(present.nonces) >= CHALLENGE_PROOFS_MAX:
            self._past = present
            self._present = _Challenge(self._random.token(NONCE_BYTES), now_ms)
        return self._present.text

    def is_node(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers comes from a node of this cluster.

        UnauthenticatedError: from one it is, but it is for another node, was sent before, or does
        not cover a challenge that is good: then the answer has `challenge`.
        """
        said = headers.get(NODE_HEADER, "").split(" ")
        if len(said) != 5:
            return False
        node_id, address, challenge = said[:3]
        try:
            nonce, proof = bytes.fromhex(said[3]), bytes.fromhex(said[4])
        except ValueError:
            return False
        if len(nonce) != NONCE_BYTES or len(proof) != PROOF_BYTES:
            return False
        digest, source = headers.get(DIGEST_HEADER, ""), headers.get(SOURCE_HEADER, "")
        parts = (node_id, address, challenge, method, path, digest, source)
        statement = _statement(
            (*parts, headers.get("Authorization", "")), nonce, is_relayed=SOURCE_HEADER in headers
        )
        if statement.proven_by(proof, self._secrets.all) is None:
            return False
        self._take(node_id, address, challenge, nonce)
        return True

    def delegated(self, authorization: str, *, cluster_id: str, is_relayed: bool) -> Delegation:
        """On whose behalf a gateway comes that shows this header. UnauthenticatedError.

        `is_relayed`: it came to another node, which was this one's to prove (`is_node`).
        """
        return read_delegation(
            authorization,
            cluster_id=cluster_id,
            secrets=self._secrets.all,
            now_unix_ms=self._clock.unix_ms(),
            addresses=None if is_relayed else self._addresses(),
        )

    def _take(self, node_id: str, address: str, challenge: str, nonce: bytes) -> None:
        """A proof is good once."""
        if address not in self._addresses():
            self._refuse(node_id, f"a request for the node at {address} came here")
        known = {self.challenge: self._present, self._past.text: self._past}.get(challenge)
        is_late = known is None or self._clock.monotonic_ms() - known.since_ms >= 2 * CHALLENGE_MS
        if known is None or is_late:
            raise UnauthenticatedError(
                "the proof of this node is of an old challenge: ask again", ask_again=True
            )
        if nonce in known.nonces:
            self._refuse(node_id, "a request came a second time: somebody repeats it")
        known.nonces.add(nonce)

    def _refuse(self, node_id: str, why: str) -> None:
        strangers.warning("node_proof_refused", extra={"of": node_id, "why": why})
        raise UnauthenticatedError(f"{why}; it is not carried out")


def proofs_of_operator(secrets: ClusterSecrets, *, name: str) -> NodeProofs:
    """Of whoever runs the nodes, and is none."""
    return NodeProofs(
        secrets, node_id=name, addresses=lambda: (), clock=SystemClock(), random=SystemRandom()
    )


class _Challenge:
    """What this node gave out, and the nonces of the proofs that cover it."""

    __slots__ = ("nonces", "since_ms", "text")

    def __init__(self, token: bytes, since_ms: int) -> None:
        self.text = token.hex()
        self.since_ms = since_ms
        self.nonces: set[bytes] = set()


def _statement(parts: tuple[str, ...], nonce: bytes, *, is_relayed: bool) -> Statement:
    """Of another purpose where a node relays: to leave its source out makes no node of a user."""
    said = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return Statement(
        purpose="http-relay" if is_relayed else "http",
        prover=hashlib.sha256(said).hexdigest(),
        own_nonce=nonce,
        peer_nonce=b"",
    )
