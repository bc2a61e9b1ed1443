"""The archive of executors' Python works wherever it is unpacked, and the settings name what it is called there."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile

from include.local.setup import LOCK
from tests.helpers.example_files import EXAMPLES, connection, spark_settings
from tests.helpers.stores import skip_or_fail

# Small ones stand for all: packing the whole lock takes minutes.
PACKED = ("msgspec", "numpy")


def test_a_packed_python_works_elsewhere(tmp_path) -> None:
    blocks = re.split(r"^(?=[a-z0-9])", LOCK.read_text(), flags=re.M)
    lock = tmp_path / "lock.txt"
    lock.write_text("".join(block for block in blocks if block.partition("==")[0] in PACKED))
    archive, link = tmp_path / "python.tar.gz", tmp_path / "container" / "python"
    packed = subprocess.run(
        [EXAMPLES / "yarn/pack_python.sh", archive, lock],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if packed.returncode and "fetch" in packed.stderr:
        skip_or_fail(f"no packages to pack: {packed.stderr.splitlines()[0]}")
    assert packed.returncode == 0, packed.stderr
    with tarfile.open(archive) as files:
        files.extractall(link, filter="fully_trusted")
    # As an executor of YARN has it: in its own folder, by the relative path of the settings, with nothing of ours around it.
    program = spark_settings()["yarn"]["spark.pyspark.python"]
    asked = "import msgspec, numpy, sys; print(sys.version_info[:2], numpy.__file__)"
    done = subprocess.run(
        [program, "-c", asked], cwd=link.parent, env={"PATH": os.defpath}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(3, 11) ") and str(link) in done.stdout


def test_the_settings_name_the_archive_s_folder() -> None:
    found = spark_settings()["yarn"]
    assert found["spark.yarn.dist.archives"].endswith("#python") and found["spark.pyspark.python"].startswith("./python/")
    assert connection("spark_default-yarn")["extra"]["deploy-mode"] == "client", "in cluster mode a job gets no login"
