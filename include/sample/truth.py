"""Compares a pipeline's output with the truth of its sample traffic, message by message.

    python -m include.sample.truth --truth first.jsonl second.jsonl

An independent consumer reads the output topic, and the tables are read without Spark. The truth files must be those of all traffic that the
pipeline ever got, and all of it must have been landed. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from include.config.pipeline import AS_JSON, AVRO, Pipeline, PipelineError
from include.config.pipeline_file import load_pipeline
from include.config.store import warehouse_root
from include.sample.outcome import canonical, ledger_clock, parse, read_table, read_topic
from include.sample.sending import DEFAULT_BOOTSTRAP, SampleError, settings_of
from include.sample.values import Read, value_reader

__all__ = ["ExpectedState", "SampleError", "Verdict", "check", "expected", "ledger_clock"]

DEFAULT_PIPELINE = "include/pipelines/calls.yaml"
SHOWN = 10
EQUAL = "equal to the truth of the sample traffic, message by message"

Compound = tuple[str, str]  # kind, canonical JSON of the value
Rejection = tuple[str, str, bytes | None]  # reason, topic, value


@dataclass
class ExpectedState:
    """What must exist at a clock, each with its number; `open`: number of events by the key fields."""

    compounds: Counter[Compound] = field(default_factory=Counter)
    rejected: Counter[Rejection] = field(default_factory=Counter)
    open: Counter[tuple[str, ...]] = field(default_factory=Counter)


@dataclass
class Verdict:
    """What exists: published compounds by kind, rejected events by reason, open events. No `differences`: all equals the truth.

    `others`: compounds, rejected and open events that the truth does not know at all, so they are of other traffic on the topics; `besides`: the
    differences but for these.
    """

    clock: int | None
    kinds: dict[str, int]
    rejected: dict[str, int]
    open: int
    differences: list[str]
    others: int
    besides: list[str]

    def lines(self) -> list[str]:
        """The verdict for people."""
        return [
            f"published: {sum(self.kinds.values()):,} compounds ({_counts(self.kinds)})",
            f"rejected:  {sum(self.rejected.values()):,} events ({_counts(self.rejected)})",
            f"open:      {self.open:,} events",
            *(self.differences or [EQUAL]),
        ]


def expected(truth: Iterable[str], pipeline: Pipeline, clock: int | None) -> ExpectedState:
    """What the lines of truth files demand when a batch with this clock (ms; None: no clock) has landed and paired all."""
    result = ExpectedState()
    for line in truth:
        truth_line = parse(line)
        if "rejected" in truth_line:
            value = None if truth_line["value"] is None else b64decode(truth_line["value"])
            result.rejected[truth_line["rejected"], truth_line["topic"], value] += 1
        elif clock is not None and int(truth_line["closes_after"]) < clock:
            result.compounds.update((each["kind"], canonical(each["value"])) for each in truth_line["compounds"])
        else:
            value = truth_line["compounds"][0]["value"]
            result.open[tuple(value[name] for name in pipeline.key)] += int(truth_line["events"])
    return result


def check(
    truth_paths: Sequence[str | Path],
    pipeline: Pipeline,
    kafka_settings: Mapping[str, Any],
    warehouse: str | Path,
    clock: int | None,
) -> Verdict:
    """Compares the truth files with all of the output topic and the tables; `clock`: of the last batch, ms.

    Raises SampleError if something cannot be read.
    """
    truth = expected(_read_lines(truth_paths), pipeline, clock)
    compounds, problems = _published(pipeline, kafka_settings)
    rejected = Counter(read_table(warehouse, pipeline, "rejected_events", ["reason", "topic", "value"]))
    still_open = Counter(read_table(warehouse, pipeline, "open_events", list(pipeline.key)))
    compared: list[tuple[str, Counter[Any], Counter[Any]]] = [
        (pipeline.output_topic, truth.compounds, compounds),
        ("rejected_events", truth.rejected, rejected),
        ("open_events", truth.open, still_open),
    ]
    others = sum(count for _, wanted, found in compared for item, count in found.items() if item not in wanted)
    differences = [*_shortened(problems), *chain.from_iterable(_compare(*each) for each in compared)]
    known = ((where, wanted, Counter({item: found[item] for item in wanted})) for where, wanted, found in compared)
    besides = [*_shortened(problems), *chain.from_iterable(_compare(*each) for each in known)]
    kinds: Counter[str] = Counter()
    for (kind, _), count in compounds.items():
        kinds[kind] += count
    reasons: Counter[str] = Counter()
    for (reason, _, _), count in rejected.items():
        reasons[reason] += count
    return Verdict(clock, dict(kinds), dict(reasons), still_open.total(), differences, others, besides)


def _read_lines(paths: Sequence[str | Path]) -> Iterable[str]:
    for path in paths:
        try:
            with open(path, encoding="utf-8") as lines:
                yield from lines
        except OSError as error:
            raise SampleError(
                f"truth file {path} cannot be read ({error.strerror}): name one written by include.sample.calls"
            ) from None


def _published(pipeline: Pipeline, kafka_settings: Mapping[str, Any]) -> tuple[Counter[Compound], list[str]]:
    """The compounds of a consumer that applied every message of the output topics, and a line for each message that is wrong in itself."""
    revisions: dict[str, dict[int, Compound | None]] = {}
    again: Counter[Compound] = Counter()
    problems: list[str] = []
    read = value_reader(pipeline)
    for message in chain.from_iterable(read_topic(topic, kafka_settings) for topic in pipeline.compound_topics):
        where = f"{message.topic()}-{message.partition()}-{message.offset()}"
        try:
            headers = {name: _header(data) for name, data in dict(message.headers() or []).items()}
            pair_id, revision = headers["pair-id"], int(headers["revision"])
            compound = _compound(pipeline, message, headers, read)
        except (ValueError, TypeError, KeyError):
            problems.append(f"{where} is no compound: {_short(message.value())}")
            continue
        except _WrongKey as wrong:
            problems.append(f"{where} {wrong}: {_short(message.value())}")
            continue
        known = revisions.setdefault(pair_id, {})
        if revision in known:
            problems.append(
                f"{where} has the pair-id {pair_id!r} and revision of another message: {_short(message.value())}"
            )
            again.update([compound] if compound else [])
        else:
            known[revision] = compound
    problems += (
        f"pair-id {pair_id!r} has the revisions {sorted(known)}, not 0 to {len(known) - 1}"
        for pair_id, known in revisions.items()
        if sorted(known) != [*range(len(known))]
    )
    newest = (known[max(known)] for known in revisions.values())
    return again + Counter(compound for compound in newest if compound), problems


class _WrongKey(Exception):
    """A compound has another key than its own; the text says which one."""


def _compound(pipeline: Pipeline, message: Message, headers: dict[str, str], read: Read) -> Compound | None:
    """The compound of a message; None for a retraction. Raises ValueError, TypeError, KeyError, _WrongKey."""
    if (headers["op"], message.value()) == ("retract", None):
        return None
    value = read(message.value() or b"null")
    key = _key(pipeline, [value[name] for name in pipeline.key], message.key() or b"")
    if headers["op"] != "upsert":
        raise ValueError(headers["op"])
    if message.key() != key:
        raise _WrongKey(f"has the key {message.key()!r}, not {key!r}")
    return headers.get("kind", "none"), canonical(value)


def _key(pipeline: Pipeline, fields: list[str], found: str | bytes = b"") -> bytes:
    """The key of a compound, computed in another way than the pipeline does. `found`: the message's, of which a schema's id is taken as it is."""
    if pipeline.key_has_schema:
        return _framed_key(
            pipeline, [text.encode() for text in fields], found if isinstance(found, bytes) else found.encode()
        )
    if pipeline.output_key == AS_JSON:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    if len(fields) > 1:
        fields = [re.sub(r"[-\\]", lambda special: "\\" + special[0], field) for field in fields]
    return "-".join(fields).encode()


def _framed_key(pipeline: Pipeline, fields: list[bytes], found: bytes) -> bytes:
    is_avro = pipeline.output_key == AVRO
    body = b"" if is_avro else b"\0"
    for number, text in enumerate(fields, 1):
        # Avro's lengths are doubled, for numbers may be negative; Protobuf has the field's number and type, "bytes", before it.
        body += (_varint(2 * len(text)) if is_avro else _varint(number << 3 | 2) + _varint(len(text))) + text
    return b"\0" + found[1:5] + body


def _varint(number: int) -> bytes:
    low = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(part | 0x80 for part in low[:-1]), low[-1]])


def _header(data: str | bytes | None) -> str:
    return data if isinstance(data, str) else (data or b"").decode()


def _compare(where: str, wanted: Counter[Any], found: Counter[Any]) -> list[str]:
    """A line for each item that is missing or too many, at most SHOWN of either."""
    return [
        *_shortened([f"{where} lacks {count} × {_short(item)}" for item, count in (wanted - found).items()]),
        *_shortened([f"{where} has {count} × too many: {_short(item)}" for item, count in (found - wanted).items()]),
    ]


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"{lines[0].split()[0]}: and {more:,} lines more like these"]


def _short(item: object) -> str:
    parts = item if isinstance(item, tuple) else (item,)
    text = " ".join(repr(part) if isinstance(part, bytes) else str(part) for part in parts)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or "none"


def main() -> int:
    """The command; returns its exit status: 0 if equal, 1 if not or if something cannot be read, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m include.sample.truth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--truth", nargs="+", required=True, metavar="FILE", help="of all traffic the pipeline ever got")
    parser.add_argument("--pipeline", default=DEFAULT_PIPELINE, help=f"default {DEFAULT_PIPELINE}")
    parser.add_argument(
        "--warehouse", default=warehouse_root(), help="folder or URI; default: PAIRING_WAREHOUSE, else .local/warehouse"
    )
    parser.add_argument("--bootstrap", help=f"broker; default: PAIRING_KAFKA, else {DEFAULT_BOOTSTRAP}")
    parser.add_argument(
        "--clock", default="ledger", metavar="MS", help="of the last batch; default: ledger, look it up there"
    )
    arguments = parser.parse_args()
    if arguments.clock != "ledger" and not arguments.clock.isdecimal():
        parser.error("--clock is epoch ms, or the word ledger")
    try:
        pipeline = load_pipeline(arguments.pipeline)
        looked_up = arguments.clock == "ledger"
        clock = ledger_clock(arguments.warehouse, pipeline) if looked_up else int(arguments.clock)
        verdict = check(arguments.truth, pipeline, settings_of(arguments.bootstrap), arguments.warehouse, clock)
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 2
    except SampleError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(verdict.lines()))
    return 1 if verdict.differences else 0


if __name__ == "__main__":
    sys.exit(main())
