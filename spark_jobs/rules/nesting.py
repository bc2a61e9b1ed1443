"""How deep a JSON text nests, found without decoding it, in time and memory that grow with its length alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

# Levels of nesting, the message's own braces counted. Python gives up somewhere below 1,000, depending on who calls: a limit of
# our own makes the verdict the same everywhere.
DEEPEST = 500
_NOT_OPENING = bytes(byte for byte in range(256) if chr(byte) not in "[{")
_QUOTE, _BACKSLASH, _OPENING, _CLOSING, _BRACE_OR_BRACKET = *b'"\\{}', 0x20
# So many signs that their numbers fit into the processor's caches, and into memory that was used before. A multiple of 64.
_AT_ONCE = 65_536

# A bit a sign, eight signs a number, the first one lowest.
Bits = npt.NDArray[np.uint8]
# Of eight bits: whether an odd number of them is set, as eight bits; and at each place, whether it is up to there.
_ODD = bytes(255 * (byte.bit_count() & 1) for byte in range(256))
_PREFIX = bytes(sum(((byte & (2 << place) - 1).bit_count() & 1) << place for place in range(8)) for byte in range(256))


def nests_too_deep(value: bytes) -> bool:
    r"""Whether brackets outside of strings nest deeper than `DEEPEST`, as far as the value is JSON.

    No step goes back in the text: each byte is looked at a fixed number of times, whatever stands around it.

    >>> nests_too_deep(b"[" * 500 + b"]" * 500), nests_too_deep(b"[" * 501), nests_too_deep(b'"\\"' + b"[" * 501 + b'"')
    (False, True, False)
    """
    # Most texts have too few brackets, wherever these stand.
    if len(value) <= DEEPEST or len(value.translate(None, _NOT_OPENING)) <= DEEPEST:
        return False
    has_escapes = b"\\" in value
    signs = np.frombuffer(value, dtype=np.uint8)
    depth, inside, escaped = 0, np.uint8(0), 0
    for begin in range(0, len(value), _AT_ONCE):
        some = signs[begin : begin + _AT_ONCE]
        quotes = _bits(some == _QUOTE).tobytes()
        if has_escapes:
            quotes, escaped = _unescaped(quotes, _bits(some == _BACKSLASH).tobytes(), escaped)
        in_strings, inside = _between(quotes, inside)
        outside, brackets = ~in_strings, some | _BRACE_OR_BRACKET
        opening, closing = _bits(brackets == _OPENING) & outside, _bits(brackets == _CLOSING) & outside
        # Of long texts most are seen to be flat by a look at 64 signs at a time.
        is_long = len(some) == _AT_ONCE
        highest, last = (_levels_at_most if is_long else _levels)(opening, closing)
        if is_long and depth + highest > DEEPEST:
            highest, last = _levels(opening, closing)
        if depth + highest > DEEPEST:
            return True
        depth += last
    return False


def _bits(signs: npt.NDArray[np.bool_]) -> Bits:
    return np.packbits(signs, bitorder="little")


def _unescaped(quotes: bytes, backslashes: bytes, escaped: int) -> tuple[bytes, int]:
    """The quotes that nothing escapes (bits), and 1 if the sign behind the last one is escaped. `escaped`: the same of the first.

    In a run of backslashes each odd one escapes the next sign. One subtraction of all bits finds where a run ends, for its borrow goes
    along the run; simdjson does the same, 64 signs at a time.
    """
    size = len(quotes)
    runs, odd = int.from_bytes(backslashes, "little"), int.from_bytes(b"\xaa" * size, "little")
    free = runs & ~escaped
    codes = ((free << 1 | odd) - free) ^ odd
    unescaped = int.from_bytes(quotes, "little") & ~(codes ^ (runs | escaped))
    return unescaped.to_bytes(size, "little"), (codes & runs) >> (8 * size - 1)


def _between(quotes: bytes, inside: np.uint8) -> tuple[Bits, np.uint8]:
    """The signs behind an odd number of quotes (bits), and whether the last one is (255, else 0). `inside`: the same of the one before."""
    odd = np.frombuffer(quotes.translate(_ODD), dtype=np.uint8)
    states = np.bitwise_xor.accumulate(odd) ^ inside
    return np.frombuffer(quotes.translate(_PREFIX), dtype=np.uint8) ^ states ^ odd, states[-1]


def _levels(opening: Bits, closing: Bits) -> tuple[int, int]:
    """The highest level and the last one, against that before the first sign."""
    octets = np.empty((len(opening), 2), dtype=np.uint8)
    octets[:, 0], octets[:, 1] = opening, closing
    numbers = octets.view("<u2")[:, 0]
    within, behind = _octets()
    steps = behind.take(numbers)
    levels = steps.cumsum(dtype=np.int32)
    return int((levels - steps + within.take(numbers)).max()), int(levels[-1])


def _levels_at_most(opening: Bits, closing: Bits) -> tuple[int, int]:
    """The same, as if of 64 signs those that open came first: then the highest level is this or lower."""
    opened = np.bitwise_count(opening.view(np.uint64)).astype(np.int32)
    steps = opened - np.bitwise_count(closing.view(np.uint64))
    levels = steps.cumsum(dtype=np.int32)
    return int((levels - steps + opened).max()), int(levels[-1])


@cache
def _octets() -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Of eight signs, by the number that says which open and which close: the highest level among them, and the last one."""
    bits = np.unpackbits(np.arange(65_536, dtype="<u2").view(np.uint8).reshape(-1, 2), axis=1, bitorder="little").astype(
        np.int8
    )
    levels = (bits[:, :8] - bits[:, 8:]).cumsum(axis=1, dtype=np.int8)
    return np.ascontiguousarray(levels.max(axis=1)), np.ascontiguousarray(levels[:, -1])
