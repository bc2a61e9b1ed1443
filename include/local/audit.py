"""Asks a public source for known vulnerabilities of the packages in the lock: `python -m include.local.audit`.

Exit status 0: none is known. 1: some are, one line each. 2: no source could be asked about every package, so nothing is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from include.local.machine import SetupError
from include.local.setup import LOCK
from include.local.tools import tool_python

TOOL = "pip-audit==2.10.1"
# Python's package index, and the database of open source vulnerabilities.
SOURCES = ("pypi", "osv")


def audit(python: Path, source: str, lock: Path = LOCK) -> list[dict[str, Any]]:
    """Each package with its `vulns`. Raises SetupError if the source does not know all of them, or cannot be reached."""
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    command = [str(python), "-m", "pip_audit", "-r", str(lock), "-s", source, "-f", "json", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        found = list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError):
        cause = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SetupError(f"{source}: {cause[:90]}") from None
    # pip-audit takes a package that the source does not know for one without vulnerabilities.
    if skipped := [each["name"] for each in found if "skip_reason" in each]:
        raise SetupError(f"{source}: knows nothing of {len(skipped)} of {len(found)} packages ({skipped[0]} …)")
    return found


def main() -> int:
    """Returns the exit status."""
    problems = []
    try:
        python = tool_python(TOOL)
        for source in SOURCES:
            try:
                found = audit(python, source)
            except SetupError as error:
                problems.append(str(error))
                continue
            lines = [_line(each, known) for each in found for known in each["vulns"]]
            print("\n".join(lines) or f"{len(found)} packages of the lock, no vulnerability known to {source}")
            return 1 if lines else 0
    except SetupError as error:
        problems.append(str(error))
    print(
        f"error: the lock was not audited ({'; '.join(problems)}): call it where one of these sources answers",
        file=sys.stderr,
    )
    return 2


def _line(package: dict[str, Any], known: dict[str, Any]) -> str:
    return f"{package['name']} {package['version']}: {known['id']}, mended in {', '.join(known['fix_versions']) or 'no version yet'}"


if __name__ == "__main__":
    sys.exit(main())
