"""Timelines for tests: a few events, batches with clocks, and what became of each event, in letters."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from include.pipeline_config import Pipeline, load_pipeline
from spark_jobs.rehearse_pairing import BatchFile, main

ROOT = Path(__file__).resolve().parents[1]
CALLS = load_pipeline(ROOT / "include" / "pipelines" / "calls.yaml")
# Round numbers make boundaries readable: T = 100, G = 200, R = 500, so a session that ends at 0 is over after 700.
SMALL = replace(CALLS, tolerance_ms=100, gap_ms=200, grace_ms=500, max_future_ms=10_000, max_session_ms=1_000)
T0 = 1_000_000
LATER = T0 + 1_000_000


class Batch(NamedTuple):
    """Events like `a0` (left at T0 + 0) and `m50` (right), optionally `a0:user1`; and the batch's clock relative to T0."""

    events: str
    clock: int


def play(tmp_path: Path, batches: Iterable[Batch], pipeline: Pipeline = SMALL, alike: bool = False) -> list[dict[str, Any]]:
    """All rows that the rehearsal prints for the batches. Offsets count up over all batches, a side each.

    `alike`: equal words are equal events, so that the second is a duplicate; otherwise every payload is another.
    """
    offsets = {"a": 0, "m": 0}
    files = []
    for number, batch in enumerate(batches):
        lines = []
        for word in batch.events.split():
            event, _, user = word.partition(":")
            side, at = event[0], int(event[1:])
            topic, payload = ("analyticsTopic", "analytics") if side == "a" else ("metricsTopic", "metrics")
            body = {
                "user1": user or "u",
                "user2": "v",
                "timestamp": T0 + at,
                payload: word if alike else f"{word}#{offsets[side]}",
            }
            record = {"topic": topic, "partition": 0, "offset": offsets[side], "ts": T0 + at, "key": None}
            lines.append(json.dumps(record | {"payload": json.dumps(body)}))
            offsets[side] += 1
        path = tmp_path / f"batch-{number}.jsonl"
        path.write_text("\n".join(lines))
        files.append(BatchFile(path, T0 + batch.clock))
    return [json.loads(line) for line in main(pipeline, files)]


def story(tmp_path: Path, batches: Iterable[Batch], pipeline: Pipeline = SMALL) -> list[str]:
    """What became of the events, sorted: `1 pair a0 m50`, `1 left_only a0`, `2 late m0`, `open a0`; batch number in front."""
    batches = list(batches)
    words = {"a": [], "m": []}
    for word in " ".join(batch.events for batch in batches).split():
        words[word[0]].append(word)
    told = []
    for row in play(tmp_path, batches, pipeline):
        if row["table"] == "compound_events":
            sides = [row[side].partition("#")[0] for side in ("analytics", "metrics") if row[side]]
            told.append(f"{row['batch']} {row['kind']} {' '.join(sides)}")
        elif row["table"] == "rejected_events":
            told.append(f"{row['batch']} {row['reason']} {_word(words, row['source'])}")
        elif row["table"] == "open_events":
            told.append(f"open {_word(words, row['source'])}")
    return sorted(told)


def _word(words: dict[str, list[str]], source: str) -> str:
    topic, _, offset = source.split("-")
    return words[topic[0]][int(offset)]
