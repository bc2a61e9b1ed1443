"""How a compound looks on the output topic."""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    """One record for the output topic. `value` None is a retraction."""

    batch_id: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


# What a broker's limit counts besides: the frame of a batch, and of the record in it with all its lengths; both generously.
BATCH_FRAME, _RECORD_FRAME, _HEADER_FRAME = 128, 128, 16
# More than headers and frames of any message take: the longest header, pair-id, is a topic's name and two numbers.
_ALL_FRAMES = 2048


def size(message: Message) -> int:
    """Bytes of the message as the only one of its batch, uncompressed, rounded up.

    >>> size(Message(1, b"x-y", b"{}", [("pair-id", b"a-0-1")]))
    289
    """
    headers = sum(len(name) + len(value or b"") + _HEADER_FRAME for name, value in message.headers)
    return len(message.key) + len(message.value or b"") + headers + BATCH_FRAME + _RECORD_FRAME


def fits(message: Message, limit: int) -> bool:
    """Whether the message is at most so large, by `size`.

    >>> fits(Message(1, b"x-y", b"{}", [("pair-id", b"a-0-1")]), 289), fits(Message(1, b"x-y", b"{}", [("pair-id", b"a-0-1")]), 288)
    (True, False)
    """
    # Asked of every message, so exactly only where it matters.
    return len(message.key) + len(message.value or b"") + _ALL_FRAMES <= limit or size(message) <= limit


def pair_id(message: Message) -> str:
    """The pair_id in a message's headers."""
    return next(value.decode() for name, value in message.headers if name == "pair-id" and isinstance(value, bytes))
