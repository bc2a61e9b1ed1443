"""Great Expectations in a process of its own: its import takes four seconds of a core, which a thread of the job would have to share.

The process starts with the job and imports while Spark counts. The job sends metrics, thresholds and sentences, a line of JSON for each batch, and
receives the verdict; the process ends when the job does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict

from include.config.pipeline import Quality
from include.config.project import ROOT
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.suite import Check, Judged, Verdict, judge, warm_up

# Judges as `suite.judge` does.
Judge = Callable[[Metrics, Quality, Mapping[str, str]], Verdict]


def judge_beside() -> AbstractContextManager[Judge]:
    """A judge like `suite.judge` for as long as the block runs: in a process of its own, unless Great Expectations is imported already."""
    return nullcontext(judge) if "great_expectations" in sys.modules else judge_elsewhere()


@contextmanager
def judge_elsewhere() -> Iterator[Judge]:
    """The same, always in a process of its own. The judge raises RuntimeError if that process has died."""
    command = [sys.executable, "-m", "spark_jobs.quality.judging"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
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
    judged = [Judged(Check(*check), passed, observed) for check, passed, observed in checks]  # type: ignore[attr-defined]
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
