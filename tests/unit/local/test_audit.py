"""What pip-audit found is said in one line each, and what it could not find out is not taken for good news."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include.local import audit

FINE = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
BROKEN = {
    "name": "c",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1", "3"]}, {"id": "PYSEC-2", "fix_versions": []}],
}


def says(folder: Path, pypi: list[dict[str, object]] | None, osv: list[dict[str, object]] | None) -> str:
    """A program in pip-audit's place: prints what each source would have it print; None: the source is not reached."""
    for name, found in (("pypi", pypi), ("osv", osv)):
        if found is not None:
            (folder / name).write_text(json.dumps({"dependencies": found}))
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *"-s pypi"*) cat {folder}/pypi;; *) cat {folder}/osv;; esac 2> /dev/null || echo no route >&2\n'
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("pypi", "osv", "status", "said"),
    [
        pytest.param([FINE], None, 0, "1 packages of the lock, no vulnerability known to pypi\n", id="nothing"),
        pytest.param([SKIPPED], [FINE, FINE], 0, "2 packages of the lock, no vulnerability known to osv\n", id="the other source"),
        pytest.param([FINE, BROKEN], None, 1, "c 2: PYSEC-1, mended in 2.1, 3\nc 2: PYSEC-2, mended in no version yet\n", id="some"),
        pytest.param([FINE, SKIPPED], None, 2,
                     "error: the lock was not audited (pypi: knows nothing of 1 of 2 packages (b …); osv: no route): "
                     "call it where one of these sources answers\n", id="nobody knows"),
    ],
)  # fmt: skip
def test_each_outcome_has_its_status_and_lines(pypi, osv, status, said, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(audit, "tool_python", lambda _: says(tmp_path, pypi, osv))
    assert audit.main() == status
    captured = capsys.readouterr()
    assert captured.out + captured.err == said
