"""Everything that is found out about two topics, in the order in which one thing needs the other."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from include.config.pipeline import AS_IS, JSON
from spark_jobs.formats.registry import Registry
from spark_jobs.joining import keys
from spark_jobs.joining.documents import Documents, NoProposal, read_documents
from spark_jobs.joining.durations import Durations, choose_durations
from spark_jobs.joining.fields import ABSENT, USUAL, Field, code_fields, find_fields
from spark_jobs.joining.joined import joined_field
from spark_jobs.joining.keys import (
    FEWEST_VALUES,
    LEAST_SHARED,
    Column,
    Key,
    KeyField,
    crossed_share,
    find_keys,
    have_equals,
    lags_of,
    shared_fields,
)
from spark_jobs.joining.kinds import Kinds, kinds_of, partners
from spark_jobs.joining.names import Payload, choose_payload, key_names
from spark_jobs.joining.schema_files import SchemaFile
from spark_jobs.joining.times import RECORD_TIMESTAMP, TimeField, find_times, is_loaded
from spark_jobs.kafka.newest import NewestRecords

# Steps of key_text that are tried where equal texts lead to no key.
_NORMAL = ("trim", "lower")
# Times of each side that are tried together.
_TRIED = 3
# Other times have to bring the sides so much nearer to each other than those nearest to the records' timestamps.
_NEARER, _NEARER_BY_RECORD = 0.5, 0.2
_SHOWN = 12


class SampledSide(NamedTuple):
    """One side: its documents, the fields in them, those that are times, the likeliest first."""

    documents: Documents
    fields: list[Field]
    times: list[TimeField]


class FoundSettings(NamedTuple):
    """What a pipeline file would say. `keys`: all candidates, the chosen one first, `key` with its fields in the order of the left side.

    `times`: those of both sides; `key_text`: steps; `names`: of the key fields. `crossed`: the share of pairs, of those of the key and these,
    in which the two fields of the key have changed places. `key_order`: as in a pipeline file. `kinds`: of each side, of which only some pair; then
    the rest comes from these alone.
    """

    left: SampledSide
    right: SampledSide
    key: Key
    keys: list[Key]
    key_text: tuple[str, ...]
    names: list[str]
    times: tuple[TimeField, TimeField]
    payloads: tuple[Payload, Payload]
    durations: Durations
    crossed: float
    key_order: str = AS_IS
    kinds: tuple[Kinds | None, Kinds | None] = (None, None)

    @property
    def sides(self) -> tuple[SampledSide, SampledSide]:
        """Left, right."""
        return self.left, self.right


def look(newest: NewestRecords, registry: Registry | None, file: SchemaFile | None) -> SampledSide:
    """Raises what `read_documents` raises."""
    return _look(read_documents(newest, registry, file))


def _look(documents: Documents) -> SampledSide:
    fields = find_fields(documents)
    times = find_times(documents, fields)
    return SampledSide(documents, fields, times)


def find_settings(left: SampledSide, right: SampledSide) -> FoundSettings:
    """Raises NoProposal if no fields lead to pairs."""
    found = _find(left, right)
    times = found.times[0].at, found.times[1].at
    masks = partners(found.key.fields, times, found.durations.tolerance, in_any_order=bool(found.crossed))
    columns = [(field.left.field.source, field.right.field.source) for field in found.key.fields]
    used = [{*sources, time.source} for sources, time in zip(zip(*columns, strict=True), found.times, strict=True)]
    first, second = (
        kinds_of(looked.fields, mine, mask) for looked, mine, mask in zip(found.sides, used, masks, strict=True)
    )
    if not (first or second):
        return found
    try:
        return _find(_of_kinds(left, first), _of_kinds(right, second))._replace(kinds=(first, second))
    except NoProposal:
        return found


def _of_kinds(looked: SampledSide, kinds: Kinds | None) -> SampledSide:
    """What there is without the records of other kinds."""
    if kinds is None:
        return looked
    (field,) = (each for each in looked.fields if each.source == kinds.source)
    return _look(looked.documents.where(np.array([value in kinds.pairing for value in field.values], bool)))


def _find(left: SampledSide, right: SampledSide) -> FoundSettings:
    shared: list[KeyField] = []
    is_any_equal = False
    for key_text in ((), _NORMAL):
        columns = _columns(left, right, key_text)
        shared = shared_fields(*columns) or shared
        is_any_equal = is_any_equal or have_equals(*columns)
        for times in _pairs_of_times(left, right):
            if found := find_keys(shared, keys.Times(times[0].at, times[1].at)):
                return _complete(left, right, found, key_text, _nearest_times(found[0], times, left, right))
    raise NoProposal(_nothing_pairs(left, right, shared, is_any_equal))


def _columns(left: SampledSide, right: SampledSide, key_text: tuple[str, ...]) -> tuple[list[Column], list[Column]]:
    mine, theirs = _candidates(left), _candidates(right)
    codes = code_fields(mine, theirs, key_text)
    return list(map(Column, mine, codes[0])), list(map(Column, theirs, codes[1]))


def _candidates(looked: SampledSide) -> list[Field]:
    """The fields that a key may have."""
    times = {time.source for time in looked.times if time.is_about_now}
    # A key that is no text can only be read by its fields.
    no_text = {"$key"} if looked.documents.key_format != JSON else set[str]()
    return [field for field in looked.fields if field.source not in times | no_text]


def _pairs_of_times(left: SampledSide, right: SampledSide) -> list[tuple[TimeField, TimeField]]:
    """Times of both sides, the likeliest first."""
    about_now = [_tried(looked) for looked in (left, right)]
    ranks = sorted(product(*(range(len(each)) for each in about_now)), key=sum)
    return [(about_now[0][first], about_now[1][second]) for first, second in ranks]


def _tried(looked: SampledSide) -> list[TimeField]:
    first, *others = (time for time in looked.times if time.is_about_now)
    # Those of records that were written later would bring together what was written together.
    useless = {RECORD_TIMESTAMP} if is_loaded(first, looked.documents.stamps) else set[str]()
    return [first, *(time for time in others if time.source not in useless)][:_TRIED]


def _nearest_times(
    key: Key, times: tuple[TimeField, TimeField], left: SampledSide, right: SampledSide
) -> tuple[tuple[TimeField, TimeField], Key]:
    """The times by which the two sides of a pair are nearest to each other, and the key with its lags by them."""
    best, of_best = times, key
    for other in _pairs_of_times(left, right):
        peak = lags_of(key.fields, keys.Times(other[0].at, other[1].at)).peak()
        nearer = _NEARER_BY_RECORD if any(time.source == RECORD_TIMESTAMP for time in other) else _NEARER
        if peak and peak.width < nearer * of_best.peak.width and peak.excess >= 0.9 * key.peak.excess:
            best, of_best = other, key._replace(peak=peak)
    return best, of_best


def _complete(
    left: SampledSide,
    right: SampledSide,
    found: list[Key],
    key_text: tuple[str, ...],
    timed: tuple[tuple[TimeField, TimeField], Key],
) -> FoundSettings:
    times, key = timed
    order = [field.source for field in left.fields]
    fields = tuple(sorted(key.fields, key=lambda each: order.index(each.left.field.source)))
    key = key._replace(fields=fields)
    names = key_names(key)
    used = [
        [*(getattr(field, side).field.source for field in fields), time.source]
        for side, time in zip(("left", "right"), times, strict=True)
    ]
    bodies = [_bodies_with(fields, side, looked) for side, looked in (("left", left), ("right", right))]
    first = choose_payload(left.documents.topic, bodies[0], used[0], names, "left")
    second = choose_payload(right.documents.topic, bodies[1], used[1], [*names, first.name], "right")
    if any(field.is_integer for field in fields):
        key_text = ("integers", *key_text)
    lags = lags_of(fields, keys.Times(times[0].at, times[1].at))
    stamps = left.documents.stamps.astype(np.int64), right.documents.stamps.astype(np.int64)
    durations = choose_durations(lags, key.peak, *times, stamps)
    crossed = crossed_share(key, keys.Times(times[0].at, times[1].at))
    return FoundSettings(left, right, key, found, key_text, names, times, (first, second), durations, crossed)


def _bodies_with(fields: tuple[KeyField, ...], side: str, looked: SampledSide) -> list[Any]:
    """The bodies of the records that have all fields of the key; others may be of another kind."""
    columns = [getattr(field, side).codes for field in fields]
    has_key = np.all([codes != ABSENT for codes in columns], axis=0)
    return [looked.documents.bodies[row] for row in np.flatnonzero(has_key)]


def _nothing_pairs(left: SampledSide, right: SampledSide, shared: list[KeyField], is_any_equal: bool) -> str:
    looked_at = "; ".join(
        f"{each.documents.topic}: {len(each.documents.bodies)} records, fields {_some(each.fields)}"
        for each in (left, right)
    )
    joined = joined_field(_candidates(left), _candidates(right))
    if not shared and not joined and is_any_equal:
        return (
            f"no fields of the two topics have enough values in common to name a pair: at least {FEWEST_VALUES} different ones, in "
            f"{LEAST_SHARED:.0%} of the records of each topic, and no few of them in most (looked at {looked_at}); try a larger --sample"
        )
    if joined:
        return f"nothing pairs: {joined}, and no setting takes a field apart; have the producer send both (looked at {looked_at})"
    if not shared:
        return f"no field of one topic has values of the other (looked at {looked_at})"
    same = _list([str(each) for each in shared if min(each.left.field.share, each.right.field.share) >= USUAL], len(shared))
    return (
        f"fields share values ({same}), but events with equal ones are no nearer in time than by chance, so nothing pairs "
        f"(looked at {looked_at}): are these the two topics, and do their newest records cover the same time? Try a larger --sample"
    )


def _some(fields: list[Field]) -> str:
    return _list([field.source for field in fields if field.share >= USUAL], len(fields))


def _list(names: list[str], number: int) -> str:
    """Some of the names, and how many there are in all if those are not all."""
    shown = names[:_SHOWN]
    return ", ".join(shown) + (f"{', … ' if shown else ''}({number} in all)" if len(shown) < number else "")
