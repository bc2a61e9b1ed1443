"""The search for secrets finds them in whatever form a file has, and on command lines."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.helpers.secret_search import CommandLines, holding

MARKER = "m4rk-in-a-unit-test"


def test_in_every_kind_of_file(tmp_path):
    text = f'{{"sasl.password":"{MARKER}"}}'.encode()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "plain").write_bytes(b"\0\xff" + text)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(text))
    (tmp_path / "packed.zstd").write_bytes(zstandard.compress(text))
    pq.write_table(pa.table({"a": [MARKER, "x"]}), tmp_path / "rows.parquet", compression="zstd")
    (tmp_path / MARKER).touch()
    (tmp_path / "other").write_text("m4rk")
    assert holding(tmp_path, MARKER) == ["below/plain", MARKER, "packed.gz", "packed.zstd", "rows.parquet"]


def test_on_a_command_line():
    with (
        CommandLines(MARKER) as lines,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(9)", MARKER]) as process,
    ):
        deadline = time.monotonic() + 5
        while not lines.found and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert lines.found and lines.seen
