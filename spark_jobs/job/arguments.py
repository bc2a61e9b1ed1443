"""Arguments that commands share, one clear line on bad ones, and where a job leaves its outcome."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from include.config.pipeline import Pipeline, PipelineError
from include.config.pipeline_file import load_pipeline
from include.config.secret_values import without_secrets
from include.config.store import Store, local_folder, read_text, warehouse_store, write_text
from include.config.time_text import point_in_time

OUTCOME_VARIABLE = "PAIRING_OUTCOME"


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, without the usage in front of it. Exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse on bad arguments."""
        fail(f"{message} (see {self.prog} --help)")


def fail(message: str) -> NoReturn:
    """Ends the command with status 2 and one line on standard error."""
    end_with(" ".join(message.split()), 2, retry=False)


def end_with(line: str, status: int, retry: bool) -> NoReturn:
    """Ends the process with the line on standard error, and in its outcome; `retry`: whether another try can help."""
    line = without_secrets(line)
    print(f"error: {line}", file=sys.stderr, flush=True)
    # The line may be about the very store that would take the outcome.
    with suppress(Exception):
        write_outcome({"ok": False, "error": line, "retry": retry})
    sys.exit(status)


def write_outcome(outcome: dict[str, object]) -> None:
    """Adds the entries to the file or object that PAIRING_OUTCOME names, if it is set."""
    if place := os.environ.get(OUTCOME_VARIABLE):
        folder, _, name = place.rpartition("/")
        store = Store(folder) if local_folder(folder) else warehouse_store(folder)
        before = json.loads(read_text(store.made(), name) or "{}")
        write_text(store, name, json.dumps(before | outcome))


def pipeline_argument(path: str) -> Pipeline:
    """`type=` of --pipeline: the loaded pipeline, or a one-line error."""
    try:
        return load_pipeline(Path(path))
    except PipelineError as error:
        fail(str(error))


def setting_argument(of: Any) -> Callable[[str], Any]:
    """`type=` of an argument that is a setting of this type (`include.config.setting_types`)."""
    check = TypeAdapter(of)

    def argument(text: str) -> Any:
        try:
            return check.validate_python(text)
        except ValidationError as refused:
            raise argparse.ArgumentTypeError(str(refused.errors()[0]["ctx"]["error"])) from None

    return argument


def count_argument(text: str) -> int:
    """`type=` of an argument that is a number of things, from 1 to a million."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 1000000")
    return int(text)


def add_accept_lost_range(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Adds --accept-lost-range: a list of ranges as `lost_range` writes them, empty if it is not given."""
    text = f"{meaning}, which the broker no longer has; several with spaces between, or repeat"
    name, metavar = "--accept-lost-range", "TOPIC-PARTITION:FIRST-UNTIL"
    parser.add_argument(name, action="extend", type=str.split, default=[], metavar=metavar, help=text)


def time_argument(text: str) -> int:
    """`type=` of an argument that is a point in time: epoch ms."""
    try:
        return point_in_time(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 2026-01-31T13:00:00Z, or epoch ms") from None
