"""A program as a container has it: an unprivileged user, all that it sees read-only but for the folders that are named.

By bubblewrap instead of a container engine: mounts of its own, and no capability. Network and processes are those of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from include.local.machine import ROOT
from tests.helpers.stores import skip_or_fail

USER = 10_001
NEEDED = ("bwrap", "setpriv")
# What this machine's own programs need, as an image would have it.
_SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/opt")


def skip_unless_possible() -> None:
    """Skips the test where no program can be confined. Fails it if only programs are not installed, and REQUIRED is set."""
    if os.geteuid():
        pytest.skip("only root can become another user: run this test as root")
    if lacking := [name for name in NEEDED if not shutil.which(name)]:
        skip_or_fail(f"{' and '.join(lacking)} not found: install them (Debian: apt-get install bubblewrap util-linux)")
    tried = subprocess.run([*_walls([]), "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mounts of its own here: {tried.stderr.strip()[:120]}")


def confined(command: list[str], writable: list[Path], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the command in the project's folder; the folders are given to its user first."""
    for folder in writable:
        shutil.chown(folder, USER, USER)
    with tempfile.NamedTemporaryFile("w") as users:
        # As the image has it: Java asks there for the home of its user, who cannot write to it either.
        users.write(f"{Path('/etc/passwd').read_text()}pairing:x:{USER}:{USER}::/home/pairing:/bin/sh\n")
        users.flush()
        os.chmod(users.name, 0o644)
        return subprocess.run(
            [*_walls(writable, "--ro-bind", users.name, "/etc/passwd"), *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def _walls(writable: list[Path], *more: str) -> list[str]:
    base = Path(sys.base_prefix).resolve()
    seen = [*filter(os.path.exists, _SYSTEM), str(base), str(ROOT), os.path.dirname(os.path.realpath(sys.executable))]
    shown = [option for place in dict.fromkeys(seen) for option in _shown(place)]
    # /dev is made anew, with shared memory as containers have it; writing there is no writing to a disk.
    devices = ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    folders = [option for folder in writable for option in ("--bind", str(folder), str(folder))]
    # Everybody may pass through them.
    above = sorted(
        {str(parent) for place in (base, ROOT, *writable) for parent in Path(place).parents if parent != Path("/")}
    )
    passable = [option for place in above if not place.startswith(_SYSTEM) for option in ("--perms", "0755", "--dir", place)]
    mounts = [*passable, *shown, *devices, "--ro-bind", "/proc", "/proc", *folders, *more, "--remount-ro", "/"]
    privileges = ["--no-new-privs", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", *privileges]
    return ["bwrap", *mounts, "--chdir", str(ROOT), *become]


def _shown(place: str) -> list[str]:
    return ["--symlink", os.readlink(place), place] if os.path.islink(place) else ["--ro-bind", place, place]
