"""A pinned program is installed once, apart from the project's own packages."""

from __future__ import annotations

import subprocess

import pytest

from include.local import tools
from include.local.machine import SetupError
from tests.helpers.tools import python_with


def test_a_tool_is_made_once_and_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tools, "CACHE", tmp_path)
    python = python_with("iniconfig==2.3.1", alone=True)
    assert subprocess.run([python, "-c", "import iniconfig"], check=False).returncode == 0
    assert subprocess.run([python, "-c", "import pyspark"], stderr=subprocess.DEVNULL, check=False).returncode == 1
    monkeypatch.setattr(tools, "_run", lambda *_: pytest.fail("it is there already"))
    assert tools.tool_python("iniconfig==2.3.1", alone=True) == python


def test_what_cannot_be_had_is_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tools, "CACHE", tmp_path)
    with pytest.raises(SetupError, match=r"^iniconfig==0\.0\.0\.1 could not be installed \(.+\): check the network"):
        tools.tool_python("iniconfig==0.0.0.1")
    assert not list(tmp_path.glob("*/setup.stamp"))
