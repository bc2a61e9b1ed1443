"""What is pinned, and that a set-up is done once, or again after it was cut short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from include.local import setup as local_setup
from include.local.machine import ROOT, SetupError


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.parametrize(("name", "at_least"), [("requirements", 20), ("requirements-tests", 10)])
def test_the_lock_holds_every_direct_dependency_at_its_version_with_hashes(name: str, at_least: int) -> None:
    direct = [line for line in (ROOT / f"{name}.txt").read_text().splitlines() if line and not line.startswith("#")]
    lock = (ROOT / f"{name}.lock").read_text()
    locked = pins(lock)
    assert len(direct) > at_least
    assert {line: locked.get(line.partition("==")[0].partition("[")[0]) for line in direct} == {
        line: line.partition("==")[2] for line in direct
    }
    entries = re.split(r"\n(?=[a-z0-9])", lock)[1:]
    assert len(entries) == len(locked)
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"https?://|--index|--find-links", lock) == []


def test_no_package_is_in_two_locks() -> None:
    product, *others = (set(pins((ROOT / f"requirements{name}.lock").read_text())) for name in ("", "-tests", "-celery"))
    assert [product & other for other in others] == [set(), set()]


def test_jars_are_pinned_and_delta_is_the_same_release_on_both_sides() -> None:
    dependencies = [node.attrib for node in ElementTree.parse(ROOT / "include" / "local" / "ivy.xml").iter("dependency")]
    revisions = {node["name"]: node["rev"] for node in dependencies}
    # Ivy takes 1.+ and [1,2) and latest.release, too.
    assert [name for name, revision in revisions.items() if not re.fullmatch(r"\d+(\.\d+)+(-\d+)?", revision)] == []
    direct, tests = (pins((ROOT / f"{name}.txt").read_text()) for name in ("requirements", "requirements-tests"))
    assert revisions["delta-spark_4.2_2.13"] == revisions["delta-storage"] == tests["delta-spark"]
    assert direct["pyspark"] == direct["pyspark-client"]


def test_a_bare_make_lists_every_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make ([\w-]+) +\S", listed, re.MULTILINE) == targets[1].split()


@pytest.fixture
def setup_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A project folder of its own, where the two long steps only note that they ran."""
    done: list[str] = []
    folders = {"VENV": ".venv", "LOCAL": ".local", "JARS": ".local/jars", "SPARK_CONF": ".local/spark-conf"}
    for name, path in folders.items():
        monkeypatch.setattr(local_setup, name, tmp_path / path)
    monkeypatch.setattr(local_setup, "check_disk", lambda _: None)
    monkeypatch.setattr(local_setup, "LOG", tmp_path / ".local" / "log" / "setup.log")

    def step(name: str, folder: Path) -> Any:
        def run(*_: object) -> None:
            done.append(name)
            (folder / "bin").mkdir(parents=True, exist_ok=True)
            (folder / "bin" / "python").touch()

        return run

    monkeypatch.setattr(local_setup, "install_packages", step("packages", tmp_path / ".venv"))
    monkeypatch.setattr(local_setup, "add_tests", step("tests", tmp_path / ".venv"))
    monkeypatch.setattr(local_setup, "fetch_jars", step("jars", tmp_path / ".local" / "jars"))
    monkeypatch.setattr(local_setup, "java", lambda: "java")
    return done


def test_a_second_set_up_does_nothing(setup_steps: list[str]) -> None:
    local_setup.set_up()
    assert setup_steps == ["packages", "jars"]
    local_setup.set_up()
    assert setup_steps == ["packages", "jars"]
    assert (local_setup.SPARK_CONF / "spark-defaults.conf").read_text() == local_setup.spark_defaults()


def test_what_tests_need_is_added_once(setup_steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_setup.set_up()
    running = local_setup.LOCAL / "airflow" / "scheduler.pid"
    running.parent.mkdir(parents=True)
    running.write_text(str(os.getpid()))
    for _ in range(2):
        local_setup.set_up(with_tests=True)
        # It leaves them there.
        local_setup.set_up()
    assert setup_steps == ["packages", "jars", "tests"]
    other = tmp_path / "requirements-tests.lock"
    other.write_text("pytest==0\n")
    monkeypatch.setattr(local_setup, "TESTS_LOCK", other)
    local_setup.set_up()
    local_setup.set_up(with_tests=True)
    assert setup_steps == ["packages", "jars", "tests", "tests"]


def test_a_python_that_has_gone_is_replaced(setup_steps: list[str]) -> None:
    local_setup.set_up()
    (local_setup.VENV / "bin" / "python").unlink()
    local_setup.set_up()
    assert setup_steps == ["packages", "jars", "packages"]


def test_a_changed_lock_installs_again(setup_steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_setup.set_up()
    other = tmp_path / "requirements.lock"
    other.write_text("uv==0\n")
    monkeypatch.setattr(local_setup, "LOCK", other)
    local_setup.set_up()
    assert setup_steps == ["packages", "jars", "packages"]


@pytest.mark.parametrize("step", ["install_packages", "fetch_jars", "add_tests"])
def test_a_set_up_that_was_cut_short_leaves_no_stamp(
    step: str, setup_steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(local_setup, step)

    def cut_short(*arguments: object) -> None:
        whole(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(local_setup, step, cut_short)
        with pytest.raises(KeyboardInterrupt):
            local_setup.set_up(with_tests=True)
    local_setup.set_up(with_tests=True)
    steps = {"install_packages": "packages", "fetch_jars": "jars", "add_tests": "tests"}
    assert setup_steps == [done for name, done in steps.items() for _ in range(1 + (name == step))]


def test_nothing_is_replaced_under_a_running_server(setup_steps: list[str]) -> None:
    folder = local_setup.LOCAL / "airflow"
    folder.mkdir(parents=True)
    (folder / "scheduler.pid").write_text(str(os.getpid()))
    with pytest.raises(SetupError, match="make stop"):
        local_setup.set_up()
    assert setup_steps == []


def test_a_failed_step_names_its_cause_and_the_log(setup_steps: list[str]) -> None:
    local_setup.LOG.parent.mkdir(parents=True)
    command = [sys.executable, "-c", "print('error: no route to host'); print('bye'); raise SystemExit(3)"]
    with (local_setup.LOCAL / "lock").open("w") as lock, pytest.raises(SetupError) as failed:
        local_setup.run("jars", command, lock)
    expected = rf"jars: failed \(error: no route to host\): see {local_setup.LOG}, check the network, then make setup again"
    assert re.fullmatch(expected, str(failed.value))


def test_a_step_that_outlives_a_killed_set_up_keeps_the_lock(setup_steps: list[str]) -> None:
    local_setup.LOG.parent.mkdir(parents=True)
    with (local_setup.LOCAL / "lock").open("w") as lock:
        local_setup.run("step", [sys.executable, "-c", f"import os; print('holds', os.fstat({lock.fileno()}).st_ino)"], lock)
        assert f"holds {os.fstat(lock.fileno()).st_ino}" in local_setup.LOG.read_text()


def test_too_few_jars_do_not_replace_the_old_ones(
    tmp_path: Path, setup_steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(local_setup, "JARS", tmp_path / "jars")
    (tmp_path / "jars" / "readers").mkdir(parents=True)
    (tmp_path / "jars.new" / "readers").mkdir(parents=True)
    (tmp_path / "jars.new" / "readers" / "stale.jar").touch()

    def retrieve(*_: object) -> None:
        assert not (tmp_path / "jars.new").exists()
        (tmp_path / "jars.new" / "readers").mkdir(parents=True)
        for number in range(2):
            (tmp_path / "jars.new" / "readers" / f"{number}.jar").touch()

    monkeypatch.setattr(local_setup, "run", retrieve)
    with (tmp_path / "lock").open("w") as lock, pytest.raises(SetupError, match="gave 2 jars for readers, not 3"):
        local_setup.fetch_jars("java", lock)
    assert (tmp_path / "jars" / "readers").is_dir()


def test_what_a_linked_environment_leads_to_is_not_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (tmp_path / ".venv").symlink_to(elsewhere)
    monkeypatch.setattr(local_setup, "VENV", tmp_path / ".venv")
    with (tmp_path / "setup.lock").open("w") as lock, pytest.raises(SetupError, match="is a link"):
        local_setup.install_packages(lock)
    assert (elsewhere / "precious").exists()
