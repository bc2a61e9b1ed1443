"""Where a marker is: in every file below a folder, whatever its form, and in the command lines of all processes while a block runs."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import zstandard

_EVERY_S = 0.02


def holding(folder: Path, marker: str) -> list[str]:
    """The files below the folder that have the marker in their name or, unpacked, in their content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(folder)) for path in files if marker in str(path) or marker.encode() in content(path)]


def content(path: Path) -> bytes:
    """What is in a file, as it is and unpacked."""
    data = path.read_bytes()
    if data[:4] == b"PAR1" and data[-4:] == b"PAR1":
        return data + str(pq.read_table(path).to_pylist()).encode()
    if data[:2] == b"\x1f\x8b":
        return data + gzip.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return data + zstandard.ZstdDecompressor().stream_reader(data).read()
    return data


class CommandLines:
    """Those with a marker in them, of all processes of the machine, while it is entered.

    A process's environment is another thing: only its own user, and root, may read that.
    """

    def __init__(self, *markers: str) -> None:
        self.markers, self.found, self.seen = markers, set(), 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._watch.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            for process in psutil.process_iter():
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                self.seen += 1
                if any(marker in line for marker in self.markers):
                    self.found.add(line)
