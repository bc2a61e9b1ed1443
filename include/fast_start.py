"""Makes the jobs start faster on this machine: an archive of the classes that they load (`python -m include.fast_start`).

A job on a small batch spends most of its time loading the same 20,000 classes. The JVM can map them from an archive made
once. It takes the archive only if the class path is exactly the same, and Spark's folder of settings, which is on it, is
empty: so the settings are in a properties file here. Without the archive everything works, slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from include.local_machine import LOCAL, ROOT, SPARK_CONF, java, project_environment, say

FOLDER = LOCAL / "fast-start"
PROPERTIES, ARCHIVE, CONF, STAMP = FOLDER / "spark.properties", FOLDER / "classes.jsa", FOLDER / "conf", FOLDER / "stamp"
TRAINING = ROOT / "spark_jobs" / "train_fast_start.py"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PROPERTIES_VARIABLE = "PAIRING_SPARK_PROPERTIES"


def environment() -> dict[str, str]:
    """What whoever submits jobs should find in its environment besides the project's; nothing if there is no archive."""
    return {"SPARK_CONF_DIR": str(CONF), PROPERTIES_VARIABLE: str(PROPERTIES)} if STAMP.is_file() else {}


def wanted() -> str:
    """Changes with whatever makes an archive useless: Java, Spark's settings, the jars they name."""
    version = subprocess.run(
        [java(), "-version"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stderr
    parts = [version, (SPARK_CONF / "spark-defaults.conf").read_text(), TRAINING.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def write_properties(flag: str) -> None:
    """Spark's settings of this machine, with one more flag for the driver's JVM."""
    logging = f"-Dlog4j2.configurationFile={SPARK_CONF / 'log4j2.properties'}"
    lines = (SPARK_CONF / "spark-defaults.conf").read_text().splitlines()
    PROPERTIES.write_text(
        "".join(f"{line} {logging} {flag}\n" if line.startswith(f"{_JAVA_OPTIONS} ") else f"{line}\n" for line in lines)
    )


def prepare() -> None:
    """Makes the archive unless it is there for exactly this Java and these settings."""
    fingerprint = wanted()
    if STAMP.is_file() and STAMP.read_text() == fingerprint:
        return
    say("archive of Spark's classes, so that jobs start faster (200 MB; half a minute) ...")
    CONF.mkdir(parents=True, exist_ok=True)
    STAMP.unlink(missing_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    write_properties(f"-XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off")
    command = ["spark-submit", "--properties-file", str(PROPERTIES), str(TRAINING)]
    # Nothing listens there and nothing is asked there: the training loads Spark's Kafka source, it does not read from it.
    nowhere = '{"bootstrap.servers": "127.0.0.1:9"}'
    environment = project_environment() | {"SPARK_CONF_DIR": str(CONF), "PAIRING_KAFKA": nowhere}
    with (FOLDER / "training.log").open("w") as log:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    if done.returncode or not ARCHIVE.is_file():
        print(f"no archive was made, jobs start slower without it: see {FOLDER / 'training.log'}", file=sys.stderr)
        return
    write_properties(f"-XX:SharedArchiveFile={ARCHIVE}")
    half = STAMP.with_suffix(".half")
    half.write_text(fingerprint)
    os.replace(half, STAMP)


if __name__ == "__main__":
    prepare()
