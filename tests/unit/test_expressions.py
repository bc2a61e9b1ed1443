"""Every regular expression of production code is in docs/expressions.md, with why it is linear; and those that see outside text are."""

import ast
import re
import time
from contextlib import suppress

import pytest

from include.airflow.pages import runbook
from include.config.store import Store, StoreRefused, checked_root
from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.positions import read_position
from spark_jobs.story.from_files import _printable
from spark_jobs.story.page import page
from spark_jobs.tables.diagnose import java_line, translate_file_errors
from spark_jobs.tables.parquet_files import name_place_in_errors
from tests.helpers.timeline import ROOT

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


# A slash that no value stands before begins an expression; within a class it ends none.
_SCRIPTED = re.compile(
    r"""(?:^|[(,=:?!&|{};\[]|=>|\breturn)\s*/(?![*/])((?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+)/""", re.M
)


def expressions_of_a_script(text):
    """The expressions in JavaScript: the literals, and the name of what makes one of a text."""
    yield from _SCRIPTED.findall(text)
    yield from re.findall(r"\bRegExp\b", text)


FINDERS = {".py": expressions, ".js": expressions_of_a_script}


def code(text):
    """As a cell of a Markdown table."""
    fence = "``" if "`" in text else "`"
    gap = " " if fence == "``" else ""
    return f"{fence}{gap}{text}{gap}{fence}".replace("|", r"\|")


def test_every_expression_is_listed_with_why_it_is_linear():
    used = {
        f"| {file.relative_to(ROOT)} | {code(expression)} | "
        for folder in ("dags", "include", "plugins", "spark_jobs")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in FINDERS and "vendored" not in file.parts
        for expression in FINDERS[file.suffix](file.read_text())
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


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("text.replace(/[/<]x/g, '')", ["[/<]x"]),
        (r"const a = b ? 1 : /a\/+$/.test(c)", [r"a\/+$"]),
        ("return /x|y/u", ["x|y"]),
        ("at - width / 2, at + width / 2; a = '</dt></dd>'; // a/b, (https://x/y)", []),
        ("text.match(new RegExp(name))", ["RegExp"]),
    ],
)
def test_what_is_taken_for_an_expression_of_a_script(source, found):
    assert list(expressions_of_a_script(source)) == found


def _error(text, place="/w"):
    with suppress(ValueError, JobProblem), translate_file_errors(place):
        raise ValueError(text)


def _store_error(text):
    _error(text, "s3://lake/w")


def _worker_error(text):
    with suppress(OSError), name_place_in_errors(Store("/w")):
        raise ValueError(text)


def _place(text):
    with suppress(StoreRefused):
        checked_root(text)


N = 4_000
# What made each of them slow, or would make a careless one.
SEEN = {
    "an error of a file without its end": (_error, lambda n: "[Errno 28] No " * n),
    "a place without its end": (_error, lambda n: "[Errno 28] " + ": '" * n),
    "a problem of a worker, and again": (_error, lambda n: "spark_jobs.faults.problems.JobProblem: " * n),
    "an error of a store that says nothing known": (_store_error, lambda n: "Generic S3 error: " + "the region of " * n),
    "a store of a long kind": (_store_error, lambda n: "Generic HTTP" * n),
    "an error without its number": (_worker_error, lambda n: "(os error " + "1" * n + "(os error " * n),
    "a place of many words": (_place, lambda n: "s3://" + "a." * n + "@" + "b-" * n + "@"),
    "a place of many folders": (_place, lambda n: "s3://a" + "/b" * n + "`"),
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
