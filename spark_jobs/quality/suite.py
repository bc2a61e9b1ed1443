"""The checks of a batch, judged by Great Expectations on the one row of its metrics.

An expectation that raises counts as critical and failed. The import of Great Expectations takes four seconds of a core, which a thread of the
job would have to share. So a process of its own starts with the job and imports while Spark counts. The job sends metrics, thresholds and
sentences, a line of JSON for each batch, and receives the verdict; the process ends when the job does.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

from include.config.pipeline import AFTER_PUBLISH, Quality
from include.config.project import JOBS, PACKAGE, ROOT
from include.config.setting_types import FAIL
from spark_jobs.quality.numbers import FAILED, PASSED, WARNED, WORDS, Metrics, NotJudged, of_sides

# The last says that something could not be judged: neither good nor bad.
CRITICAL, WARNING, INFO = "critical", "warning", "info"


class Check(NamedTuple):
    """A metric that must lie within [least, most], both inclusive; `sentence` says what that means."""

    metric: str
    least: float
    most: float
    severity: str
    sentence: str


class JudgedCheck(NamedTuple):
    """A check with what was observed (None: it could not be)."""

    check: Check
    passed: bool
    observed: float | None


class Verdict(NamedTuple):
    """All checks of a batch, and the page that Great Expectations renders of them (HTML)."""

    checks: list[JudgedCheck]
    page: str

    @property
    def failed(self) -> list[JudgedCheck]:
        return [judged for judged in self.checks if not judged.passed and judged.check.severity == CRITICAL]

    @property
    def state(self) -> int:
        """PASSED, WARNED or FAILED. A check that could not be judged is no reason for another state."""
        warned = any(not judged.passed and judged.check.severity == WARNING for judged in self.checks)
        return FAILED if self.failed else WARNED if warned else PASSED


# Judges as `judge` does.
Judge = Callable[[Metrics, Quality, Mapping[str, str]], Verdict]
_LAWS = {
    "landing_difference_{side}": "every record that the broker has of the planned offsets is a raw row ({side})",
    "pairing_difference_{side}": "every event is in a compound, open, collapsed or rejected ({side})",
    "rejection_difference_{side}": "every rejected event is in rejected_events ({side})",
    "cumulative_difference_{side}": "as the reports of all batches counted it, every event is in a compound, open, collapsed or rejected ({side})",
    "continuity_difference": "the batch begins where the one before it ended",
}
_PUBLISHED = {"publishing_difference": "every compound of the batch was published"}
_DELIVERED = "every published compound was read back from the output topic once"
_LETTERS = "every rejected record was read back from the rejected topic once"
_OPTIONAL_LAWS = {
    "identity_difference_{side}": "the events that came out are those that went in ({side})",
    "delivery_difference": _DELIVERED,
    "dead_letter_difference": _LETTERS,
}
# Their failure is never a matter of settings.
LAWS = frozenset(of_sides(_LAWS | _PUBLISHED | _OPTIONAL_LAWS))
_SILENCE = {
    "silent_{side}": "the {side} side is not silent while the other one sends, in ms",
    "unpaired_{side}": "the {side} side finds partners while both sides send, in ms without",
}
_LIKE_BEFORE = "the orphan ratio is like that of the batches before, in spreads from their median"


def checks(thresholds: Quality, metrics: Metrics, said: Mapping[str, str] | None = None) -> list[Check]:
    """The checks of a batch, laws first. Those that mean nothing for every batch are there if their number is.

    `said`: by metric, what a check says in the place of its rule.
    """
    laws = _LAWS | (_PUBLISHED if thresholds.gate == AFTER_PUBLISH else {})
    mads, drift, silence = thresholds.orphan_ratio_mads, thresholds.max_skew_drift_ms, thresholds.silence_ms
    found, optional = (
        [Check(metric, 0, 0, CRITICAL, sentence) for metric, sentence in of_sides(sentences).items()]
        for sentences in (laws, _OPTIONAL_LAWS)
    )
    optional.append(Check("orphan_ratio_deviation", -mads, mads, WARNING, _LIKE_BEFORE))
    optional.append(Check("foreign_changes", 0, 0, WARNING, "no other program has changed rows of the tables"))
    optional.append(
        Check("skew_drift", -drift, drift, WARNING, "the sides' clocks have not moved against each other, in ms")
    )
    if silence is not None:
        optional += [Check(metric, 0, silence, WARNING, text) for metric, text in of_sides(_SILENCE).items()]
    for metric, law in (("delivery_not_judged", _DELIVERED), ("dead_letters_not_judged", _LETTERS)):
        if why := int(metrics.get(metric, 0)):
            sentence = f"{law}: not judgeable, because {NotJudged(why).sentence}"
            optional.append(Check(metric, 0, 0, INFO, sentence))
    found += [check for check in optional if check.metric in metrics]
    found = [check._replace(sentence=(said or {}).get(check.metric, check.sentence)) for check in found]
    found.append(Check("lost", 0, 0, WARNING, "no records were lost by the broker before they were landed"))
    # Of no compounds there is no ratio, and corrections are no outcomes: such a batch says nothing of it, good or bad.
    if metrics.get("live", 1) and metrics.get("compounds", 1):
        ratio = Check("orphan_ratio", 0, thresholds.max_orphan_ratio, WARNING, "one-sided compounds stay below the bound")
        found.append(ratio)
    severities = dict(thresholds.severities)
    return [
        check._replace(severity=CRITICAL) if severities.get(setting_of(check.metric)) == FAIL else check for check in found
    ]


def setting_of(metric: str) -> str:
    """The name of a check in `quality.severities`: silence is judged of each side.

    >>> setting_of("silent_left"), setting_of("orphan_ratio")
    ('silent', 'orphan_ratio')
    """
    return next((name for name in ("silent", "unpaired") if metric in of_sides({f"{name}_{{side}}": ""})), metric)


def judge_bounds(metrics: Metrics, thresholds: Quality, said: Mapping[str, str] | None = None) -> list[JudgedCheck]:
    """The checks of stored metrics by their bounds alone: the tables keep no verdict, and Great Expectations takes tenths of a second for each.

    A number that a row of an older version lacks is not judged.
    """
    wanted = (check for check in checks(thresholds, metrics, said) if check.metric in metrics)
    return [
        JudgedCheck(check, check.least <= metrics[check.metric] <= check.most, metrics[check.metric]) for check in wanted
    ]


def warm_up() -> Any:
    """Imports Great Expectations quietly. It must not find a Spark session: one row is pandas' work."""
    os.environ.pop("SPARK_REMOTE", None)
    # It would report every run to its makers.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    library = importlib.import_module("great_expectations")
    # When it is imported it has the second one tell of its temporary folders.
    for name in ("great_expectations", "great_expectations.data_context.types.base"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return library


def judge(metrics: Metrics, thresholds: Quality, said: Mapping[str, str] | None = None) -> Verdict:
    """Judges the metrics of one batch. `said`: see `checks`."""
    gx = warm_up()
    wanted = checks(thresholds, metrics, said)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    row = context.data_sources.add_pandas("metrics").add_dataframe_asset("batch").add_batch_definition_whole_dataframe("row")
    # Bounds hold on an empty table, so there must be a row.
    one_row = gx.expectations.ExpectTableRowCountToEqual(value=1, severity=CRITICAL)
    expectations = [one_row, *(_bound(gx, check) for check in wanted)]
    suite = context.suites.add(gx.ExpectationSuite(name="quality", expectations=expectations))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name="batch", data=row, suite=suite))
    result = definition.run(batch_parameters={"dataframe": _row(metrics, wanted)}, result_format="COMPLETE")
    for entry in result.results:
        # numpy's numbers are none to the renderer
        if entry.result.get("observed_value") is not None:
            entry.result["observed_value"] = float(entry.result["observed_value"])
    found = {entry.expectation_config.kwargs.get("column"): entry for entry in result.results}
    if not found[None].success:
        raise RuntimeError("the metrics are not one row; nothing could be judged")
    verdict = Verdict([_judged(check, found.get(check.metric)) for check in wanted], "")
    return verdict._replace(page=_with_word(_page(result), in_words(verdict)))


def _row(metrics: Metrics, wanted: list[Check]) -> Any:
    pandas = importlib.import_module("pandas")
    return pandas.DataFrame([{check.metric: metrics[check.metric] for check in wanted if check.metric in metrics}])


def _bound(gx: Any, check: Check) -> Any:
    # The maximum, because bounds on values pass when the value is missing.
    return gx.expectations.ExpectColumnMaxToBeBetween(
        column=check.metric, min_value=check.least, max_value=check.most, severity=check.severity, notes=check.sentence
    )


def _judged(check: Check, entry: Any) -> JudgedCheck:
    observed = None if entry is None else entry.result.get("observed_value")
    # What is no number is in no bounds, whatever they are compared by.
    if observed is None or not math.isfinite(observed):
        return JudgedCheck(check._replace(severity=CRITICAL), False, None)
    return JudgedCheck(check, bool(entry.success), float(observed))


def _page(result: Any) -> str:
    renderer = importlib.import_module("great_expectations.render.renderer").ValidationResultsPageRenderer()
    return str(_view().render(renderer.render(result)))


@cache
def _view() -> Any:
    """The same for all batches: it compiles its templates for a third of a second."""
    return importlib.import_module("great_expectations.render.view").DefaultJinjaPageView()


def in_words(verdict: Verdict) -> str:
    """The one word for a verdict, on every page and in every line: passed, warning or failed; with it whether some could not be judged."""
    unjudged = any(not judged.passed and judged.check.severity == INFO for judged in verdict.checks)
    return f"{WORDS[verdict.state]}{', not all of it judged' if unjudged else ''}"


def _with_word(page: str, word: str) -> str:
    """Great Expectations' page with this word for the whole: it knows only succeeded and failed, and calls a warning failed."""
    before, heading, after = page.partition("Status:</span>")
    mark, end, rest = after.partition("</i>")
    _, span, rest = rest.partition("</span>")
    return f"{before}{heading}{mark}{end} {word} {span}{rest}" if heading else page


def judge_beside() -> AbstractContextManager[Judge]:
    """A judge like `judge` for as long as the block runs: in a process of its own, unless Great Expectations is imported already."""
    return nullcontext(judge) if "great_expectations" in sys.modules else judge_elsewhere()


@contextmanager
def judge_elsewhere() -> Iterator[Judge]:
    """The same, always in a process of its own. The judge raises RuntimeError if that process has died."""
    command = [sys.executable, "-m", f"{JOBS}.quality.suite"]
    folder = None if PACKAGE else ROOT
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def judge_there(metrics: Metrics, thresholds: Quality, said: Mapping[str, str] | None = None) -> Verdict:
            try:
                requests.write(json.dumps([metrics, asdict(thresholds), dict(said or {})]) + "\n")
                requests.flush()
                answer = answers.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                raise RuntimeError(f"Great Expectations ended with status {process.wait()}; what it said stands above")
            return _verdict(json.loads(answer))

        try:
            yield judge_there
        finally:
            process.kill()
            # An error about unread input must not replace the one that the block raised.
            with suppress(BrokenPipeError):
                requests.close()


def _verdict(answer: list[object]) -> Verdict:
    checks, page = answer
    judged = [JudgedCheck(Check(*check), passed, observed) for check, passed, observed in checks]  # type: ignore[attr-defined]
    return Verdict(judged, str(page))


def main() -> None:
    # Output of libraries must not come between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    # Neither Spark nor a database is needed for one row, and the parts that use them are a fifth of the import.
    for name in ("pyspark", "sqlalchemy"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    warm_up()
    for line in sys.stdin:
        metrics, thresholds, said = json.loads(line)
        print(json.dumps(judge(metrics, Quality(**thresholds), said)), file=answers, flush=True)


if __name__ == "__main__":
    main()
