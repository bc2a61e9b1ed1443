"""Files of records as `kcat -C -J` prints them, one object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from include.pipeline_config import Pipeline
from spark_jobs.cli import fail

Record = dict[str, Any]


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
            fail(f"{place}: {name} is {record[name]!r}; a record as `kcat -C -J` prints it was expected")
    if not (0 <= record["partition"] < 2**31 and 0 <= record["offset"] < 2**63 and abs(record["ts"] or 0) < 2**63):
        fail(f"{place}: partition, offset or ts is out of range")
    if record["topic"] not in (pipeline.left.topic, pipeline.right.topic):
        fail(f"{place}: topic {record['topic']} is neither {pipeline.left.topic} nor {pipeline.right.topic}")
    return record
