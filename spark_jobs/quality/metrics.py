"""The numbers of a batch, counted afresh from the tables and the topics rather than taken from the jobs that wrote them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from include.config.pipeline import AFTER_PUBLISH
from spark_jobs.kafka.clusters import ask_topics
from spark_jobs.kafka.offsets import TopicsNow, wait_for_markers
from spark_jobs.kafka.open_transactions import Unreadable, unreadable_problem
from spark_jobs.kafka.output_topic import topics_gone
from spark_jobs.kafka.records import with_offsets
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.batch import Batch, stored_batches
from spark_jobs.quality.checks import continuity, side_laws, totals
from spark_jobs.quality.dead_letters import (
    DeadLetterScope,
    dead_letter_facts,
    dead_letter_metrics,
    dead_letter_scope,
    rejected_topics,
)
from spark_jobs.quality.delivery import DeliveryScope, delivery_metrics, delivery_scope, message_facts, topics_of
from spark_jobs.quality.facts import Facts, count_facts, erased_facts, open_counts, open_facts, table_facts
from spark_jobs.quality.foreign_changes import FOREIGN_CHANGES, count_changes, foreign_changes, watched_changes
from spark_jobs.quality.history import comparable, drift_against, ratio_against
from spark_jobs.quality.landed_records import Ranges, record_facts, with_gaps
from spark_jobs.quality.late_intervals import HEALED, LateHistory, healed_breakdowns, late_history, looks_of
from spark_jobs.quality.numbers import ORPHANS, SIDES, Metrics, NotJudged, rows_of
from spark_jobs.quality.orphans import LOOK_BACK, orphan_breakdowns, orphan_facts, orphan_metrics, orphan_scope
from spark_jobs.quality.silence import silence_metrics
from spark_jobs.rules.reasons import AT_PAIRING, FILTERED, Reason
from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    ALL_PUBLICATIONS,
    PUBLISHED,
    PUBLISHING,
    REPORTED,
    LedgerRow,
    acknowledged_compounds,
    paired_batches,
)
from spark_jobs.tables.records import ERASURE, REPLAY, REWIND
from spark_jobs.tables.schemas import OPEN
from spark_jobs.tables.warehouse import Warehouse

# What a correction says of an orphan that has its partner now: the left one keeps its pair_id, the right one is retracted.
_HEALED = {"left": "upsert pair again", "right": "retract right_only again"}


class ReportInput(NamedTuple):
    """`batches`: those to be reported. `earlier`: those shortly before. `history`: the reported ones with their metrics, by batch_id. `topics`:
    what the broker holds; `delivery`, `dead_letters`: what to read back from the output and the rejected topic, or why that is not possible;
    `published`: the last published batch; `inputs`: the topics of both sides; `ledger`: the rows of all
    these and of what was published since; `late`: if a replay is among the batches, the late events before them.
    """

    batches: Sequence[Batch]
    earlier: Sequence[Batch]
    history: Sequence[Batch]
    topics: TopicsNow
    delivery: DeliveryScope | NotJudged | None
    dead_letters: DeadLetterScope | NotJudged | None
    published: int
    inputs: SideTopics
    ledger: Sequence[LedgerRow] = ()
    late: LateHistory = LateHistory()


def load_report_input(warehouse: Warehouse, ledger: Ledger, last: Mapping[str, int]) -> ReportInput | None:
    """None if no batch is to be reported. `last`: the ledger's `last_ids`. Raises JobProblem if the broker cannot be asked."""
    done, published = last[REPORTED], last[PUBLISHED]
    history = stored_batches(warehouse, done + 1 - warehouse.pipeline.quality.history_batches, done)
    # What was published up to the last report was read back by it.
    sent = min(int(history[-1].metrics.get("published_through", done)) if history else 0, published)
    rows = ledger.rows(max(min(done + 1 - LOOK_BACK, sent), 1))
    known = [Batch.of(steps) for steps in paired_batches(rows)]
    batches = [batch for batch in known if batch.batch_id > done]
    if not batches:
        return None
    publications = [row for row in rows if row.step in (*ALL_PUBLICATIONS, PUBLISHING)]
    valid, inputs = {batch.batch_id for batch in known}, batches[-1].paired.topics
    topics, delivery, dead_letters = _ask(warehouse, publications, valid, sent, published, inputs)
    earlier = [batch for batch in known if batch.batch_id <= done]
    history = [*rewind_targets(warehouse, batches, history), *history]
    late = late_history(warehouse, done) if any(batch.paired.kind == REPLAY for batch in batches) else LateHistory()
    return ReportInput(batches, earlier, history, topics, delivery, dead_letters, published, inputs, rows, late)


def rewind_targets(warehouse: Warehouse, batches: Sequence[Batch], history: Sequence[Batch]) -> list[Batch]:
    """The batches that the rewinds among `batches` go on from, where these are older than the history."""
    oldest = history[0].batch_id if history else 1
    wanted = {batch.goes_on_from(0) for batch in batches if batch.paired.kind == REWIND}
    return [past for number in sorted(wanted) if 0 < number < oldest for past in stored_batches(warehouse, number, number)]


def _ask(
    warehouse: Warehouse,
    publications: list[LedgerRow],
    valid: Collection[int],
    after: int,
    until: int,
    inputs: SideTopics,
) -> tuple[TopicsNow, DeliveryScope | NotJudged | None, DeadLetterScope | NotJudged | None]:
    pipeline = warehouse.pipeline
    settings = kafka_settings(pipeline.output_connection)
    outputs = topics_of(pipeline, after, (row for row in publications if row.batch_id <= until))
    outputs += rejected_topics(publications, after, until)
    # Earlier settings may name topics that were deleted since.
    gone = topics_gone(settings, {*outputs} - {*pipeline.output_topics})
    outputs = [topic for topic in outputs if topic not in gone]
    asked = [*inputs.left, *inputs.right, *outputs]
    topics = ask_topics(pipeline, asked)

    def scopes() -> tuple[DeliveryScope | NotJudged | None, DeadLetterScope | NotJudged | None]:
        letters = dead_letter_scope(publications, valid, after, until, topics)
        return delivery_scope(pipeline, publications, after, until, topics), letters

    with suppress(Unreadable):
        return topics, *scopes()
    # What was committed a moment ago can be read a moment later.
    for topic in outputs:
        wait_for_markers(settings, topic)
    topics = ask_topics(pipeline, asked)
    try:
        return topics, *scopes()
    except Unreadable as problem:
        raise unreadable_problem(settings, problem) from None


def measure(warehouse: Warehouse, given: ReportInput) -> list[Batch]:
    """The batches of the report with their metrics. The same Spark jobs for all of them."""
    batches, gaps, quality = given.batches, with_gaps(given.batches, given.topics), warehouse.pipeline.quality
    facts = _facts(warehouse, given, gaps)
    history, previous = list(given.history), next(iter(reversed(given.earlier)), None)
    published = [batch for batch in batches if batch.batch_id <= given.published]
    # The messages since the last report are judged with one batch, the newest that is published.
    has_delivery, found = (published or batches)[-1].batch_id, list[Batch]()
    for batch in batches:
        before = _metrics_before(batch, previous, history)
        metrics = _counts(batch, facts) | side_laws(batch, facts, batch.batch_id in gaps) | continuity(batch, previous)
        metrics["published_through"] = given.published
        # Judged before it may be published, a batch has no acknowledged records yet.
        if quality.gate == AFTER_PUBLISH:
            metrics["publishing_difference"] = metrics["compounds"] - acknowledged_compounds(batch.steps)
        metrics |= totals(metrics, before, batch.batch_id)
        metrics |= silence_metrics(batch, facts, metrics, before, quality)
        if batch.is_live:
            window = history[-quality.history_batches :]
            metrics |= orphan_metrics(batch, facts) | _against(metrics, batch, facts, window)
            batch = replace(batch, breakdowns=orphan_breakdowns(batch, facts, given.inputs))
        if batch.paired.kind == REPLAY:
            late = LateHistory([*given.late.batches, *found], [*given.late.looks, *looks_of(found)])
            covered = healed_breakdowns(batch.batch_id, batch.paired.replay.window, late)
            metrics[HEALED] = sum(row.number for row in rows_of(covered, HEALED))
            batch = replace(batch, breakdowns=covered)
        changed = foreign_changes(warehouse, batch, previous)
        if batch.batch_id == batches[-1].batch_id:
            changed += watched_changes(warehouse, given.ledger, given.history[-1].breakdowns if given.history else ())
        batch = replace(batch, breakdowns=[*batch.breakdowns, *changed])
        metrics[FOREIGN_CHANGES] = count_changes(changed)
        if batch.batch_id == has_delivery:
            metrics |= delivery_metrics(warehouse, given.delivery, facts)
            metrics |= dead_letter_metrics(warehouse, given.dead_letters, facts)
        numbers = {name: float(value) for name, value in metrics.items()}
        changes, new = batch.changed_since(previous), batch.topics_since(previous)
        batch = replace(batch, metrics=numbers, changes=changes, new_topics=new)
        found.append(batch)
        history.append(batch)
        previous = batch
    return found


def _facts(warehouse: Warehouse, given: ReportInput, gaps: Ranges) -> Facts:
    batches, delivery = given.batches, given.delivery if isinstance(given.delivery, DeliveryScope) else None
    letters = given.dead_letters if isinstance(given.dead_letters, DeadLetterScope) else None
    first, last = min(batch.counted_ids[0] for batch in batches), batches[-1].batch_id
    sent_from = min([first, *(delivery.batch_ids[:1] if delivery else ())])
    rejected_from = min([first, *(letters.batches if letters else ())])
    versions = [row.versions[OPEN] for batch in batches for row in (batch.planned, batch.paired)]
    counted = open_counts(warehouse, given.inputs, versions)
    planned = [batch.planned for batch in batches if batch.is_live]
    # Not late is what ends at clock - gap - grace or later; alone in its session, an event is its end.
    needless = {row.batch_id: row.clock - row.pipeline.gap_ms for row in planned if row.clock is not None}
    tables = table_facts(warehouse, given.inputs, first, last, sent_from, rejected_from, batches[-1].at, needless)
    if counted is None:
        tables += open_facts(warehouse, given.inputs, versions)
    for batch in batches:
        if batch.paired.kind == ERASURE:
            tables += erased_facts(warehouse, given.inputs, batch.batch_id, batch.planned.versions[OPEN])
    scope = orphan_scope(batches, given.earlier)
    topics = [record_facts(warehouse, gaps)] if gaps else []
    topics += [message_facts(warehouse, delivery)] if delivery and with_offsets(delivery.spans) else []
    topics += [dead_letter_facts(warehouse, given.inputs, letters)] if letters and with_offsets(letters.spans) else []
    return count_facts(counted or [], tables, orphan_facts(warehouse, scope) if scope else [], topics)


def _metrics_before(batch: Batch, previous: Batch | None, history: Sequence[Batch]) -> Metrics:
    """The metrics of the batch that this one goes on from; empty where they are not known."""
    number = batch.goes_on_from(previous.batch_id if previous else 0)
    return next((past.metrics for past in reversed(history) if past.batch_id == number), {})


def _counts(batch: Batch, facts: Facts) -> Metrics:
    ids, counted_ids, live = (batch.batch_id,), batch.counted_ids, batch.is_live
    kinds = {kind: facts.number("hour", ids, kind) for kind in ("pair", *ORPHANS)}
    compounds = sum(kinds.values())

    def both_sides(what: str, batch_ids: Sequence[int], *labels: str) -> int:
        return sum(facts.number(f"{what}_{side}", batch_ids, *labels) for side in SIDES)

    healed = {} if batch.paired.kind != REPLAY else _HEALED
    return {
        "wall_time": batch.planned.wall_time,
        "live": live,
        # Less than was planned where the broker lost some of it before it was landed, which `lost` counts.
        "planned": sum(at.planned for at in batch.landed.offsets),
        **{name: getattr(batch.landing, name) for name in ("offset_gaps", "lost", "gone_at_start", "backlog", "held")},
        "landed": both_sides("raw", counted_ids),
        "accepted": both_sides("raw", counted_ids, "accepted"),
        "revised": batch.landing.revised,
        "filtered": both_sides("raw", counted_ids, FILTERED),
        "open_before": both_sides("open", (batch.planned.versions[OPEN],)),
        "open_after": both_sides("open", (batch.paired.versions[OPEN],)),
        # Corrections are no outcomes of events.
        **{kind: number if live else 0 for kind, number in kinds.items()},
        "collapsed": batch.pairing.collapsed,
        "compounds": compounds,
        "corrections": 0 if live else compounds,
        "rejected": both_sides("rejected", counted_ids, *Reason),
        **{f"rejected_{reason}": both_sides("rejected", counted_ids, reason) for reason in Reason},
        **{f"{reason}_{side}": facts.number(f"rejected_{side}", ids, reason) for reason in AT_PAIRING for side in SIDES},
        "orphan_ratio": sum(kinds[kind] for kind in ORPHANS) / compounds if live and compounds else 0.0,
        **{f"healed_{side}": facts.number("compound", ids, correction) for side, correction in healed.items()},
    }


def _against(metrics: Metrics, batch: Batch, facts: Facts, history: Sequence[Batch]) -> Metrics:
    """The orphan ratio and the sides' clocks against those of the comparable batches before."""
    others, by = comparable(batch.at, history)
    found: Metrics = {"comparable_batches": len(others), "comparable_by": by}
    ratios = [past.metrics["orphan_ratio"] for past in others]
    found |= ratio_against(metrics["orphan_ratio"], metrics["compounds"], ratios)
    if skew := facts.of("skew", (batch.batch_id,)):
        apart = skew[0][2]
        found |= {"skew_q1": apart.low, "skew_median": apart.middle, "skew_q3": apart.high}
        medians = [past.metrics["skew_median"] for past in others if "skew_median" in past.metrics]
        found |= drift_against(apart.middle, medians)
    return found
