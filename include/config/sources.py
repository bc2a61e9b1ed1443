r"""Where a field of an event is in a Kafka record, as pipeline files say it.

| source | means |
|---|---|
| `user1`, `call.caller.id` | a field of the body, by path; `\.` and `\$` are a dot and a first dollar of a name |
| `$value` | the whole body (payloads only) |
| `$key`, `$key.caller.id` | the record's key as text, or a field of the JSON object, Avro record or Protobuf message that it is |
| `$header.call-id` | the text of the record's first header of that name |
| `$timestamp` | the record's own timestamp (timestamps only) |

A name with `"` or a backslash cannot be looked for: JSON spells these with escapes, and in more than one way.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

VALUE: Final = "value"
KEY: Final = "key"
HEADER: Final = "header"
RECORD_TIME: Final = "timestamp"
_LONGEST = 1_000
_ESCAPED = frozenset('"\\')
_STEP = re.compile(r"(?:[^\\.]|\\[\\.$])+")


class Source(NamedTuple):
    """`part` of the record and the `path` in it, outermost name first; of a header its name; empty: the whole part."""

    part: str
    path: tuple[str, ...] = ()


def parse_source(text: object) -> Source:
    r"""The source that a pipeline file names; raises ValueError.

    >>> parse_source("call.caller.id"), parse_source("$header.call.id"), parse_source(r"a\.b.\$c")
    (Source(part='value', path=('call', 'caller', 'id')), Source(part='header', path=('call.id',)), Source(part='value', path=('a.b', '$c')))
    """
    if not isinstance(text, str) or not text or len(text) > _LONGEST or not text.isprintable():
        raise ValueError(f"{text!r} names no field; write a path like call.caller.id")
    if text[0] != "$":
        return Source(VALUE, _path(text, text))
    part, dot, rest = text[1:].partition(".")
    if part == HEADER and rest:
        return Source(HEADER, (rest,))
    if part == KEY:
        return Source(KEY, _path(rest, text) if dot else ())
    if part in (VALUE, RECORD_TIME) and not dot:
        return Source(part)
    raise ValueError(
        rf"{text!r} is none of $value, $key, $key.FIELD, $header.NAME, $timestamp; a field of that name is \{text}"
    )


def source_text(source: Source) -> str:
    r"""The inverse of `parse_source`.

    >>> source_text(Source(VALUE, ("call", "a.b"))), source_text(Source(VALUE, ("$c",))), source_text(Source(KEY)), source_text(Source(HEADER, ("x.y",)))
    ('call.a\\.b', '\\$c', '$key', '$header.x.y')
    """
    if source.part == HEADER:
        return f"${HEADER}.{source.path[0]}"
    steps = ".".join(name.replace("\\", r"\\").replace(".", r"\.") for name in source.path)
    if source.part == VALUE and source.path:
        return f"\\{steps}" if steps.startswith("$") else steps
    return f"${source.part}.{steps}" if steps else f"${source.part}"


def is_source(source: Source) -> bool:
    r"""Whether a pipeline file can name it.

    >>> is_source(Source(VALUE, ("a.b", "$c"))), is_source(Source(VALUE, ('a"b',))), is_source(Source(HEADER, ('a"b',)))
    (True, False, True)
    """
    try:
        return parse_source(source_text(source)) == source
    except ValueError:
        return False


def _path(steps: str, whole: str) -> tuple[str, ...]:
    path, at = [], 0
    while step := _STEP.match(steps, at):
        path.append(re.sub(r"\\(.)", r"\1", step[0]))
        at = step.end() + 1
        if not _ESCAPED.isdisjoint(path[-1]):
            raise ValueError(rf'{whole!r} has a " or a \ in a name; landing cannot look for such a field, so it would fail')
        if at > len(steps):
            return tuple(path)
        if steps[at - 1] != ".":
            break
    raise ValueError(rf"{whole!r} is no path; write names with dots between them, and \. for a dot in a name")
