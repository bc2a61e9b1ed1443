"""What machines that have nothing of the project get of it: executors of a cluster, and drivers in cluster mode.

    python -m include.config.driver_files FOLDER JOB PIPELINE-FILE < SETTINGS

makes the archive and the driver's script in the folder, and prints the archive's path. SETTINGS: a JSON object, variable -> text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from include.config.pipeline_file import SCHEMAS
from include.config.project import JOBS, PACKAGE, ROOT

# The runbooks are shown on the pages that the report writes.
_FOLDERS = ("spark_jobs", "include/config", "docs/runbooks")
_MARKS = (ROOT / "include" / "__init__.py", ROOT / "__init__.py")
# Where pipeline files are in the archive.
PIPELINES_THERE = "include/pipelines"
# The oldest time that a zip file can hold: equal code makes equal bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
_SCRIPT = """\
import json, os, runpy

# Nobody reads it again, and YARN would keep it on this machine.
os.unlink(os.path.realpath(__file__))
os.environ |= json.loads({settings!r})
runpy.run_module("{jobs}.{job}", run_name="__main__", alter_sys=True)
"""


def project_archive(folder: Path, *pipelines: Path) -> Path:
    """Writes a zip file into the folder: the packages and runbooks with all files, and these pipeline files with their schemas. Its name holds
    a hash of the content.
    """
    found = {*_MARKS, *(file for name in _FOLDERS for file in (ROOT / name).rglob("*"))}
    above = Path(*PACKAGE.split("."))
    members = {
        str(above / file.relative_to(ROOT)): file.read_bytes() for file in found if file.is_file() and file.suffix != ".pyc"
    }
    members |= {f"{PIPELINES_THERE}/{file.name}": file.read_bytes() for file in pipelines}
    schemas = {file for each in pipelines for file in (each.parent / SCHEMAS).glob("*") if file.is_file()}
    members |= {f"{PIPELINES_THERE}/{SCHEMAS}/{file.name}": file.read_bytes() for file in schemas}
    content = hashlib.sha256()
    for name, data in sorted(members.items()):
        content.update(f"{name}\0".encode() + data)
    archive = folder / f"event_pairing_{content.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in sorted(members.items()):
            packed.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
    return archive


def driver_script(folder: Path, job: str, settings: Mapping[str, str]) -> Path:
    """Writes a script into the folder, for its user only, that runs the job with these variables. Where it runs, it deletes itself first.

    Of all that travels to YARN, only the script of the driver goes to no executor.
    """
    script = folder / f"{job}.py"
    script.touch(mode=0o600)
    script.write_text(_SCRIPT.format(settings=json.dumps(dict(settings)), jobs=JOBS, job=job), encoding="utf-8")
    return script


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The archive and the script of a driver on a cluster; reads its settings.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("job")
    parser.add_argument("pipeline", type=Path)
    given = parser.parse_args()
    driver_script(given.folder, given.job, json.load(sys.stdin))
    print(project_archive(given.folder, given.pipeline))
