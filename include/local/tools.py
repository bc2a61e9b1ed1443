"""Python programs that the project calls seldom and does not ship: each in an environment of its own, pinned, made once in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from include.local.machine import VENV, SetupError, project_environment, say
from include.local.setup import is_done, mark_done

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "event-pairing"


@contextmanager
def cache_lock(name: str) -> Iterator[None]:
    """During the block no other process makes what has this name in the cache: another checkout may want it at the same moment."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tool_python(*packages: str, alone: bool = False) -> Path:
    """The Python that has these packages (`name==version`) with their dependencies, or `alone` without. Raises SetupError."""
    wanted = "\n".join((*packages, str(alone)))
    folder = CACHE / f"tool-{packages[0].partition('==')[0]}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    with cache_lock(folder.name):
        if not is_done(folder, wanted):
            say(f"{' '.join(packages)} into {folder}, once ...")
            _run("venv", "--clear", "--python", str(VENV / "bin" / "python"), str(folder))
            _run("pip", "install", "--python", str(python), "--system-certs", *(["--no-deps"] if alone else []), *packages)
            mark_done(folder, wanted)
    return python


def _run(*arguments: str) -> None:
    uv = [str(VENV / "bin" / "uv"), *arguments]
    done = subprocess.run(
        uv, env=project_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()[:200]
        raise SetupError(
            f"{' '.join(arguments[-1:])} could not be installed ({cause}): check the network, then call it again"
        )
