"""The real schema registry of include/local/registry.py, as tests use it. After a kill and a start it has no schema, and gives the same ids to the same
schemas if these are registered in the same order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from include.local import registry as local_registry
from include.local.machine import SetupError
from include.local.process import free_port, running_program
from include.local.registry import registry_program
from tests.helpers.stores import skip_or_fail


@contextmanager
def running_registry(folder: Path) -> Iterator[LocalRegistry]:
    """A registry while the block runs. Skips the test where it is not to be had, or fails it if REQUIRED is set."""
    try:
        registry_program()
    except SetupError as problem:
        skip_or_fail(problem)
    with LocalRegistry(folder, free_port()) as running:
        yield running


class LocalRegistry(local_registry.LocalRegistry):
    """A registry that ends with the thread that starts it, so also with a test that is killed."""

    prefix = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()

    def kill(self) -> None:
        """Ends it without warning, like a power cut; its schemas are lost."""
        process = running_program(self.folder, self.name)
        if process is not None:
            process.kill()
            process.wait(5)

    def restart(self) -> None:
        """Kills it and starts it, without any schema; the next one that is registered gets the first id again."""
        self.kill()
        self.start()
