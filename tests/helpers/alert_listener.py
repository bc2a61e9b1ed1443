"""A web server that hears alerts, as a chat system would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers.web_server import Quiet, serving


@contextmanager
def listening(answer: bytes = b"ok") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and the bodies it has heard so far, while the block runs. It gives each the same answer."""
    heard: list[dict[str, Any]] = []

    class Listener(Quiet):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    with serving(Listener) as address:
        yield f"{address}/hook", heard
