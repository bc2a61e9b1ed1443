"""Measures how deep a JSON text nests without decoding it, in time and memory linear in its length."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

# Levels of nesting, the message's own braces counted. Python's limit lies somewhere below 1,000 and depends on the caller: a limit
# of our own makes the verdict the same everywhere.
DEEPEST = 500
_NOT_OPENING = bytes(byte for byte in range(256) if chr(byte) not in "[{")
_QUOTE, _BACKSLASH, _OPENING, _CLOSING, _BRACE_OR_BRACKET = *b'"\\{}', 0x20
# Bytes at a time: the arrays fit into the processor's caches and into memory that was used before. A multiple of 64.
_AT_ONCE = 65_536

# One bit a byte of the text, eight in a number, the first one lowest.
Bits = npt.NDArray[np.uint8]
# For eight bits: 255 if an odd number of them is set, else 0; and at each place, whether it is odd up to there.
_ODD = bytes(255 * (byte.bit_count() & 1) for byte in range(256))
_PREFIX = bytes(sum(((byte & (2 << place) - 1).bit_count() & 1) << place for place in range(8)) for byte in range(256))


def nests_too_deep(value: bytes) -> bool:
    r"""Whether brackets outside of strings nest deeper than `DEEPEST`; of a value that is not JSON the answer has no meaning.

    Each byte is read a fixed number of times, whatever surrounds it.

    >>> nests_too_deep(b"[" * 500 + b"]" * 500), nests_too_deep(b"[" * 501), nests_too_deep(b'"\\"' + b"[" * 501 + b'"')
    (False, True, False)
    """
    # Most texts have too few brackets to nest that deep.
    if len(value) <= DEEPEST or len(value.translate(None, _NOT_OPENING)) <= DEEPEST:
        return False
    has_escapes = b"\\" in value
    text = np.frombuffer(value, dtype=np.uint8)
    depth, inside, escaped = 0, np.uint8(0), 0
    for begin in range(0, len(value), _AT_ONCE):
        some = text[begin : begin + _AT_ONCE]
        quotes = _bits(some == _QUOTE).tobytes()
        if has_escapes:
            quotes, escaped = _unescaped(quotes, _bits(some == _BACKSLASH).tobytes(), escaped)
        in_strings, inside = _between(quotes, inside)
        outside, brackets = ~in_strings, some | _BRACE_OR_BRACKET
        opening, closing = _bits(brackets == _OPENING) & outside, _bits(brackets == _CLOSING) & outside
        # A look at 64 bytes at a time shows most long texts to be flat.
        is_long = len(some) == _AT_ONCE
        highest, last = (_levels_at_most if is_long else _levels)(opening, closing)
        if is_long and depth + highest > DEEPEST:
            highest, last = _levels(opening, closing)
        if depth + highest > DEEPEST:
            return True
        depth += last
    return False


def _bits(flags: npt.NDArray[np.bool_]) -> Bits:
    return np.packbits(flags, bitorder="little")


def _unescaped(quotes: bytes, backslashes: bytes, escaped: int) -> tuple[bytes, int]:
    """The unescaped quotes (bits), and 1 if the byte after the last one is escaped, else 0. `escaped`: the same of the first byte.

    In a run of backslashes each odd one escapes the next byte. One subtraction of all bits finds where the runs end, because its borrow
    travels along a run; simdjson does the same, 64 bytes at a time.
    """
    size = len(quotes)
    runs, odd = int.from_bytes(backslashes, "little"), int.from_bytes(b"\xaa" * size, "little")
    free = runs & ~escaped
    codes = ((free << 1 | odd) - free) ^ odd
    unescaped = int.from_bytes(quotes, "little") & ~(codes ^ (runs | escaped))
    return unescaped.to_bytes(size, "little"), (codes & runs) >> (8 * size - 1)


def _between(quotes: bytes, inside: np.uint8) -> tuple[Bits, np.uint8]:
    """The bytes after an odd number of quotes (bits), and 255 if the last byte is one, else 0. `inside`: the same of the byte before."""
    odd = np.frombuffer(quotes.translate(_ODD), dtype=np.uint8)
    states = np.bitwise_xor.accumulate(odd) ^ inside
    return np.frombuffer(quotes.translate(_PREFIX), dtype=np.uint8) ^ states ^ odd, states[-1]


def _levels(opening: Bits, closing: Bits) -> tuple[int, int]:
    """The highest level and the last one, relative to the level before the first byte."""
    octets = np.empty((len(opening), 2), dtype=np.uint8)
    octets[:, 0], octets[:, 1] = opening, closing
    numbers = octets.view("<u2")[:, 0]
    within, behind = _octets()
    steps = behind.take(numbers)
    levels = steps.cumsum(dtype=np.int32)
    return int((levels - steps + within.take(numbers)).max()), int(levels[-1])


def _levels_at_most(opening: Bits, closing: Bits) -> tuple[int, int]:
    """As `_levels`, with an upper bound of the highest level: as if in each 64 bytes those that open came first."""
    opened = np.bitwise_count(opening.view(np.uint64)).astype(np.int32)
    steps = opened - np.bitwise_count(closing.view(np.uint64))
    levels = steps.cumsum(dtype=np.int32)
    return int((levels - steps + opened).max()), int(levels[-1])


@cache
def _octets() -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """For eight bytes, indexed by the number made of their opening and closing bits: the highest level among them, and the last one."""
    octets = np.arange(65_536, dtype="<u2").view(np.uint8).reshape(-1, 2)
    bits = np.unpackbits(octets, axis=1, bitorder="little").astype(np.int8)
    levels = (bits[:, :8] - bits[:, 8:]).cumsum(axis=1, dtype=np.int8)
    return np.ascontiguousarray(levels.max(axis=1)), np.ascontiguousarray(levels[:, -1])
