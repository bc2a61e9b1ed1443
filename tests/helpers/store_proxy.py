"""An HTTP proxy between clients and a real S3 server that loses answers, refuses, delays and is away, as it is told.

Heads and bodies go on as they came, so that signatures stay valid. The client's connection is kept, as clients expect; each request goes to
the server on a connection of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from include.local.process import free_port

# What becomes of a request: its answer is lost after the server has done it; or the store goes away before it sees it.
LOST, AWAY = "lost", "away"
_WITHIN_S = 10.0


class Request(NamedTuple):
    """`path`: of the URL, with its query; `when`: how many there were before."""

    method: str
    path: str
    when: int


class Answer(NamedTuple):
    """What the proxy says itself, in the server's place."""

    status: str
    code: str
    message: str = ""

    def encoded(self) -> bytes:
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{self.code}</Code><Message>{self.message}</Message></Error>'
        head = f"HTTP/1.1 {self.status}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n"
        return (head + text).encode()


SLOW_DOWN = Answer("503 Slow Down", "SlowDown", "Please reduce your request rate.")
EXPIRED = Answer("400 Bad Request", "ExpiredToken", "The provided token has expired.")
FORBIDDEN = Answer("403 Forbidden", "AccessDenied", "Access Denied")
SKEWED = Answer(
    "403 Forbidden", "RequestTimeTooSkewed", "The difference between the request time and the current time is too large."
)

# What becomes of a request; None: it goes its way.
Decision = Callable[[Request], str | Answer | None]


class StoreProxy:
    """Between `address` and the server on `port`, in a thread of its own while it is entered. `decide`: what becomes of each request;
    `delay_s`: how long each waits; `asked`: those that came; `hit`: those of which something else became.
    """

    def __init__(self, port: int) -> None:
        self.server_port, self.port = port, free_port()
        self.decide: Decision = lambda request: None
        self.delay_s = 0.0
        self.asked: list[Request] = []
        self.hit: list[Request] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> StoreProxy:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WITHIN_S)

    def listen(self) -> None:
        """Takes connections, again if it was away."""
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", self.port))

    def go_away(self) -> None:
        """Refuses connections, and cuts those that there are."""
        self._run(self._close())

    def mend(self) -> None:
        """From now on all is well."""
        self.decide, self.delay_s, self.hit = lambda request: None, 0.0, []
        if self._server is None:
            self.listen()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WITHIN_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                pass
        self._writers.discard(writer)
        writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request; False if the client's connection is over."""
        head = await _head(reader)
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        body = await _body(reader, head)
        request = Request(method, path, len(self.asked))
        self.asked.append(request)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        decided = self.decide(request)
        if decided is not None:
            self.hit.append(request)
        if isinstance(decided, Answer):
            writer.write(decided.encoded())
            await writer.drain()
            return True
        if decided == AWAY:
            await self._close()
            return False
        answer = await self._from_server(head + body, method)
        if decided == LOST:
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def _from_server(self, request: bytes, method: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        try:
            writer.write(request)
            await writer.drain()
            head = await _head(reader)
            bodiless = method == "HEAD" or head.split(b" ", 2)[1] in (b"204", b"304")
            return head if bodiless else head + await _body(reader, head)
        finally:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """As it stands on the wire."""
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if fields.get(b"transfer-encoding") == b"chunked":
        chunks = b""
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            chunks += line + await reader.readexactly(size + 2)
            if not size:
                return chunks
    return await reader.readexactly(int(fields.get(b"content-length", b"0")))
