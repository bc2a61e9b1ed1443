"""Pinned tools that tests ask: skipped in one line where they cannot be had, a failure where nothing may be skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from include.local.machine import SetupError
from include.local.tools import tool_python
from tests.helpers.stores import REQUIRED


def python_with(*packages: str, alone: bool = False) -> Path:
    """As `tool_python`."""
    try:
        return tool_python(*packages, alone=alone)
    except SetupError as problem:
        if os.environ.get(REQUIRED):
            pytest.fail(str(problem))
        pytest.skip(str(problem))
