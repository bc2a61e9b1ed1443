"""The packages of requirements-celery.lock in a folder beside .venv: the image has both in one place."""

from __future__ import annotations

import shutil
from pathlib import Path

from include.local.machine import LOCAL, ROOT, VENV
from include.local.setup import fingerprint, is_done, mark_done, run, wait_for_turn

LOCK = ROOT / "requirements-celery.lock"
FOLDER = LOCAL / "celery-packages"


def celery_packages() -> Path:
    """Installs them once for each content of the lock (a second); the folder is for PYTHONPATH, its `bin` for PATH."""
    wanted = fingerprint(LOCK)
    with (LOCAL / "celery-packages.lock").open("w") as lock:
        wait_for_turn(lock)
        if not is_done(FOLDER, wanted):
            shutil.rmtree(FOLDER, ignore_errors=True)
            into: list[str | Path] = ["--python", VENV / "bin" / "python", "--target", FOLDER]
            options = ["--system-certs", "--no-deps", "--require-hashes", "--compile-bytecode"]
            run("packages of Celery", [VENV / "bin" / "uv", "pip", "install", *into, *options, "-r", LOCK], lock)
            mark_done(FOLDER, wanted)
    return FOLDER
