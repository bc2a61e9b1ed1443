"""Sets the project up on this machine: `.venv/` from the lock, jars by Ivy, Spark's settings. `make setup` runs it.

`--tests` also installs what tests, checks and benches need: `make setup-tests`.
Standard library only: it runs before anything is installed. It writes to `.venv/` and `.local/` only. Each step writes a stamp as its last
act, so a step that was killed halfway is repeated, and one that is done is not.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from include.local.machine import (
    JARS,
    LOCAL,
    ROOT,
    SPARK_CONF,
    VENV,
    SetupError,
    check_disk,
    check_python,
    console_logging,
    java,
    say,
)

LOCK, TESTS_LOCK = ROOT / "requirements.lock", ROOT / "requirements-tests.lock"
LOG = LOCAL / "log" / "setup.log"
IVY_FILES = ROOT / "include" / "local" / "ivy.xml", ROOT / "include" / "local" / "ivysettings.xml"
DISK_GB_TO_INSTALL, DISK_GB_TO_RUN = 4.0, 0.5


def fingerprint(*sources: Path) -> str:
    """A hash of the files' content and of the project's folder, which scripts in .venv name."""
    parts = [str(ROOT), *(path.read_text(encoding="utf-8") for path in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_done(folder: Path, wanted: str, of: str = "setup") -> bool:
    """Whether the folder has this stamp."""
    stamp = folder / f"{of}.stamp"
    return stamp.is_file() and stamp.read_text() == wanted


def mark_done(folder: Path, wanted: str, of: str = "setup") -> None:
    """Writes the stamp in one step: it exists whole or not at all."""
    half = folder / f"{of}.stamp.half"
    half.write_text(wanted)
    half.replace(folder / f"{of}.stamp")


def run(what: str, command: Sequence[str | Path], lock: IO[str]) -> None:
    """Runs a step with its output in the log; raises SetupError if it fails. It inherits the lock: if we are killed, the next set-up waits for it."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"\n== {what}: {' '.join(map(str, command))}\n")
        log.flush()
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock.fileno(),), check=False
        )
    if done.returncode:
        check_disk(0.2)
        cause = next((line for line in reversed(LOG.read_text(errors="replace").splitlines()) if is_cause(line)), "")
        raise SetupError(f"{what}: failed ({cause.strip()[:200]}): see {LOG}, check the network, then make setup again")


def is_cause(line: str) -> bool:
    return bool(re.search(r"error|cause|fail|not found|no space", line, re.IGNORECASE))


def install_packages(lock: IO[str]) -> None:
    """Creates .venv anew: pip installs the locked uv, which installs all other locked packages and builds where needed."""
    say("Python packages into .venv (1.6 GB; half a minute, more on a slow line) ...")
    if VENV.is_symlink():
        raise SetupError(f"{VENV} is a link, and what it leads to would be emptied: delete the link, then make setup again")
    run("virtual environment", [sys.executable, "-m", "venv", "--clear", VENV], lock)
    locked_uv = re.search(r"^uv==.*?(?=^\S)", LOCK.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if locked_uv is None:
        raise SetupError(f"{LOCK} does not pin uv: restore the file, or write it anew with make lock")
    uv_lock = LOCAL / "uv.lock"
    uv_lock.write_text(locked_uv[0])
    run("uv", [VENV / "bin" / "python", "-m", "pip", "install", "--require-hashes", "-r", uv_lock], lock)
    sync_packages(VENV / "bin" / "python", lock)


def add_tests(lock: IO[str]) -> None:
    """Installs what tests need beside; the other packages stay as they are, so servers may run."""
    say("Python packages of the tests into .venv (0.2 GB; some seconds) ...")
    sync_packages(VENV / "bin" / "python", lock, LOCK, TESTS_LOCK)


def sync_packages(python: Path, lock: IO[str], *locks: Path, compiled: bool = True) -> None:
    """Installs the packages of the locks (default: LOCK) for this Python, and removes all others. Not `compiled`: Python compiles what it imports."""
    options = ["--python", str(python), "--system-certs", *["--compile-bytecode"] * compiled]
    locked = ["--require-hashes", "--build-constraints", str(LOCK), *map(str, locks or [LOCK])]
    # The lock is complete, so nothing is resolved: to learn its dependencies, uv would fetch and build PySpark once more each time.
    run("Python packages", [VENV / "bin" / "uv", "pip", "sync", *options, *locked], lock)


def fetch_jars(program: str, lock: IO[str]) -> None:
    """Fetches both sets of jars beside the old ones and replaces these when the new ones are complete."""
    say("jars of the Kafka broker, and of Delta for the tests, into .local/jars (55 MB; 20 s, more on a slow line) ...")
    ivy = next(VENV.glob("lib/python*/site-packages/pyspark/jars/ivy-*.jar"))
    new = JARS.with_name("jars.new")
    shutil.rmtree(new, ignore_errors=True)
    wanted, settings = IVY_FILES
    files: list[str | Path] = ["-settings", settings, "-ivy", wanted]
    places: list[str | Path] = ["-cache", LOCAL / "ivy-cache", "-retrieve", f"{new}/[conf]/[artifact]-[revision].[ext]"]
    run("jars", [program, "-jar", ivy, *files, *places], lock)
    named = Counter(jar.attrib["conf"].partition("->")[0] for jar in ElementTree.parse(wanted).iter("dependency"))
    for conf, count in named.items():
        found = len(list((new / conf).glob("*.jar")))
        if found != count:
            raise SetupError(
                f"include/local/ivy.xml gave {found} jars for {conf}, not {count}: see {LOG}, then make clean and set up again"
            )
    shutil.rmtree(JARS, ignore_errors=True)
    new.rename(JARS)


# Without it each thread keeps a buffer outside the heap, as large as the largest batch of rows that it ever passed to Python.
SMALL_BUFFERS = "-Djdk.nio.maxCachedBufferSize=1048576"


def spark_defaults() -> str:
    """Spark's settings for small batches on one machine, all on loopback. A cluster has its own."""
    settings = {
        # Without it workers start the first python on the PATH, which has no pyarrow.
        "spark.pyspark.python": VENV / "bin" / "python",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # C1 has a code cache of 48 MB by default. A server that stays up fills it; all new code would then be interpreted.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m {SMALL_BUFFERS}",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


QUIET_LOGGING = f"""\
{console_logging("warn")}\
logger.hadoop.name = org.apache.hadoop.util.NativeCodeLoader
logger.hadoop.level = error
logger.plans.name = org.apache.spark.util.SparkStringUtils
logger.plans.level = error
"""


def write_spark_conf() -> None:
    """Writes Spark's settings where they differ."""
    SPARK_CONF.mkdir(parents=True, exist_ok=True)
    for name, text in (("spark-defaults.conf", spark_defaults()), ("log4j2.properties", QUIET_LOGGING)):
        path = SPARK_CONF / name
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def refuse_under_running_servers() -> None:
    """Raises SetupError if a server uses what is about to be replaced."""
    for pid_file in (*LOCAL.glob("broker/*.pid"), *LOCAL.glob("airflow/*.pid")):
        try:
            os.kill(int(pid_file.read_text()), 0)
        except (ValueError, OSError):
            continue
        raise SetupError("the broker or Airflow runs on what must be replaced now: make stop, then make setup again")


def wait_for_turn(lock: IO[str]) -> None:
    """Takes the lock. The kernel releases it when the last process of another set-up has ended, also after a kill."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another set-up is at work here, waiting for it ...")
        fcntl.flock(lock, fcntl.LOCK_EX)


def set_up(with_tests: bool = False) -> None:
    """Brings .venv, jars and Spark settings to what the lock and ivy.xml say; raises SetupError. `with_tests`: also what only tests need."""
    check_python()
    program = java()
    packages, jars = fingerprint(LOCK), fingerprint(*IVY_FILES)
    # The image has no such file.
    tests = fingerprint(LOCK, TESTS_LOCK) if with_tests else ""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with (LOCAL / "setup.lock").open("w") as lock:
        wait_for_turn(lock)
        # The Python that a virtual environment was made from may be gone.
        has_python = (VENV / "bin" / "python").exists()
        todo = [not (has_python and is_done(VENV, packages)), not is_done(JARS, jars)]
        lacks_tests = with_tests and (todo[0] or not is_done(VENV, tests, "tests"))
        check_disk(DISK_GB_TO_INSTALL if any(todo) else DISK_GB_TO_RUN)
        if any(todo):
            refuse_under_running_servers()
        if any(todo) or lacks_tests:
            LOG.write_text("")
        if todo[0]:
            install_packages(lock)
            mark_done(VENV, packages)
        if todo[1]:
            fetch_jars(program, lock)
            mark_done(JARS, jars)
        if lacks_tests:
            add_tests(lock)
            mark_done(VENV, tests, "tests")
        write_spark_conf()
    if any(todo) or lacks_tests:
        say("set up")


def main(arguments: Sequence[str]) -> int:
    """`arguments`: `--tests` or none."""
    try:
        set_up(with_tests="--tests" in arguments)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: make setup goes on where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
