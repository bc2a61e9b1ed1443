"""The locks: they fit the requirements they are compiled from, and compiling them again changes nothing."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from include.local.machine import ROOT, VENV

LOCKS = ("requirements", "requirements-tests", "requirements-celery")
REMEDY = "make lock"


def blocks(name: str) -> dict[str, str]:
    """Package -> its lines in the lock; the first has the version, the last ones say who wants it."""
    found = re.split(r"^(?=[a-z0-9])", (ROOT / f"{name}.lock").read_text(), flags=re.M)
    return {block.partition("==")[0].partition("[")[0]: block for block in found if "==" in block.partition("\n")[0]}


def pins(name: str) -> dict[str, str]:
    """Package -> version, as the requirements pin it."""
    lines = (line for line in (ROOT / f"{name}.txt").read_text().splitlines() if line and not line.startswith("#"))
    return {re.sub(r"\[.*\]", "", package): version for package, version in (line.split("==") for line in lines)}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_its_requirements_pin_and_nothing_else_by_their_wish(name):
    locked = blocks(name)
    wanted = {package for package, block in locked.items() if re.search(rf"# +(?:via )?-r {name}\.txt$", block, re.M)}
    assert wanted == set(pins(name)), REMEDY
    assert {package: version for package, version in pins(name).items() if f"=={version} " not in locked[package]} == {}, (
        REMEDY
    )


@pytest.mark.parametrize("name", LOCKS)
def test_every_file_of_a_lock_has_its_hash(name):
    assert [package for package, block in blocks(name).items() if "--hash=sha256:" not in block] == []


def test_the_other_locks_add_to_the_first_and_change_nothing_of_it():
    for name in LOCKS[1:]:
        assert set(blocks(name)).isdisjoint(blocks("requirements")), REMEDY


@pytest.mark.long
def test_compiled_again_they_are_the_same(tmp_path):
    """By the very commands of `make lock`, on a copy."""
    for name in LOCKS:
        for kind in ("txt", "lock"):
            shutil.copy(ROOT / f"{name}.{kind}", tmp_path)
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").symlink_to(VENV)
    for _ in range(2):
        subprocess.run(["make", "lock", "--old-file=setup"], cwd=tmp_path, check=True, capture_output=True)
        for name in LOCKS:
            assert (tmp_path / f"{name}.lock").read_text() == (ROOT / f"{name}.lock").read_text(), name
