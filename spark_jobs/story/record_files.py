"""Files of records as `kcat -C -J` prints them, one object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from include.config.pipeline import Pipeline
from spark_jobs.job.arguments import fail

Record = dict[str, Any]
_SHOWN = 100
# Headers of which one has a name that is not UTF-8, where it is not known how they were.
SOME_BAD_HEADER = ["\udcff", None]


def read_records(path: Path, pipeline: Pipeline) -> list[Record]:
    """All records of a file: topic, partition, offset, ts, payload are there and valid. Otherwise one line and exit status 2."""
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError as error:
        fail(f"{path}: cannot be read: {error}")
    return [_read_record(f"{path}:{number}", line, pipeline) for number, line in enumerate(lines, 1) if line.strip()]


def value_bytes(record: Record) -> bytes | None:
    """The message's bytes. kcat prints bytes that are no UTF-8 as they are; they must come out malformed, not stop the others."""
    text = record["payload"]
    if text is None:
        return None
    try:
        return bytes(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return bytes(text.encode("utf-8", "surrogatepass"))


def has_bad_header(record: Record) -> bool:
    """Whether a header's name is not UTF-8; kcat prints that, too, as it is: names and values in turn."""
    return any(not _is_utf8(name) for name in (record.get("headers") or [])[::2])


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_record(place: str, line: str, pipeline: Pipeline) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        fail(f"{place}: not a JSON object: {error}")
    wanted = {"topic": str, "partition": int, "offset": int, "ts": int | None, "payload": str | None}
    if not isinstance(record, dict):
        fail(f"{place}: not a JSON object as `kcat -C -J` prints it")
    for name, kind in wanted.items():
        if not isinstance(record.setdefault(name, None), kind) or isinstance(record[name], bool):
            fail(f"{place}: {name} is {_shown(repr(record[name]))}; a record as `kcat -C -J` prints it was expected")
    headers = record.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(name, str) for name in headers[::2]):
        fail(
            f"{place}: headers is {_shown(repr(headers))}; names and values in turn, as `kcat -C -J` prints them, were expected"
        )
    if not (0 <= record["partition"] < 2**31 and 0 <= record["offset"] < 2**63 and abs(record["ts"] or 0) < 2**63):
        fail(f"{place}: partition, offset or ts is out of range")
    if record["topic"] not in (pipeline.left.topic, pipeline.right.topic):
        fail(f"{place}: topic {_shown(record['topic'])} is neither {pipeline.left.topic} nor {pipeline.right.topic}")
    return record


def _shown(text: str) -> str:
    """The begin of a text that may be megabytes."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
