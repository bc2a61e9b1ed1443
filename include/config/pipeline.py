"""The settings of a pipeline: frozen, every duration in epoch milliseconds. `include.config.pipeline_file` reads them from YAML.

DAG files and jobs both work with them, so neither pyspark nor airflow is imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from include.config.project import ROOT

MS_PER_UNIT = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# A year: anything longer is a mistake, and sums of a few of these stay far from the end of 64 bits.
LONGEST_MS = 365 * MS_PER_UNIT["d"]
# A pipeline's replay DAG and its maintenance DAG are named after it, with this behind.
REPLAY_SUFFIX, MAINTENANCE_SUFFIX = "_replay", "_maintenance"
# In the place of a cron expression: runs begin when there are records.
ON_DATA = "on_data"
# Each file here is a pipeline.
PIPELINES = ROOT / "include" / "pipelines"


def pipeline_of(dag_id: str) -> str:
    """The name of a pipeline, given that of one of its DAGs."""
    return dag_id.removesuffix(REPLAY_SUFFIX).removesuffix(MAINTENANCE_SUFFIX)


class PipelineError(ValueError):
    """A pipeline file that cannot work; the text is one line: file, key, consequence."""


@dataclass(frozen=True)
class Side:
    """One of the two input topics and the body field in which its events differ."""

    topic: str
    payload: str


# With fewer batches before it, a batch is not compared.
FEWEST_BATCHES = 8
# Fewer orphans in a row may be chance.
FEWEST_ORPHANS = 10
BEFORE_PUBLISH, AFTER_PUBLISH = "before_publish", "after_publish"
# How the fields of an output key become one text.
ESCAPED, AS_JSON = "escaped", "json"


@dataclass(frozen=True)
class Quality:
    """Thresholds of the quality report, all inclusive. `max_orphan_ratio`: orphans / compounds of a batch.

    `orphan_ratio_mads`: how many median absolute deviations the ratio may be off the median of the comparable ones among the last
    `history_batches`. `max_skew_drift_ms`: how far the sides' clocks may move against each other in that time. `keep_pages`: of so many
    batches, the newest, the pages are kept. `gate`: whether a batch is judged before it is published, or after. `silence_ms`: so long one side may
    send alone, or nearly nothing pair (None: for ever); `silent_share`: from this share of orphans on nearly nothing pairs.
    """

    max_orphan_ratio: float = 1.0
    orphan_ratio_mads: float = 6.0
    history_batches: int = 50
    max_skew_drift_ms: int = 30_000
    keep_pages: int = 2_000
    gate: str = AFTER_PUBLISH
    silence_ms: int | None = 1_800_000
    silent_share: float = 0.95


@dataclass(frozen=True)
class Maintenance:
    """The care of the tables. `schedule`: cron, None: only by hand. `…_retention_ms`: age from which rows go, None: never; of the
    ledger: also those of `quality_metrics`. `archive`: folder into which rows are written before they go, None: nowhere.
    `time_travel_ms`: how long an old version of `open_events` can be read, and so be gone back to.
    """

    schedule: str | None = "30 3 * * *"
    raw_retention_ms: int | None = None
    time_travel_ms: int = 3 * MS_PER_UNIT["d"]
    rejected_retention_ms: int | None = None
    compound_retention_ms: int | None = None
    ledger_retention_ms: int | None = None
    archive: str | None = None


@dataclass(frozen=True)
class Pipeline:
    """All settings of one pipeline. Durations in ms; `key` in the order in which the output key has its fields.

    `output_key`: how these become one text, `escaped` or `json`.
    """

    name: str
    left: Side
    right: Side
    output_topic: str
    key: tuple[str, ...]
    timestamp: str
    tolerance_ms: int
    gap_ms: int
    grace_ms: int
    max_future_ms: int
    max_session_ms: int
    matching: str
    late: str
    clock: str
    drop_duplicates: bool
    offset_gaps: str
    schedule: str | None
    max_records_per_batch: int
    # Plans made before there were such settings have none.
    consumer_group: str | None = None
    output_key: str = ESCAPED
    replay_schedule: str = "0 * * * *"
    run_deadline_ms: int = 1_800_000
    quality: Quality = field(default_factory=Quality)
    maintenance: Maintenance = field(default_factory=Maintenance)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Left, right."""
        return self.left, self.right

    @property
    def topics(self) -> tuple[str, str, str]:
        """Left, right, output."""
        return self.left.topic, self.right.topic, self.output_topic

    def to_json(self) -> str:
        """Canonical text: equal settings give equal bytes."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Pipeline:
        """Inverse of `to_json`."""
        settings = json.loads(text)
        settings["left"], settings["right"] = Side(**settings["left"]), Side(**settings["right"])
        settings["key"] = tuple(settings["key"])
        settings["quality"] = Quality(**settings["quality"])
        settings["maintenance"] = Maintenance(**settings.get("maintenance", {}))
        return Pipeline(**settings)

    @property
    def config_hash(self) -> str:
        """Sixteen hex digits that change with any setting."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def identity(self) -> tuple[Any, ...]:
        """What the tables are made of: it may not change once a pipeline has run."""
        return self.left, self.right, self.output_topic, self.key, self.output_key


def parse_duration(text: object) -> int:
    """Milliseconds of a duration such as ``90s``; raises ValueError on anything else.

    >>> parse_duration("1m"), parse_duration("500ms"), parse_duration("2h"), parse_duration("0s")
    (60000, 500, 7200000, 0)
    >>> parse_duration("-1m")
    Traceback (most recent call last):
    ValueError: '-1m' is not a duration: write a whole number and a unit (ms, s, m, h, d), like 90s
    """
    found = re.fullmatch(r"(\d{1,15})(ms|s|m|h|d)", text) if isinstance(text, str) and text.isascii() else None
    if not found:
        raise ValueError(f"{text!r} is not a duration: write a whole number and a unit (ms, s, m, h, d), like 90s")
    duration = int(found[1]) * MS_PER_UNIT[found[2]]
    if duration > LONGEST_MS:
        raise ValueError(f"{text!r} is longer than a year")
    return duration
