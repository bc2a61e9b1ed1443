"""A token endpoint as an OpenID provider has it (client_credentials, RS256, JWKS), and a broker that takes its tokens."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.helpers.secured_broker import SecuredBroker

CLIENT, SECRET = "pairing", "endpoint+secret/of=pairing"
AUDIENCE, SCOPE = "kafka", "events"


class TokenServer:
    """Answers at `url` (https) to whoever knows the secret, and at `keys_url` with its public key. Both may be changed while it runs."""

    def __init__(self, certificates: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.lifetime_s, self.audience, self.signed_by_stranger = 3600.0, AUDIENCE, False
        self.answer: tuple[int, dict[str, str]] | None = None
        """What it answers instead of a token: status and body."""
        self.given: list[str] = []
        """Every token that it gave."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._tokens, self._keys = (
            _HttpServer(("127.0.0.1", 0), handler) for handler in (_handler(self.token), _handler(self.keys))
        )
        self._tokens.socket = context.wrap_socket(self._tokens.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._tokens.server_address[1]}/token"
        self.keys_url = f"http://127.0.0.1:{self._keys.server_address[1]}/keys"

    @contextmanager
    def running(self) -> Iterator[TokenServer]:
        """It answers during the block."""
        for server in (self._tokens, self._keys):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            for server in (self._tokens, self._keys):
                server.shutdown()
                server.server_close()

    def token(self, authorization: str, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        """Status and body for a request of a token (RFC 6749, section 4.4)."""
        if self.answer is not None:
            status, body = self.answer
            return status, dict(body)
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if (client, unquote(secret)) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client", "error_description": f"not the secret of {client}"}
        if form.get("scope") != SCOPE:
            return 400, {"error": "invalid_scope"}
        now = time.time()
        claims = {
            "sub": client,
            "aud": self.audience,
            "iss": self.url,
            "scope": SCOPE,
            "iat": now,
            "exp": now + self.lifetime_s,
        }
        key = self._stranger if self.signed_by_stranger else self._key
        text = jwt.encode(claims, key, "RS256", {"kid": "tests"})
        self.given.append(text)
        return 200, {"access_token": text, "token_type": "Bearer", "expires_in": self.lifetime_s}

    def keys(self, *_: object) -> tuple[int, dict[str, object]]:
        """Status and body for a request of the public key."""
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        return 200, {"keys": [public | {"kid": "tests", "use": "sig", "alg": "RS256"}]}


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that does not trust the certificate hangs up; that is its matter."""


def _handler(answer):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            form = {name: values[0] for name, values in parse_qs(self.rfile.read(length).decode()).items()}
            status, body = answer(self.headers.get("Authorization", ""), form)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: the test counts what it answered."""

    return Handler


class TokenBroker(SecuredBroker):
    """A secured broker that takes the server's tokens, too, and asks for a new one where a connection outlives its own."""

    def __init__(self, folder: Path, certificates: Path, server: TokenServer) -> None:
        super().__init__(folder, certificates)
        self.server = server

    def _configure(self) -> None:
        super()._configure()
        security, listener = "org.apache.kafka.common.security.oauthbearer", "listener.name.login.oauthbearer"
        more = {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            f"{listener}.sasl.jaas.config": f"{security}.OAuthBearerLoginModule required;",
            f"{listener}.sasl.server.callback.handler.class": f"{security}.OAuthBearerValidatorCallbackHandler",
            f"{listener}.sasl.oauthbearer.jwks.endpoint.url": self.server.keys_url,
            f"{listener}.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{listener}.connections.max.reauth.ms": 3_600_000,
        }
        # The last of two lines of one name counts.
        with (self.folder / "server.properties").open("a") as settings:
            settings.writelines(f"{name}={value}\n" for name, value in more.items())

    def _command(self, program: str, *arguments: str) -> list[str]:
        java, *rest = super()._command(program, *arguments)
        return [java, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.server.keys_url}", *rest]


def oidc_login(broker: TokenBroker, certificates: Path) -> dict[str, str]:
    """The extra of kafka_default with which librdkafka itself asks the server for tokens."""
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.ports['LOGIN']}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificates / "authority.pem"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": broker.server.url,
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.scope": SCOPE,
        "sasl.oauthbearer.extensions": "team=calls",
        "https.ca.location": str(certificates / "authority.pem"),
    }


def provider_login(broker: TokenBroker, certificates: Path) -> dict[str, str]:
    """The same by a function: it asks with Python, and knows server and secret from a file that `sasl.oauthbearer.config` names."""
    file = certificates / "provider.json"
    authority = str(certificates / "authority.pem")
    file.write_text(
        json.dumps({"url": broker.server.url, "client": CLIENT, "secret": SECRET, "scope": SCOPE, "ca": authority})
    )
    kept = ("bootstrap.servers", "security.protocol", "ssl.ca.location", "sasl.mechanism")
    return {name: value for name, value in oidc_login(broker, certificates).items() if name in kept} | {
        "token_provider": "tests.helpers.token_functions.from_server",
        "sasl.oauthbearer.config": str(file),
    }
