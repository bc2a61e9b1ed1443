"""Where a machine gets the credentials of its role: the container's endpoint, the instance's metadata, and the exchange of a web identity.

On loopback, in a process of its own, since delta-rs keeps the other threads of a process waiting. It hands out one access key, each time
for as long as it is told, and writes a line a request to `log`.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from include.local.machine import ROOT
from include.local.process import free_port

TOKEN, ROLE, IDENTITY = "token-of-the-machine", "arn:aws:iam::1:role/pairing", "identity-of-the-pod"
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"


class Credentials(BaseHTTPRequestHandler):
    """Refuses with 401 or 400 what the cloud would refuse."""

    user, secret, valid_s, log = "", "", 3600, Path()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/container":
            self._answer(200 if self.headers.get("Authorization") == TOKEN else 401, json.dumps(self._keys()))
        elif path.startswith("/latest/meta-data/iam/security-credentials/"):
            role = path.rpartition("/")[2]
            allowed = self.headers.get("X-aws-ec2-metadata-token") == TOKEN
            self._answer(200 if allowed else 401, json.dumps(self._keys() | {"Code": "Success"}) if role else "pairing")
        else:
            self._answer(404, "")

    def do_PUT(self) -> None:
        self._answer(200 if self.path == "/latest/api/token" else 404, TOKEN)

    def do_POST(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked |= parse_qs(body.decode())
        wanted = {"Action": ["AssumeRoleWithWebIdentity"], "WebIdentityToken": [IDENTITY], "RoleArn": [ROLE]}
        keys = self._keys()
        names = {
            "AccessKeyId": "AccessKeyId",
            "SecretAccessKey": "SecretAccessKey",
            "SessionToken": "Token",
            "Expiration": "Expiration",
        }
        fields = "".join(f"<{name}>{keys[of]}</{name}>" for name, of in names.items() if of in keys)
        result = f"<AssumeRoleWithWebIdentityResult><Credentials>{fields}</Credentials></AssumeRoleWithWebIdentityResult>"
        text = f'<AssumeRoleWithWebIdentityResponse xmlns="{_STS}">{result}</AssumeRoleWithWebIdentityResponse>'
        self._answer(200 if wanted.items() <= asked.items() else 400, text)

    def _keys(self) -> dict[str, str]:
        ends = datetime.now(UTC) + timedelta(seconds=self.valid_s)
        return {
            "AccessKeyId": self.user,
            "SecretAccessKey": self.secret,
            "Token": "",
            "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        }

    def _answer(self, status: int, text: str) -> None:
        with self.log.open("a") as log:
            print(self.command, urlsplit(self.path).path, status, file=log)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """The requests are in `log`."""


class Server(NamedTuple):
    """One that runs."""

    address: str
    log: Path

    def asked(self, line: str) -> int:
        """How often it had the request with this answer."""
        return self.log.read_text().splitlines().count(line) if self.log.exists() else 0


@contextmanager
def handing_out(user: str, secret: str, folder: Path, valid_s: float = 3600) -> Iterator[Server]:
    """A server while the block runs; over TLS if the folder has `server.pem` and `server.key`."""
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "asked.log"
    command = [sys.executable, "-m", "tests.helpers.credential_server", str(port), user, secret, str(valid_s), str(log)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        give_up = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < give_up, "the server of credentials does not listen"
            time.sleep(0.05)
        try:
            yield Server(f"http://127.0.0.1:{port}", log)
        finally:
            # Leaving the block of a process waits for its end.
            process.terminate()


if __name__ == "__main__":
    port, user, secret, valid_s, log = sys.argv[1:]
    Credentials.user, Credentials.secret, Credentials.valid_s, Credentials.log = user, secret, int(valid_s), Path(log)
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Credentials)
    if (certificate := Path(log).with_name("server.pem")).exists():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
