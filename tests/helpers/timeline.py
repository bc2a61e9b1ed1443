"""Timelines for tests: a few events, batches with clocks, and what became of each event, in letters."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from include.config.pipeline_file import load_pipeline
from spark_jobs.story.from_files import BatchFile, message_of, rehearse
from spark_jobs.story.from_files import read_batches as read_files
from spark_jobs.story.history import Batch as ReadBatch
from spark_jobs.story.play import PlayedBatch, Rehearsal

ROOT = Path(__file__).resolve().parents[2]
CALLS = load_pipeline(ROOT / "include" / "pipelines" / "calls.yaml")
# Round numbers make boundaries readable: T = 100, G = 200, R = 500, so a session that ends at 0 is over after 700.
SMALL = replace(CALLS, tolerance_ms=100, gap_ms=200, grace_ms=500, max_future_ms=10_000, max_session_ms=1_000)
T0 = 1_000_000

_WORD = re.compile(r"([am])(~?)(\d+)(?:@(\d+))?(?::([\w-]+))?(=\w+)?")


class Batch(NamedTuple):
    """Events in words, and the batch's clock relative to T0, which is its wall time, too.

    `a0` is a left event at T0 + 0, `m50` a right one at T0 + 50. `a~0`: its timestamp is null, the record's is T0 + 0.
    `a0@1`: in partition 1. `a0:x`: of user1 x; `a0:x-y`: of users x and y; otherwise u and v.
    `a0=p`: equal words have equal payloads, whatever the partition; otherwise every payload is another.
    """

    events: str
    clock: int


class Timeline(NamedTuple):
    """Batches, what has to become of their events (see `story`), and the settings that differ from SMALL."""

    batches: list[tuple[str, int]]
    told: list[str]
    settings: dict[str, Any] = {}  # noqa: RUF012

    @property
    def pipeline(self) -> Pipeline:
        """SMALL with this timeline's settings."""
        return replace(SMALL, **self.settings)


def records(batches: Iterable[Batch]) -> list[tuple[list[dict[str, Any]], int]]:
    """Records as kcat prints them and the clock (epoch ms) of each batch. Offsets count up over all batches."""
    offsets: Counter[tuple[str, str]] = Counter()
    return [([_record(word, offsets) for word in events.split()], T0 + clock) for events, clock in batches]


def read_batches(cuts: Iterable[tuple[list[dict[str, Any]], int]], pipeline: Pipeline = SMALL) -> list[ReadBatch]:
    """What a rehearsal reads of files with these records and clocks."""
    return [
        ReadBatch(number, [message_of(record) for record in mine], clock, clock, pipeline)
        for number, (mine, clock) in enumerate(cuts, 1)
    ]


def play_every(pipeline: Pipeline, cuts: Iterable[tuple[list[dict[str, Any]], int]]) -> list[PlayedBatch]:
    """Plays every batch, those in which nothing happens, too."""
    rehearsal = Rehearsal(pipeline)
    return [rehearsal.play(batch) for batch in read_batches(cuts, pipeline)]


def _record(word: str, offsets: Counter[tuple[str, str]]) -> dict[str, Any]:
    found = _WORD.fullmatch(word)
    assert found, f"{word} is no event"
    letter, null, at, partition, users, payload = found.groups()
    side = CALLS.left if letter == "a" else CALLS.right
    offset = offsets[letter, partition or "0"]
    offsets[letter, partition or "0"] += 1
    user1, _, user2 = (users or "u").partition("-")
    ts = T0 + int(at)
    body = {"user1": user1, "user2": user2 or "v", "timestamp": None if null else ts}
    body[side.payload] = re.sub(r"@\d+", "", word) if payload else f"{word}#{offset}"
    place = {"topic": side.topic, "partition": int(partition or 0), "offset": offset}
    return place | {"ts": ts if null else T0, "key": None, "payload": json.dumps(body)}


def play(tmp_path: Path, batches: Iterable[Batch], pipeline: Pipeline = SMALL) -> list[dict[str, Any]]:
    """All rows that the rehearsal prints for the batches."""
    files = []
    for number, (mine, clock) in enumerate(records(batches)):
        path = tmp_path / f"batch-{number}.jsonl"
        path.write_text("\n".join(map(json.dumps, mine)))
        files.append(BatchFile(path, clock))
    return [json.loads(line) for line in rehearse(pipeline, read_files(pipeline, files))]


def story(tmp_path: Path, batches: Iterable[Batch], pipeline: Pipeline = SMALL) -> list[str]:
    """What became of the events, sorted: `1 pair a0 m50`, `1 left_only a0`, `2 late m0`, `open a0`; batch number in front."""
    batches = list(batches)
    words = {
        f"{record['topic']}-{record['partition']}-{record['offset']}": word
        for batch, (mine, _) in zip(batches, records(batches), strict=True)
        for word, record in zip(batch[0].split(), mine, strict=True)
    }
    told = []
    for row in play(tmp_path, batches, pipeline):
        if row["table"] == "compound_events":
            sides = [row[side].partition("#")[0] for side in ("analytics", "metrics") if row[side]]
            told.append(f"{row['batch']} {row['kind']} {' '.join(sides)}")
        elif row["table"] == "rejected_events":
            told.append(f"{row['batch']} {row['reason']} {words[row['source']]}")
        elif row["table"] == "open_events":
            told.append(f"open {words[row['source']]}")
    return sorted(told)
