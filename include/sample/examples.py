"""The examples of the gallery: which pipeline files each has, and what differs in its traffic. docs/gallery.md shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from include.config.pipeline import Pipeline
from include.config.pipeline_file import load_pipeline
from include.config.project import ROOT
from include.sample.chained import follow
from include.sample.records import Sample
from include.sample.traffic import USUAL, Shares, generate
from include.sample.traits import OF_CALLS, Traits

_GALLERY = ROOT / "include" / "sample" / "gallery"
_MINUTE_MS = 60_000


class Schema(NamedTuple):
    """A schema of a side's values, and the subject under which the registry has it."""

    side: int
    subject: str
    text: str


@dataclass(frozen=True)
class Example:
    """`files`: the pipelines, each before those that read its compounds. `unit`: what the traffic consists of, for people.

    `traits`: of the traffic, given the ids that the registry has for `schemas`.
    """

    files: tuple[Path, ...]
    unit: str = "calls"
    shares: Shares = USUAL
    schemas: tuple[Schema, ...] = ()
    traits: Callable[[Sequence[int]], Traits] = lambda ids: OF_CALLS

    @property
    def folder(self) -> Path:
        """Where the pipeline files are, and no others."""
        return self.files[0].parent

    @property
    def pipelines(self) -> list[Pipeline]:
        """What is in the files. Raises PipelineError."""
        return [load_pipeline(file) for file in self.files]

    def samples(
        self, calls: int, seed: int, now_ms: int, late_before: int | None = None, ids: Sequence[int] = ()
    ) -> list[Sample]:
        """The traffic of each pipeline, to be sent at once at `now_ms`; the same arguments give the same bytes.

        `late_before`: clock of the last batch of the first pipeline. A pipeline that reads compounds gets only what else it reads.
        """
        first, *others = self.pipelines
        traits = self.traits(ids)
        made = [generate(first, calls, seed, now_ms, late_before, self.shares, traits)]
        for pipeline in others:
            made.append(follow(pipeline, made[-1].truth, seed, now_ms, self.shares, traits))
        return made


def _basket_or_payment(rng: Random, side: int) -> str | None:
    if rng.random() < 0.02:
        return None
    if side == 1:
        method, transaction = rng.choice(("CARD", "TRANSFER", "WALLET")), rng.getrandbits(63)
        return f'{{"fee":{rng.randrange(10)}.{rng.randrange(100):02},"method":"{method}","transaction":{transaction}}}'
    total = "9999999999.99" if rng.random() < 0.01 else f"{rng.randrange(500)}.{rng.randrange(100):02}"
    articles = [rng.choice(("tea", "coffee", "Müsli", "抹茶", 'a 12" pan')) for _ in range(rng.randrange(4))]
    items = ",".join(
        f'{{"article":"{article.replace(chr(34), chr(92) + chr(34))}","pieces":{rng.randint(1, 9)}}}' for article in articles
    )
    coupon = rng.choice(("null", "null", '"SPRING"', '"☃"'))
    return f'{{"items":[{items}],"total":{total},"currency":"{rng.choice(("EUR", "CHF", "SEK"))}","coupon":{coupon}}}'


def _impression_or_click(rng: Random, side: int) -> str | None:
    if rng.random() < 0.02:
        return None
    if side == 1:
        return f'{{"x":{rng.randrange(728)},"y":{rng.randrange(90)}}}'
    return f'{{"ad":"{rng.choice(("shoes", "tea", "travel"))}","price":0.00{rng.randrange(100, 999)},"slot":{rng.randrange(5)}}}'


def _schema(side: int, topic: str, file: str) -> Schema:
    return Schema(side, f"{topic}-value", (_GALLERY / "orders" / file).read_text(encoding="utf-8"))


def _orders() -> Example:
    """Orders before payments, in Avro; some by a newer schema of the shop."""
    schemas = (
        _schema(0, "orders", "order-1.avsc"),
        _schema(0, "orders", "order-2.avsc"),
        _schema(1, "payments", "payment.avsc"),
    )

    def traits(ids: Sequence[int]) -> Traits:
        # The other examples need no Avro.
        from include.sample.avro_bodies import AvroBodies

        named = list(zip(ids, schemas, strict=True))
        orders, payments = ([(key, each.text) for key, each in named if each.side == side] for side in (0, 1))
        avro = AvroBodies((orders, payments))
        names = (("EU", "US", "日本"),)
        return Traits(_basket_or_payment, avro.body, avro.broken, names, left_first=0.97)

    return Example((_GALLERY / "orders" / "paid_orders.yaml",), "orders", schemas=schemas, traits=traits)


_CLICKS = Traits(
    payload=_impression_or_click,
    names=(("news", "weather", "Zeitung", "новости"), ("visitor", "bot", "🎧")),
    left_first=1.0,
    skew_ms=8 * _MINUTE_MS,
    turned=(0.1, 0.9),
)
EXAMPLES: Mapping[str, Example] = {
    "": Example((ROOT / "include" / "pipelines" / "calls.yaml",)),
    "orders": _orders(),
    "clicks": Example(
        (_GALLERY / "clicks" / "ad_clicks.yaml",), "impressions", Shares(left_alone=0.55), traits=lambda ids: _CLICKS
    ),
    # Nothing is late: late events would ask for replays, which come when they come, and the truth does not know when.
    "legs": Example(
        (_GALLERY / "legs" / "call_legs.yaml", _GALLERY / "legs" / "whole_calls.yaml"), shares=replace(USUAL, late=0.0)
    ),
}
