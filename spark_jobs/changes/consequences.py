"""For each setting: from when a new value counts, and what follows from it. docs/upgrading.md has the same table; a test compares them."""

from __future__ import annotations

from typing import NamedTuple

from include.config.setting_changes import Change
from include.config.setting_types import parse_duration

NEXT_BATCH = "from the next batch that is planned on"
NEXT_JOB = "from the next job on, also for a batch that is planned already"
NEXT_PUBLICATION = "from the next publication on"
NEXT_MAINTENANCE = "from the next maintenance on"
NEXT_PARSE = "as soon as Airflow has read the file"
NEVER = "never"


class Consequence(NamedTuple):
    """`since`: from when the new value counts. `larger`, `smaller`: what follows from a longer or shorter duration, or from any change."""

    since: str
    larger: str
    smaller: str = ""


_OF_RECORDS = (
    "payload_from", "key", "timestamp", "timestamp_format", "timestamp_zone", "only", "format", "schema", "message", "key_format",
)  # fmt: skip
_IDENTITY = Consequence(NEVER, "tables and position are made of it; the changed pipeline needs a file name of its own")
_TOPICS = Consequence(
    NEXT_BATCH,
    "topics may only be added: a new one is read from its first offset on, and what it has from before the clock is late",
)
CONSEQUENCES: dict[str, Consequence] = {
    **dict.fromkeys(
        [f"{side}.{name}" for side in ("left", "right") for name in ("payload", "compounds")]
        + ["output.topic", "output.key", "key", "key_order"],
        _IDENTITY,
    ),
    **dict.fromkeys(("left.topic", "left.topic_pattern", "right.topic", "right.topic_pattern"), _TOPICS),
    "output.fields": Consequence(
        NEXT_BATCH, "messages of later batches have the new fields, also those that correct earlier compounds; published ones stay as they are"
    ),
    "output.orphans_topic": Consequence(
        NEXT_BATCH,
        "orphans of later batches go to the new topic; those published before stay where they are, and are taken back only on topics that the file still names",
    ),
    "output.rejected_topic": Consequence(
        NEXT_BATCH,
        "records that later batches reject are also sent to the new topic; those rejected before are not sent, and what is on a former topic stays there",
    ),
    **dict.fromkeys(
        [f"{side}.{name}" for side in ("left", "right") for name in _OF_RECORDS] + ["key_text", "timestamp_format", "timestamp_zone"],
        Consequence(NEXT_BATCH, "records are read the new way; landed ones, and replays of them, stay as they were landed"),
    ),
    "output.format": Consequence(
        NEXT_PUBLICATION, "compounds are sent in the new format; those on the topic stay as they are, so consumers have to read both"
    ),
    **dict.fromkeys(
        ("left.connection", "right.connection", "output.connection"),
        Consequence(NEXT_JOB, "jobs ask the other cluster, also for a batch that is planned already; it must have the very same topic, or they refuse it"),
    ),
    "timestamp": Consequence(
        NEXT_BATCH, "records are read with the new field; landed ones, and replays of them, keep the time they were landed with"
    ),
    "tolerance": Consequence(
        NEXT_BATCH,
        "open events further apart become pairs, too; published orphans stay until you replay their interval",
        "open events further apart than this become orphans; published pairs stay until you replay their interval",
    ),
    "gap": Consequence(
        NEXT_BATCH,
        "open sessions join across longer silences and close later; an event that is no longer late can be left alone by a published session",
        "open sessions are cut at shorter silences and close earlier; events that come after that are late",
    ),
    "grace": Consequence(
        NEXT_BATCH,
        "open sessions close later; an event that is no longer late can be left alone by a published session",
        "open sessions close earlier; events that come after that are late",
    ),
    "max_future": Consequence(
        NEXT_BATCH,
        "records stamped further ahead of the wall clock are accepted; those rejected before stay rejected",
        "records stamped further ahead of the wall clock are rejected; events that are open already stay",
    ),
    "max_session": Consequence(
        NEXT_BATCH, "longer chains of open events stay one session", "longer chains of open events are cut into several sessions"
    ),
    "matching": Consequence(NEXT_BATCH, "open sessions are decided the new way; published compounds stay until you replay their interval"),
    "late": Consequence(NEXT_BATCH, "only late events of batches planned with replay start replays by themselves"),
    "clock": Consequence(
        NEXT_BATCH,
        "the clock goes on from where it is and never back: with lag_aware silence closes sessions, with stream_time only later events do",
    ),
    "drop_duplicates": Consequence(NEXT_BATCH, "with true, open events that repeat another one are rejected, too; with false both stay"),
    "max_records_per_batch": Consequence(NEXT_BATCH, "a backlog is read in batches of the new size"),
    "offset_gaps": Consequence(NEXT_JOB, "with fail, a batch with an offset that holds no record is not landed; count is the way out"),
    "consumer_group": Consequence(NEXT_JOB, "lag tools and on_data see the new group, which shows everything as waiting until the next batch is landed"),
    "schedule": Consequence(NEXT_PARSE, "the DAG runs at other times; no batch is lost or repeated"),
    "replay_schedule": Consequence(NEXT_PARSE, "a backfill has other intervals; those replayed before may be replayed again, which changes nothing"),
    "run_deadline": Consequence(NEXT_PARSE, "late runs cause an alert at another time"),
    **dict.fromkeys(("alerts.slack", "alerts.pagerduty", "alerts.email"), Consequence(NEXT_PARSE, "the next alert is sent there")),
    "quality.max_orphan_ratio": Consequence(NEXT_JOB, "the next report warns at another ratio"),
    "quality.orphan_ratio_mads": Consequence(NEXT_JOB, "the next report warns at another distance"),
    "quality.history_batches": Consequence(NEXT_JOB, "the next report compares with another number of batches"),
    "quality.max_skew_drift": Consequence(NEXT_JOB, "the next report warns at another drift"),
    "quality.keep_pages": Consequence(NEXT_JOB, "with fewer, every 50th batch deletes older pages; with more, none comes back"),
    "quality.silence": Consequence(NEXT_JOB, "a side counts as silent after another time"),
    "quality.silent_share": Consequence(NEXT_JOB, "nearly nothing pairs from another share of orphans on"),
    "quality.severities": Consequence(
        NEXT_JOB, "the next report fails, or only warns, where these checks are broken; with before_publish, batches that fail them are held back"
    ),
    "quality.gate": Consequence(
        NEXT_JOB, "with before_publish, paired batches wait for their report; with after_publish, batches that were held back are published"
    ),
    "maintenance.schedule": Consequence(NEXT_PARSE, "the maintenance DAG runs at other times"),
    "maintenance.reconcile": Consequence(NEXT_PARSE, "the maintenance DAG has a task more, or one less"),
    "maintenance.raw_retention": Consequence(NEXT_MAINTENANCE, "rows older than this are removed for good; removed ones do not come back"),
    "maintenance.rejected_retention": Consequence(NEXT_MAINTENANCE, "rows older than this are removed for good; removed ones do not come back"),
    "maintenance.compound_retention": Consequence(NEXT_MAINTENANCE, "rows older than this are removed for good; removed ones do not come back"),
    "maintenance.ledger_retention": Consequence(NEXT_MAINTENANCE, "rows older than this are removed for good; their sums stay"),
    "maintenance.archive": Consequence(NEXT_MAINTENANCE, "rows that are removed from then on are written to the new folder; old files stay where they are"),
    "maintenance.time_travel": Consequence(
        NEXT_MAINTENANCE,
        "old versions of open_events are kept longer; those that are deleted do not come back",
        "older versions of open_events are deleted: no rewind can return to their batches",
    ),
}  # fmt: skip


def consequence_of(change: Change) -> str:
    """The sentence, without a full stop."""
    known = CONSEQUENCES[change.setting]
    is_smaller = known.smaller and parse_duration(change.new) < parse_duration(change.old)
    return known.smaller if is_smaller else known.larger
