"""What a proposal comes from, and what is doubtful about it, in lines for people."""

from __future__ import annotations

from collections.abc import Mapping

from include.config.pipeline import AS_IS, JSON
from include.config.pipeline_file import SCHEMAS
from include.config.time_text import count, duration, setting
from spark_jobs.joining.fields import USUAL
from spark_jobs.joining.picture import histogram, signed
from spark_jobs.joining.settings import FoundSettings, SampledSide
from spark_jobs.joining.times import RECORD_TIMESTAMP, TimeField
from spark_jobs.joining.trial import Share

_CLOSE, _SHOWN = 0.1, 3
# Below these a line says so.
_SURE_ALONE, _SURE_SHARE, _FEW_PAIRS = 0.9, 0.5, 30
# A skew that is worth a word.
_SKEWED_MS = 1_000


def about_records(looked: SampledSide) -> list[str]:
    """What was looked at."""
    documents = looked.documents
    newest = "all" if documents.is_whole else "the newest"
    file = f" by {documents.file.name}, which belongs into the folder {SCHEMAS} beside this file" if documents.file else ""
    keys = f", keys {documents.key_format}" if documents.key_format != JSON else ""
    return [
        f"{newest} {count(documents.total, 'record')} of {documents.topic}: {documents.format}{keys}{file}",
        *documents.notes,
    ]


def about_time(found: FoundSettings, number: int) -> list[str]:
    """Where the time of a side is, and its payload."""
    time, payload = found.times[number], found.payloads[number]
    kind = f" ({time.format}{f', read as {time.zone}' if time.zone else ''})" if time.format else ""
    away = "" if time.source == RECORD_TIMESTAMP else f", in the median {duration(int(time.away_ms))} from the record's"
    rest = f"payload: {payload.source}, {payload.share:.0%} of what is not key or time"
    if payload.source == "$value":
        rare = [f"{payload.rare} that fewer than half of them have"] if payload.rare else []
        rest = f"payload: the whole message; its parts {', '.join([*payload.others[:8], *rare]) or 'beside key and time'} weigh alike"
    return [f"time: {time.source}{kind}{away}", rest]


def about_kinds(found: FoundSettings, number: int) -> list[str]:
    """Which kinds of events of a side pair, where only those are taken."""
    kinds = found.kinds[number]
    if kinds is None:
        return []
    return [
        f"only: of the kinds by {kinds.source}, {_kinds_text(kinds.pairing)} have a partner; not {_kinds_text(kinds.others)}",
        "(all else is made of the former alone; leave `only` out if events of the others are to be compounds of one side)",
    ]


def _kinds_text(kinds: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{kind} ({paired:,} of {number:,})" for kind, (paired, number) in kinds.items())


def about_key(found: FoundSettings) -> list[str]:
    """Which fields hold the same."""
    key = found.key
    lines = [
        f"{field}: {field.shared_left:.0%} of left and {field.shared_right:.0%} of right records have a value of the other side"
        for field in key.fields
    ]
    pairs = f"{round(key.peak.excess):,} pairs in the sample, {key.peak.by_chance:.0f} more by chance"
    return [*lines, f"events with equal keys about the same time are of one pair in {key.alone:.1%} ({pairs})"]


def about_durations(found: FoundSettings) -> dict[str, list[str]]:
    """By setting: what it comes from; the tolerance with a picture of the distances."""
    chosen = found.durations
    late = f"events arrive up to {duration(chosen.arrival[0])} (left) and {duration(chosen.arrival[1])} (right) after their times"
    if chosen.is_loaded:
        late = "a guess: records were written long after their times, so they do not show how late events come"
    skew = f"right times minus left times are {signed(chosen.skew)} in the median"
    return {
        "tolerance": [f"distances of the nearest events of both sides: {skew}", *histogram(chosen.lags)],
        "gap": ["as the tolerance: longer only if a pair may have other events of its key between its sides"],
        "grace": [late],
        "max_future": ["times are ahead of the records' by more than the default allows"],
        "max_session": ["the default would be shorter than a few gaps"],
    }


def about_share(shares: tuple[Share, Share]) -> list[str]:
    """What the rules make of the sample."""
    lines = []
    for name, share in zip(("left", "right"), shares, strict=True):
        rejected = ", ".join(f"{number:,} {reason}" for reason, number in sorted(share.rejected.items()))
        events = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(share.outcomes.items()))
        lines.append(
            f"{name}: {share.ratio:.1%} would pair, {share.paired:,} of {count(share.judged, 'event')} where both topics have "
            f"records (all: {events or 'no event'}; rejected: {rejected or 'none'})"
        )
    return lines


def doubts(found: FoundSettings) -> list[str]:
    """What somebody should look at."""
    lines = [*_doubts_of_key(found), *_doubts_of_times(found)]
    for side, kinds in zip(("left", "right"), found.kinds, strict=True):
        if kinds is not None:
            lines.append(
                f"`only` of {side} is a proposal: kinds of {kinds.source} that the sample does not have are left out, too"
            )
    chosen, names = found.durations, found.names
    if abs(chosen.skew) >= _SKEWED_MS:
        ahead = "right" if chosen.skew > 0 else "left"
        lines.append(
            f"times of the {ahead} side are {duration(abs(chosen.skew))} later in the median, by a clock that is wrong or because its events "
            f"happen later; the tolerance of {setting(chosen.tolerance)} has to cover that"
        )
    for side, payload in zip(("left", "right"), found.payloads, strict=True):
        if payload.missing:
            lines.append(
                f"{payload.missing:.1%} of {side} records with a key lack {payload.source}: their compounds would have no {payload.name}; "
                f"are they other events (setting `only`)?"
            )
    for name, field in zip(names, found.key.fields, strict=True):
        for side, column in (("left", field.left), ("right", field.right)):
            if column.field.share < 1:
                lines.append(
                    f"{1 - column.field.share:.1%} of {side} records lack {column.field.source} ({name}): they would be rejected as missing_key"
                )
    return lines


def doubts_of_share(shares: tuple[Share, Share]) -> list[str]:
    """What somebody should look at in what the rules make of the sample."""
    if max(share.ratio for share in shares) >= _SURE_SHARE:
        return []
    return [
        "less than half of each side would pair: are there other events on the topics (setting `only`), or is a key missing?"
    ]


def _doubts_of_key(found: FoundSettings) -> list[str]:
    key, mine = found.key, set(map(str, found.key.fields))
    lines: list[str] = []
    for other in found.keys[1:]:
        theirs = set(map(str, other.fields))
        columns = [column for field in other.fields for column in (field.left, field.right)]
        if any(column.field.share < USUAL for column in columns):
            continue
        if other.score >= key.score - _CLOSE and not mine < theirs and len(lines) < _SHOWN:
            lines.append(f"two candidates for the key: {key} ({key.score:.0%}), {other} ({other.score:.0%})")
    if key.alone < _SURE_ALONE:
        lines.append(
            f"the key does not tell pairs apart: within a minute only {key.alone:.0%} of the events with equal keys are one pair"
        )
    if found.crossed:
        what = f"in {found.crossed:.0%} of the pairs the two sides have {' and '.join(found.names)} in changed places"
        either = "key_order: any pairs these, too; leave it out if (a, b) and (b, a) are different pairs"
        lines.append(f"{what}; {either if found.key_order != AS_IS else 'key_order: any would hardly pair more'}")
    if key.peak.excess < _FEW_PAIRS:
        lines.append(f"the key comes from few pairs ({round(key.peak.excess)}): try a larger --sample")
    return lines


def _doubts_of_times(found: FoundSettings) -> list[str]:
    lines = []
    for name, looked, time in zip(("left", "right"), found.sides, found.times, strict=True):
        others = [each for each in looked.times if each.is_about_now and RECORD_TIMESTAMP not in (each.source, time.source)]
        candidates = [time, *(each for each in others if each.source != time.source)]
        if len(candidates) > 1:
            lines.append(f"candidates for the time of {name}: {', '.join(map(_time_text, candidates[:_SHOWN]))}")
        if time.source == RECORD_TIMESTAMP:
            lines.append(f"{name} has no field that is surely the time of its events, so the record's timestamp is taken")
        if time.or_format is not None:
            lines.append(
                f"days of {name} are read by {time.format}, which is nearer to the records' timestamps; by {time.or_format} all of the sample "
                "could be read, too"
            )
        if time.zone is not None:
            lines.append(f"times of {name} name no zone; they are read as {time.zone}")
    return lines


def _time_text(time: TimeField) -> str:
    return f"{time.source} ({duration(int(time.away_ms))} from the record's)"
