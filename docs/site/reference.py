"""Prints the generated parts of the reference as JSON: name -> Markdown. They are made from the code and are in no file.

    python docs/site/reference.py

Each stands on the page of docs/reference/ that has `<!-- generated: NAME -->`.
"""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
# What people call; the tasks of the DAGs are among them. `warm_up` is a command of the Spark server.
COMMANDS = [
    *sorted(f"spark_jobs.{path.stem}" for path in (ROOT / "spark_jobs").glob("[a-z]*.py") if path.stem != "warm_up"),
    "include.sample.calls",
    "include.sample.truth",
]


def help_of(module: str) -> str:
    """What `python -m MODULE --help` prints, without a process of its own: the imports take seconds."""
    printed = io.StringIO()
    with mock.patch.object(sys, "argv", [module, "--help"]), redirect_stdout(printed), suppress(SystemExit):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return printed.getvalue().strip()


def commands() -> Iterator[str]:
    for module in COMMANDS:
        text = help_of(module)
        assert text, f"{module} has no --help"
        yield f"## {module.rpartition('.')[2]}\n\n`python -m {module}`\n\n```text\n{text}\n```\n\n"


def settings() -> Iterator[str]:
    """A section for each setting: what the README says of it, and what follows from a change."""
    from spark_jobs.changes.consequences import CONSEQUENCES, Consequence

    readme = (ROOT / "README.md").read_text().partition("\n## Settings of a pipeline\n")[2].partition("\n## ")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in readme.splitlines() if line.startswith("| `")]
    for keys, values, default, meaning in rows:
        names = re.findall(r"`([\w.]+)`", keys)
        known = CONSEQUENCES.get(names[0], Consequence("", ""))
        facts = [("Values", values), ("Default", default), ("A new value counts", known.since)]
        facts += (
            [("If it is longer", known.larger), ("If it is shorter", known.smaller)]
            if known.smaller
            else [("What follows", known.larger)]
        )
        table = "\n".join(f"| {name} | {text} |" for name, text in facts if text)
        text = f"## {', '.join(f'`{name}`' for name in names)}\n\n{meaning}\n\n| | |\n|---|---|\n{table}\n\n"
        yield text.replace("](docs/", "](../")


def tables() -> Iterator[str]:
    """The columns of each table of the shipped pipeline."""
    from include.config.pipeline import PIPELINES
    from include.config.pipeline_file import load_pipeline
    from spark_jobs.tables.schemas import declared_columns, schemas

    calls = load_pipeline(PIPELINES / "calls.yaml")
    for table in schemas(calls):
        rows = "\n".join(f"| `{name}` | `{kind.replace('`', '')}` |" for name, kind in declared_columns(calls, table))
        yield f"## `{table}`\n\n| Column | Type |\n|---|---|\n{rows}\n\n"


def metrics() -> Iterator[str]:
    from spark_jobs.quality.catalogue import MEANINGS

    yield "| Metric | Unit | Meaning |\n|---|---|---|\n"
    for name, meaning in MEANINGS.items():
        yield f"| `{name}` | {meaning.unit or 'number'} | {meaning.sentence} |\n"


def targets() -> Iterator[str]:
    """The commands of the Makefile, as `make` prints them."""
    yield "| Command | Does |\n|---|---|\n"
    for name, text in re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.M):
        yield f"| `make {name}` | {text.replace('|', chr(92) + '|')} |\n"


GENERATED = {each.__name__: each for each in (commands, settings, tables, metrics, targets)}

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    # The width of the texts, and no place of this machine in them.
    os.environ.update(COLUMNS="88", NO_COLOR="1")
    os.environ.pop("PAIRING_WAREHOUSE", None)
    print(json.dumps({name: "".join(make()) for name, make in GENERATED.items()}))
