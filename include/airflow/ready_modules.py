"""The project's modules, imported once before the fork of the tasks: a job takes them while no file of the project has changed since.

They are a set of their own. Nothing but their import has ever run in them, and the modules that Airflow's own process uses are others.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from contextlib import suppress
from types import ModuleType

from include.config.project import JOBS, PACKAGE, ROOT

# Where modules are that jobs import, with what these read.
_FOLDERS = ("include", "spark_jobs")
_OURS = (PACKAGE.rstrip("."),) if PACKAGE else ("dags", "include", "plugins", "spark_jobs")


class ReadyModules:
    """Empty until it is filled. A process that was forked since then has it, too."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._files: dict[str, int] = {}

    def fill(self) -> None:
        """Imports every job, once: Airflow also tells each task that it starts. Nothing is ready if a job cannot be imported: the job says why."""
        if self._files:
            return
        self._files = _files()
        others = _take_out()
        try:
            with suppress(Exception):
                package = importlib.import_module(JOBS)
                jobs = [each.name for each in pkgutil.iter_modules(package.__path__, f"{JOBS}.") if not each.ispkg]
                for job in jobs:
                    importlib.import_module(job)
                # A job is run, not imported.
                self._modules = {name: module for name, module in _take_out().items() if name not in jobs}
        finally:
            _take_out()
            sys.modules.update(others)

    def put_in(self) -> None:
        """Replaces all modules of the project in this process by those that are ready; by none if a file has changed since: they are imported anew."""
        _take_out()
        if self._modules and self._files == _files():
            sys.modules.update(self._modules)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in _OURS]
    return {name: sys.modules.pop(name) for name in names}


def _files() -> dict[str, int]:
    """When each file was last changed or put in its place, in ns: a copy with the time of its original has a new one here."""
    found = {}
    for top in _FOLDERS:
        for folder, folders, names in os.walk(ROOT / top):
            # The interpreter writes there.
            folders[:] = [each for each in folders if each != "__pycache__"]
            for name in names:
                path = os.path.join(folder, name)
                with suppress(FileNotFoundError):
                    found[path] = os.stat(path).st_ctime_ns
    return found
