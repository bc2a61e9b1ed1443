"""The packages of requirements-NAME.lock in a folder beside .venv: who needs them has both in one place."""

from __future__ import annotations

import shutil
from pathlib import Path

from include.local.machine import LOCAL, ROOT, VENV
from include.local.setup import fingerprint, is_done, mark_done, run, wait_for_turn


def packages_beside(name: str) -> Path:
    """Installs them once for each content of the lock (a second); the folder is for PYTHONPATH, its `bin` for PATH."""
    locked, folder = ROOT / f"requirements-{name}.lock", LOCAL / f"{name}-packages"
    wanted = fingerprint(locked)
    with (LOCAL / f"{name}-packages.lock").open("w") as lock:
        wait_for_turn(lock)
        if not is_done(folder, wanted):
            shutil.rmtree(folder, ignore_errors=True)
            into: list[str | Path] = ["--python", VENV / "bin" / "python", "--target", folder]
            options: list[str | Path] = ["--system-certs", "--no-deps", "--require-hashes", "--compile-bytecode"]
            run(f"packages of {name}", [VENV / "bin" / "uv", "pip", "install", *into, *options, "-r", locked], lock)
            mark_done(folder, wanted)
    return folder
