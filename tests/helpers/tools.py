"""Pinned tools that tests ask: skipped in one line where they cannot be had, a failure where nothing may be skipped."""

from __future__ import annotations

from pathlib import Path

from include.local.machine import SetupError
from include.local.tools import tool_python
from tests.helpers.stores import skip_or_fail


def python_with(*packages: str, alone: bool = False) -> Path:
    """As `tool_python`."""
    try:
        return tool_python(*packages, alone=alone)
    except SetupError as problem:
        skip_or_fail(problem)
