"""How a compound looks on the output topic."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Message(NamedTuple):
    """One record for the output topic. `value` None is a retraction."""

    batch_id: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


# What a broker's limit counts besides: the frame of a batch, and of the record in it with all its lengths; both generously.
BATCH_FRAME, _RECORD_FRAME, _HEADER_FRAME = 128, 128, 16


def size(message: Message) -> int:
    """Bytes of the message as the only one of its batch, uncompressed, rounded up.

    >>> size(Message(1, b"x-y", b"{}", [("pair-id", b"a-0-1")]))
    289
    """
    headers = sum(len(name) + len(value or b"") + _HEADER_FRAME for name, value in message.headers)
    return len(message.key) + len(message.value or b"") + headers + BATCH_FRAME + _RECORD_FRAME


def pair_id(message: Message) -> str:
    """The pair_id in a message's headers."""
    return next(value.decode() for name, value in message.headers if name == "pair-id" and isinstance(value, bytes))


def compound_message(row: dict[str, Any], key: tuple[str, ...], payloads: tuple[str, str]) -> Message:
    """The message of one row of compound_events.

    >>> row = {"batch_id": 3, "pair_id": "m-0-7", "revision": 0, "kind": "right_only", "op": "upsert", "a": "x", "b": "y", "ts": 5,
    ...        "left": None, "right": '{"loss":0.10}'}
    >>> message = compound_message(row, ("a", "b"), ("left", "right"))
    >>> message.key, message.value
    (b'x-y', b'{"a":"x","b":"y","ts":5,"left":null,"right":{"loss":0.10}}')
    """
    headers: list[tuple[str, str | bytes | None]] = [
        ("pair-id", row["pair_id"].encode()),
        ("revision", str(row["revision"]).encode()),
        ("kind", row["kind"].encode()),
        ("op", row["op"].encode()),
    ]
    value = None
    if row["op"] != "retract":
        fields = [f"{json.dumps(name)}:{json.dumps(row[name], ensure_ascii=False)}" for name in key]
        fields.append(f'"ts":{row["ts"]}')
        # Payloads are JSON texts already and go out as they came in, every digit kept.
        fields += [f"{json.dumps(name)}:{row[name] or 'null'}" for name in payloads]
        value = f"{{{','.join(fields)}}}".encode()
    return Message(row["batch_id"], "-".join(row[name] for name in key).encode(), value, headers)
