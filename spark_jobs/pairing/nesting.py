"""How deep a JSON text nests, found without decoding it, in time and memory that grow with its length alone."""

from __future__ import annotations

import numpy as np

# Levels of nesting, the message's own braces counted. Python gives up somewhere below 1,000, depending on who calls: a limit of
# our own makes the verdict the same everywhere.
DEEPEST = 500
# What opens a level is 1, what closes one -1 (as a signed byte), a quote 0; nothing else counts.
_STEPS = bytes({"[": 1, "{": 1, "]": 255, "}": 255}.get(chr(byte), 0) for byte in range(256))
_UNCOUNTED = bytes(byte for byte in range(256) if chr(byte) not in '[{]}"')
_QUOTE, _FEW = b"\0", 64
_NOT_OPENING = bytes(byte for byte in range(256) if chr(byte) not in "[{")
# Numbers of so many bytes fit into memory that was used before; the system takes longer to hand out more than the work takes.
_AT_ONCE = 16_384


def nests_too_deep(value: bytes) -> bool:
    r"""Whether brackets outside of strings nest deeper than `DEEPEST`, as far as the value is JSON.

    No step goes back in the text: each byte is looked at a fixed number of times, whatever stands around it.

    >>> nests_too_deep(b"[" * 500 + b"]" * 500), nests_too_deep(b"[" * 501), nests_too_deep(b'"\\"' + b"[" * 501 + b'"')
    (False, True, False)
    """
    # Most texts have too few brackets, wherever these stand.
    if len(value) <= DEEPEST or len(value.translate(None, _NOT_OPENING)) <= DEEPEST:
        return False
    # In a run of backslashes each odd one escapes the next sign: without the pairs, one before a quote escapes that quote.
    unescaped = value.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in value else value
    brackets = unescaped.translate(_STEPS, _UNCOUNTED)
    has_strings = brackets.count(_QUOTE) * _FEW > len(brackets)
    if not has_strings:
        # Few strings are cut out faster than all quotes are counted.
        brackets = b"".join(brackets.split(_QUOTE)[::2])
    steps = np.frombuffer(brackets, dtype=np.int8)
    depth = quotes = 0
    for begin in range(0, len(steps), _AT_ONCE):
        some = steps[begin : begin + _AT_ONCE]
        if has_strings:
            seen = (some == 0).cumsum(dtype=np.int32)
            # Outside of strings the number of quotes before is even.
            some = some * ((seen & 1) == quotes)
            quotes = (quotes + int(seen[-1])) & 1
        levels = some.cumsum(dtype=np.int32)
        if depth + int(levels.max()) > DEEPEST:
            return True
        depth += int(levels[-1])
    return False
