"""An identity provider on a free port, and tokens that it might have made."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from tests.support.certificates import Authority

from paceline.platform.runtime import ManualClock
from paceline.security import oidc

ISSUER = "https://idp.example"
KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})
OTHER_KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})
RSA_KEY = RSAKey.generate_key(2048, parameters={"kid": "two"})
NOW_S = ManualClock().unix_ms() // 1000
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": "paceline", "sub": "ana", "exp": NOW_S + 100}


def public(*keys: ECKey | RSAKey) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys]}


def a_token(key: Any = KEY, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
    head = {"alg": "ES256", "kid": "one"} if header is None else header
    said = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(head, said, key, algorithms=["ES256", "RS256", "HS256", "none"])


@dataclass
class Idp:
    """A provider on a free port: what it answers can be changed."""

    issuer: str = ""
    authority: str = ""
    keys: dict[str, Any] = field(default_factory=lambda: public(KEY))
    document: dict[str, Any] = field(default_factory=dict)
    redirect: str = ""
    asked: list[str] = field(default_factory=list)

    async def discovery(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.redirect:
            raise web.HTTPFound(self.redirect)
        own = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}
        return web.json_response({**own, **self.document})

    async def jwks(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.json_response(self.keys)


@asynccontextmanager
async def an_idp(folder: Path) -> AsyncIterator[Idp]:
    authority = Authority(folder)
    files = authority.issue("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    idp = Idp(authority=authority.path)
    app = web.Application()
    app.add_routes([web.get(oidc.DISCOVERY_PATH, idp.discovery), web.get("/keys", idp.jwks)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
    await site.start()
    idp.issuer = f"https://localhost:{runner.addresses[0][1]}"
    try:
        yield idp
    finally:
        await runner.cleanup()
