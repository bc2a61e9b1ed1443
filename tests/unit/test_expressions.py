"""Every regular expression of production code is in docs/expressions.md, with why it is linear; and those that see outside text are."""

import ast
import re
import time
from contextlib import suppress

import pytest

from plugins.runbooks import runbook
from spark_jobs.broker.positions import read_position
from spark_jobs.explaining.page import page
from spark_jobs.problems import JobProblem
from spark_jobs.rehearse_pairing import _printable
from spark_jobs.storage.faults import files_named, java_line
from tests.timeline import ROOT

CALLS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer", "template"}


def expressions(text):
    """The expressions in a module's source, as they stand there; of a name that it gives one, what it names."""
    tree = ast.parse(text)
    named = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("re", "regex", "sre_compile"):
            yield f"from {node.module} import"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        arrow_or_spark = "regex" in name or name in ("rlike", "like", "ilike") or (owner == "F" and name == "split")
        if (owner == "re" and name in CALLS) or arrow_or_spark:
            given = node.args[-1 if arrow_or_spark else 0]
            given = named.get(given.id, given) if isinstance(given, ast.Name) else given
            yield given.value if isinstance(given, ast.Constant) else ast.unparse(given)


def code(text):
    """As a cell of a Markdown table."""
    fence = "``" if "`" in text else "`"
    gap = " " if fence == "``" else ""
    return f"{fence}{gap}{text}{gap}{fence}".replace("|", r"\|")


def test_every_expression_is_listed_with_why_it_is_linear():
    used = {
        f"| {file.relative_to(ROOT)} | {code(expression)} | "
        for folder in ("dags", "include", "plugins", "spark_jobs")
        for file in (ROOT / folder).rglob("*.py")
        for expression in expressions(file.read_text())
    }
    rows = [line for line in (ROOT / "docs" / "expressions.md").read_text().splitlines() if re.match(r"\| [a-z_]+/", line)]
    missing = {start for start in used if not any(row.startswith(start) and len(row) > len(start) + 10 for row in rows)}
    assert not missing
    assert [row for row in rows if not any(row.startswith(start) for start in used)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("re.compile('a+')", ["a+"]),
        ("A = 'x*'\ndef f(): pc.match_substring_regex(texts, A)", ["x*"]),
        ("re.search(f'{x}y', text)", ["f'{x}y'"]),
        ("F.col('a').rlike('b')", ["b"]),
        ("from re import compile", ["from re import"]),
        ("text.split(':')", []),
    ],
)
def test_what_is_taken_for_an_expression(source, found):
    assert list(expressions(source)) == found


def _error(text):
    with suppress(ValueError, JobProblem), files_named("/w"):
        raise ValueError(text)


N = 4_000
# What made each of them slow, or would make a careless one.
SEEN = {
    "an error of a file without its end": (_error, lambda n: "[Errno 28] No " * n),
    "a log without its colon": (_error, lambda n: "DELTA_TRUNCATED_TRANSACTION_LOG] " + "/_delta_log/0" * n),
    "a folder without its log": (_error, lambda n: "DELTA_CANNOT_CREATE_LOG_PATH] Cannot create " + "x" * n * 10),
    "a file without its end": (_error, lambda n: "FAILED_READ_FILE.A] Encountered error while reading file " + "x" * n * 10),
    "a Java exception without its colon": (java_line, lambda n: ": " + "a." * n * 5),
    "a start that fits to its last part": (runbook, lambda n: "the position on " + " is batch " * n),
    "a position that is not ours": (lambda text: read_position(1, text), lambda n: "a 1 b" + " 1:1<1" * n + " x"),
    "ticks in a sentence": (lambda text: page(["title: x", text]), lambda n: "`" * n + "x" * n),
    "signs that are not ASCII": (_printable, lambda n: '"' + "é\n" * n * 5 + '"'),
}


@pytest.mark.parametrize("name", SEEN)
def test_twenty_times_the_text_takes_no_two_hundred_times_as_long(name):
    """Not a measurement: what is quadratic takes 400 times as long, what is linear 20 times and, on a busy machine, some more."""
    run, text = SEEN[name]

    def seconds(n):
        given = text(n)
        begin = time.process_time()
        run(given)
        return time.process_time() - begin

    few = min(seconds(N // 20) for _ in range(3))
    assert seconds(N) < 200 * max(few, 0.000_2)
