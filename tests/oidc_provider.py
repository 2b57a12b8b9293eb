"""A small OpenID Connect provider on this machine: discovery, keys, sign-in and tokens.

Whoever is sent to it is signed in at once, as the person whose claims the test has set.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

CLIENT = "conductor-console"


class OidcProvider:
    """The provider; a context manager. `claims` is who signs in, `sign` makes any token."""

    def __init__(self) -> None:
        self.key: RSAKey | ECKey = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.claims: dict[str, Any] = {"sub": "4711", "email": "ada@example.org"}
        self.asked: list[str] = []
        self._nonces: dict[str, str] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._get(self)

            def do_POST(self) -> None:
                provider._token(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> OidcProvider:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def sign(self, *, key: Any = None, alg: str = "", kid: str | None = None, **claims: Any) -> str:
        """An ID token; claims of None are left out."""
        now, key = int(time.time()), key or self.key
        whole = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300}
        whole |= self.claims | claims
        header = {"alg": alg or ("ES256" if isinstance(key, ECKey) else "RS256")}
        header["kid"] = kid or key.kid
        kept = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(header, kept, key, algorithms=[header["alg"]])

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        self.asked.append(parts.path)
        if parts.path == "/.well-known/openid-configuration":
            _answer(request, self._about())
        elif parts.path == "/jwks":
            _answer(request, {"keys": [self.key.as_dict(private=False)]})
        elif parts.path == "/authorize":
            asked = {name: found[0] for name, found in parse_qs(parts.query).items()}
            code = f"code-{len(self._nonces)}"
            self._nonces[code] = asked.get("nonce", "")
            back = urlencode({"code": code, "state": asked["state"]})
            request.send_response(302)
            request.send_header("location", f"{asked['redirect_uri']}?{back}")
            request.end_headers()
        else:
            request.send_error(404)

    def _token(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers["content-length"])
        asked = parse_qs(request.rfile.read(length).decode())
        nonce = self._nonces.pop(asked["code"][0], None)
        token = self.sign(nonce=nonce or None)
        _answer(request, {"id_token": token, "access_token": "x", "token_type": "Bearer"})

    def _about(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        }


def _answer(request: BaseHTTPRequestHandler, found: object) -> None:
    body = json.dumps(found).encode()
    request.send_response(200)
    request.send_header("content-type", "application/json")
    request.send_header("content-length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
