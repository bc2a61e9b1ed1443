"""A copy of the newest part of a table's log on a store, in a folder of this process: delta-rs reads and extends it without asking the store.

To open a table on a store delta-rs makes some fifteen requests, most of them one after the other: the pieces of the checkpoint, each commit
twice; a transaction version and a commit take ten more. Here each file of the log is fetched once, all of them side by side, and a commit is
one put. The commit is still delta-rs's: it writes the next file of the log in the copy, and that file is put on the store if no file of
its name is there, by the client that delta-rs itself uses.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir, mkdtemp
from typing import Literal, NamedTuple

import obstore
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from obstore.exceptions import AlreadyExistsError

from include.config.store import Store, read_bytes

LOG, LAST_CHECKPOINT = "_delta_log", "_last_checkpoint"
COMMIT, CHECKSUM, _CHECKPOINT = "json", "crc", "checkpoint.parquet"
_AT_ONCE = 8
_PREFIX = "pairing-log-"


class LogFile(NamedTuple):
    """A file of a log."""

    version: int
    kind: str  # json, crc, or one that begins with checkpoint
    path: str
    size: int
    mark: tuple[object, ...]  # changes when the file is replaced, even by an equal one

    @property
    def name(self) -> str:
        """In the folder of the log."""
        return f"{self.version:020d}.{self.kind}"

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is one, or a part of one."""
        return self.kind not in (COMMIT, CHECKSUM)


@cache
def _folder_of_process() -> Path:
    """Where this process has its copies. It holds a flock, which the kernel frees however it ends: what a killed one has left is deleted here."""
    for left in Path(gettempdir()).glob(f"{_PREFIX}*"):
        # It may be another user's, or gone by now.
        with suppress(OSError):
            descriptor = _lock(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    new = Path(mkdtemp(prefix="pairing-new-"))
    # Until it is locked it has a name that nobody looks for.
    _lock(new)
    folder = new.rename(new.with_name(new.name.replace("pairing-new-", _PREFIX)))
    atexit.register(_delete, folder, os.getpid())
    return folder


def _delete(folder: Path, process: int) -> None:
    # A fork of the process, at its end, leaves it alone.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int:
    """The descriptor that holds the folder's flock. Raises OSError, too, if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class LogCopy:
    """`table`: the table as the copy has it; paths of its data files are relative, so they are those of the store."""

    def __init__(self, store: Store, files: Sequence[LogFile]) -> None:
        """`files`: the log from its last checkpoint on, or all of it. Raises delta-rs's errors and those of the store."""
        self._store = store
        self._folder = TemporaryDirectory(dir=_folder_of_process(), ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / LOG
        self._log.mkdir()
        self._first = max((file.version for file in files if file.is_checkpoint), default=0)
        # delta-rs wants the commit of a checkpoint's version, too, before it makes the next one.
        self._fetch(file for file in files if file.kind != CHECKSUM and file.version >= self._first)
        self.table = DeltaTable(self._folder.name)

    @staticmethod
    def can_be_made(files: Sequence[LogFile]) -> bool:
        """Whether the log has only what this copies, and its newest commit: other programs may write checkpoints in parts."""
        newest = max((file.version for file in files), default=0)
        return {file.kind for file in files} <= {COMMIT, _CHECKPOINT, CHECKSUM} and any(
            (file.version, file.kind) == (newest, COMMIT) for file in files
        )

    def move_on(self, files: Sequence[LogFile]) -> bool:
        """Adds the commits since; False if `files` lack one of them, because a checkpoint has taken its place."""
        version = self.table.version()
        new = [file for file in files if file.kind == COMMIT and file.version > version]
        newest = max((file.version for file in files), default=version)
        if len(new) != newest - version:
            return False
        self._fetch(new)
        self.table.update_incremental()
        return True

    def at(self, version: int) -> DeltaTable | None:
        """The table at an earlier version; None if the copy does not reach back so far."""
        return DeltaTable(self._folder.name, version) if version >= self._first else None

    def commit(
        self, actions: list[AddAction | RemoveAction], fenced: CommitProperties, hooks: PostCommitHookProperties
    ) -> None:
        """Commits on exactly the version of the table, which stays what it was until `move_on`; if this raises, the copy is of no more use.

        Raises CommitFailedError if another writer was faster; after other errors of the store the commit may be there.
        """
        version = self.table.version() + 1
        self.table.create_write_transaction(
            actions, "append", self.table.schema(), commit_properties=fenced, post_commithook_properties=hooks
        )
        try:
            self._put(f"{version:020d}.{COMMIT}", "create")
        except AlreadyExistsError:
            raise CommitFailedError(f"another writer has committed version {version}") from None
        # delta-rs makes one as often as the table asks for.
        if (self._log / (checkpoint := f"{version:020d}.{_CHECKPOINT}")).exists():
            self._put(checkpoint, "overwrite")
            self._put(LAST_CHECKPOINT, "overwrite")

    def _fetch(self, files: Iterable[LogFile]) -> None:
        def fetch(name: str) -> None:
            (self._log / name).write_bytes(read_bytes(self._store, f"{LOG}/{name}"))

        # Those that this copy has put are here.
        missing = [file.name for file in files if not (self._log / file.name).exists()]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch, missing))

    def _put(self, name: str, mode: Literal["create", "overwrite"]) -> None:
        # A put in parts could not be refused.
        obstore.put(self._store.client, f"{LOG}/{name}", (self._log / name).read_bytes(), mode=mode, use_multipart=False)
