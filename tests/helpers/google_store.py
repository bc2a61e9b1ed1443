"""A server that a `gs://` client can work on: Google's XML API in front of a real S3 server.

No free server speaks what the client speaks. fake-gcs-server 1.56.1 answers its `PUT /bucket/key` and its `POST /bucket/key?uploads` with
400 «invalid uploadType», and honours x-goog-if-generation-match on its JSON API only; Google's storage-testbench has no list, delete or
multipart upload in XML. The XML API is S3's with other names, so the names are translated here and the S3 server does the work: that of two
racing puts one is refused is its doing. What Google's own servers answer is not shown by it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from include.local.machine import project_environment
from include.local.process import free_port, start_program
from include.local.store import BUCKET, LocalS3
from tests.helpers.store_proxy import StoreProxy

_CONDITION = "x-goog-if-generation-match"
_UNSIGNED = "UNSIGNED-PAYLOAD"


class LocalGoogle(LocalS3):
    """The S3 server, and the front at which it is asked as Google's, in a process of its own: delta-rs keeps others of its process waiting."""

    name = "gs"

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        self.front_port = free_port()

    def start(self) -> bool:
        started = super().start()
        front = [sys.executable, "-m", "tests.helpers.google_store", str(self.port), str(self.front_port)]
        start_program(self.folder, "front", front, project_environment())
        give_up = time.monotonic() + 20
        while not is_taken(self.front_port):
            assert time.monotonic() < give_up, "the front does not listen"
            time.sleep(0.05)
        return started

    @property
    def warehouse(self) -> str:
        return f"gs://{BUCKET}/demo"

    @property
    def options(self) -> dict[str, str]:
        return options_at(f"http://127.0.0.1:{self.front_port}")


def options_at(address: str) -> dict[str, str]:
    """The options of a store that is asked there, with the account key of nobody."""
    nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account = {"gcs_base_url": address, "disable_oauth": True, **nobody}
    return {"google_service_account_key": json.dumps(account), "allow_http": "true"}


class GoogleFront(StoreProxy):
    """Translates requests to S3's names and signs them. `honours`: whether a put's condition reaches the server."""

    def __init__(self, server_port: int, port: int | None = None, honours: bool = True) -> None:
        super().__init__(server_port)
        self.port, self.honours = port or self.port, honours

    async def _from_server(self, request: bytes, method: str) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        path, _, query = first.split(" ")[1].partition("?")
        fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if fields.pop(_CONDITION, None) == "0" and self.honours:
            fields["if-none-match"] = "*"
        fields = {name.replace("x-goog-", "x-amz-"): value for name, value in fields.items() if name != "authorization"}
        path = quote(unquote(path), safe="/-_.~")
        pairs = sorted(
            (quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, keep_blank_values=True)
        )
        query = "&".join(f"{name}={value}" for name, value in pairs)
        fields |= self._signed(method, path, query, fields)
        target = f"{path}?{query}" if query else path
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]).encode()
        return await super()._from_server(head + b"\r\n\r\n" + body, method)

    def _signed(self, method: str, path: str, query: str, fields: dict[str, str]) -> dict[str, str]:
        """The headers of AWS's signature, version 4; host and the headers of AWS's own are signed."""
        now = datetime.now(UTC)
        time, day = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}"
        own = {"x-amz-date": time, "x-amz-content-sha256": _UNSIGNED}
        signed = {
            name: value for name, value in sorted((fields | own).items()) if name == "host" or name.startswith("x-amz-")
        }
        names = ";".join(signed)
        headers = "".join(f"{name}:{value.strip()}\n" for name, value in signed.items())
        asked = "\n".join([method, path, query, headers, names, _UNSIGNED])
        scope = f"{day}/us-east-1/s3/aws4_request"
        key = f"AWS4{LocalS3.secret}".encode()
        for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"):
            key = hmac.digest(key, part.encode(), "sha256")
        return own | {
            "authorization": f"AWS4-HMAC-SHA256 Credential={LocalS3.user}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        }


def is_taken(port: int) -> bool:
    """Whether a program listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    with GoogleFront(int(sys.argv[1]), int(sys.argv[2])):
        threading.Event().wait()
