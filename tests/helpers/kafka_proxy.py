"""A TCP proxy in front of a real broker that loses, holds back and repeats requests, byte for byte as they came.

A `Fault` says what becomes of the next request of a kind. What is held back or repeated is sent on a connection of its own right after
the broker has answered another request, before that answer goes on: so it meets the client at a known place of its work. An answer is held
back on the client's own connection, which stays open, and other answers overtake it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from include.local.broker import LocalBroker
from include.local.process import free_port

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 22, 24, 25, 26, 28
NAMES = {
    PRODUCE: "Produce", INIT_PRODUCER_ID: "InitProducerId", ADD_PARTITIONS: "AddPartitionsToTxn", ADD_OFFSETS: "AddOffsetsToTxn",
    END_TXN: "EndTxn", TXN_OFFSET_COMMIT: "TxnOffsetCommit",
}  # fmt: skip
# What becomes of a request. The first three close the client's connection, so that it tries again.
LOST, HELD, UNANSWERED, REPEATED, DELAYED, ANSWER_HELD = "lost", "held", "unanswered", "repeated", "delayed", "answer held"
_DELAY_S = 0.03
_PATIENCE_S = 10.0


class Fault(NamedTuple):
    """What becomes of one request. `late`: after the answer to the so-manieth request of which kind a held or repeated one is sent, or the
    answer that is held (counted from then on); None: when everything is over.
    """

    what: str
    late: tuple[int, int] | None = None


class _Late:
    """A request or an answer that is still to be sent. `send` gives what the log says of it."""

    def __init__(self, send: Callable[[], Awaitable[str]], when: tuple[int, int] | None) -> None:
        self.send = send
        self.after: int | None
        self.after, self.left = when or (None, 0)

    def is_due(self, kind: int) -> bool:
        self.left -= kind == self.after
        return self.left == 0 and kind == self.after


class ProxiedBroker(LocalBroker):
    """Tells clients that come by the proxy to stay there; itself it goes by its own address, as may whoever wants the truth."""

    def __init__(self, folder: Path, proxy: KafkaProxy) -> None:
        super().__init__(folder, free_port())
        self.proxy_port, self.proxied_port = proxy.port, proxy.broker_port

    def _configure(self) -> None:
        super()._configure()
        properties = self.folder / "server.properties"
        proxied = f"PROXIED://127.0.0.1:{self.proxied_port}"
        text = properties.read_text().replace(",CONTROLLER://", f",{proxied},CONTROLLER://", 1)
        text += f"advertised.listeners=PLAINTEXT://{self.bootstrap},PROXIED://127.0.0.1:{self.proxy_port}\n"
        text += "listener.security.protocol.map=PROXIED:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        text += "inter.broker.listener.name=PLAINTEXT\n"
        properties.write_text(text)


class KafkaProxy:
    """Between `port` and the broker's `proxied_port`, in a thread of its own while it is entered. `decide(kind)` gives the fault of a request."""

    def __init__(self) -> None:
        self.port, self.broker_port = free_port(), free_port()
        self.decide: Callable[[int], Fault | None] = lambda kind: None
        self.log: list[str] = []
        self._late: list[_Late] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> KafkaProxy:
        self._thread.start()
        self._run(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)

    def begin(self, decide: Callable[[int], Fault | None]) -> None:
        """From now on `decide`; what was late until now is forgotten."""
        self.decide, self.log, self._late = decide, [], []

    def release(self) -> None:
        """Sends everything that is still late, in its order."""
        self.decide = lambda kind: None
        late, self._late = self._late, []
        self._run(self._send_all(late))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
            link = _Link(self, reader, writer, from_broker, to_broker)
            with suppress(OSError, asyncio.IncompleteReadError):
                await asyncio.wait(
                    [asyncio.ensure_future(link.requests()), asyncio.ensure_future(link.answers())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
            link.close()

    def keep(self, send: Callable[[], Awaitable[str]], fault: Fault) -> None:
        """What is sent when the fault says so."""
        self._late.append(_Late(send, fault.late))

    async def answered(self, kind: int) -> None:
        """Before an answer goes on to the client."""
        due = [late for late in self._late if late.is_due(kind)]
        self._late = [late for late in self._late if late not in due]
        await self._send_all(due)

    async def _send_all(self, late: Iterable[_Late]) -> None:
        for each in late:
            self.log.append(await each.send())

    async def send_request(self, kind: int, request: bytes) -> str:
        """On a connection of its own; gives what to say of it."""
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.broker_port)
            writer.write(request)
            await asyncio.wait_for(_frame(reader), _PATIENCE_S)
            writer.close()
        return f"late {NAMES[kind]}"


class _Link:
    """One client's connection."""

    def __init__(self, proxy: KafkaProxy, reader: Any, writer: Any, from_broker: Any, to_broker: Any) -> None:
        self.proxy, self.reader, self.writer, self.from_broker, self.to_broker = (
            proxy,
            reader,
            writer,
            from_broker,
            to_broker,
        )
        self.kinds: dict[int, int] = {}
        self.unanswered: set[int] = set()
        self.held: dict[int, Fault] = {}

    async def requests(self) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                request = await _frame(self.reader)
                kind, number = int.from_bytes(request[4:6], "big"), int.from_bytes(request[8:12], "big")
                fault = self.proxy.decide(kind) if kind in NAMES else None
                if kind in NAMES:
                    self.kinds[number] = kind
                    self.proxy.log.append(f"{NAMES[kind]}{f' {fault.what} {fault.late}' if fault else ''}")
                if fault and fault.what in (HELD, REPEATED):
                    self.proxy.keep(partial(self.proxy.send_request, kind, request), fault)
                if fault and fault.what in (LOST, HELD):
                    return
                if fault and fault.what == DELAYED:
                    await asyncio.sleep(_DELAY_S)
                if fault and fault.what == UNANSWERED:
                    self.unanswered.add(number)
                if fault and fault.what == ANSWER_HELD:
                    self.held[number] = fault
                self.to_broker.write(request)

    async def answers(self) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                answer = await _frame(self.from_broker)
                number = int.from_bytes(answer[4:8], "big")
                if number in self.unanswered:
                    return
                kind = self.kinds.pop(number, None)
                if kind is not None:
                    await self.proxy.answered(kind)
                if kind is not None and number in self.held:
                    self.proxy.keep(partial(self.send_answer, kind, answer), self.held.pop(number))
                else:
                    self.writer.write(answer)

    async def send_answer(self, kind: int, answer: bytes) -> str:
        """If the client has not closed the connection; gives what to say of it."""
        if self.writer.is_closing():
            return f"late answer to {NAMES[kind]}, to nobody"
        self.writer.write(answer)
        return f"late answer to {NAMES[kind]}"

    def close(self) -> None:
        self.writer.close()
        self.to_broker.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Four bytes of length, and what they count."""
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length, "big"))
