"""The image's Dockerfile and the small programs that the containers and `docker compose` need."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
import yaml
from cryptography.fernet import Fernet

from include.image import create_topics, healthy, write_env
from include.local.machine import ROOT, SPARK_CONF, VENV
from include.local.spark import SETTINGS
from tests.helpers.web_server import Quiet, serving

# One instruction a line: comments left out, continuation lines joined.
WITHOUT_COMMENTS = re.sub(r"^#.*\n", "", (ROOT / "include/image/Dockerfile").read_text(), flags=re.MULTILINE)
DOCKERFILE = re.sub(r"\\\n\s*", "", WITHOUT_COMMENTS)
INSTRUCTIONS = [tuple(line.split(maxsplit=1)) for line in DOCKERFILE.splitlines() if line]
COPIES = [rest.split() for instruction, rest in INSTRUCTIONS if instruction == "COPY"]
HOME = PurePosixPath(next(rest for instruction, rest in INSTRUCTIONS if instruction == "WORKDIR"))
ENVIRONMENT = dict(re.findall(r"(\w+)=(\S+)", next(rest for instruction, rest in INSTRUCTIONS if instruction == "ENV")))


def spark_defaults() -> dict[str, str]:
    lines = (ROOT / "include/image/spark-defaults.conf").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def in_image(path: Path) -> str:
    """Where something of the project lies in the image."""
    return str(HOME / path.relative_to(ROOT).as_posix())


def test_base_image_is_pinned_to_the_project_s_python() -> None:
    (base,) = [rest for instruction, rest in INSTRUCTIONS if instruction == "FROM"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base)


def test_what_is_copied_exists_and_is_let_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = {source for *some, _ in COPIES for source in some}
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert {source.split("/")[0] for source in sources} == let_in
    assert {"dags", "include", "plugins", "spark_jobs"} <= sources


def test_nothing_else_is_let_in() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert patterns[0] == "*", "secrets and local state stay out unless named"


def test_the_set_up_runs_from_what_was_copied_before_it(tmp_path: Path) -> None:
    steps = [rest for instruction, rest in INSTRUCTIONS if instruction in ("COPY", "RUN")]
    before = steps[: next(i for i, step in enumerate(steps) if "include.local.setup" in step)]
    for *sources, target in (step.split() for step in before if not step.startswith("mkdir")):
        (tmp_path / target).mkdir(exist_ok=True)
        for source in sources:
            shutil.copy(ROOT / source, tmp_path / target)
    # -S: no installed packages, as in the bare image.
    command = [sys.executable, "-S", "-c", "import include.local.setup as it; print(it.LOCK, it.ROOT)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(tmp_path / "requirements.lock"), str(tmp_path)], done.stderr
    wanted = ["requirements.lock", "include/local/ivy.xml", "include/local/ivysettings.xml"]
    assert [name for name in wanted if not (tmp_path / name).is_file()] == []


def test_the_image_does_not_run_as_root() -> None:
    users = [rest for instruction, rest in INSTRUCTIONS if instruction == "USER"]
    assert users == ["pairing"] and INSTRUCTIONS[-1] == ("USER", "pairing")
    assert "useradd --uid 10001" in DOCKERFILE


def test_paths_in_the_image_are_where_the_set_up_puts_things() -> None:
    assert ENVIRONMENT["PYTHONPATH"] == str(HOME)
    assert ENVIRONMENT["SPARK_CONF_DIR"] == in_image(SPARK_CONF)
    assert ENVIRONMENT["PATH"].startswith(f"{in_image(VENV)}/bin:")
    assert ["include/image/spark-defaults.conf", f"{SPARK_CONF.relative_to(ROOT)}/"] in COPIES
    conf = spark_defaults()
    assert conf["spark.pyspark.python"] == f"{in_image(VENV)}/bin/python"


@pytest.mark.parametrize("file", ["include/image/Dockerfile", "docs/examples/image/Dockerfile"])
def test_uv_trusts_the_image_s_certificates(file: str) -> None:
    """As in the set-up: behind a company's proxy, uv's own list of authorities refuses the registry."""
    installs = re.findall(r"\buv pip install [^&]*", re.sub(r"^#.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE))
    assert installs and [command for command in installs if " --system-certs " not in command] == []


def test_volumes_begin_as_folders_of_the_image_s_user() -> None:
    assert 'install -d -o pairing -g pairing "$AIRFLOW_HOME" "$PAIRING_WAREHOUSE"' in DOCKERFILE
    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
    mounts = {tuple(mount.split(":")[:2]) for mount in services["airflow-scheduler"]["volumes"]}
    assert mounts == {
        ("airflow-home", ENVIRONMENT["AIRFLOW_HOME"]),
        ("warehouse", ENVIRONMENT["PAIRING_WAREHOUSE"]),
    }


def test_the_spark_server_is_set_as_the_local_one() -> None:
    """Sessions, for one, must not end by themselves."""
    command = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]["spark"]["command"]
    given = dict(word.removeprefix("--conf=").split("=", 1) for word in command if word.startswith("--conf="))
    known = spark_defaults() | given
    different = {name for name, value in SETTINGS.items() if known.get(name) != value}
    assert different == {"spark.connect.grpc.binding.address"}
    assert known["spark.connect.grpc.binding.port"] == "15002"


def test_secrets_are_fresh_private_and_never_overwritten(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_env.write_env(first)
    write_env.write_env(second)
    values = dict(line.split("=", 1) for line in first.read_text().splitlines())
    assert set(values) == set(write_env.SECRETS)
    assert set(values.values()).isdisjoint(second.read_text().replace("\n", "=").split("="))
    assert re.fullmatch(r"[\w-]{32,}", values["POSTGRES_PASSWORD"]), "it becomes part of a URL"
    assert re.fullmatch(r"[\w-]{32,}", values["REDIS_PASSWORD"]), "it becomes part of a URL"
    assert len(values["AIRFLOW_JWT_SECRET"]) >= 64, "shorter keys are a warning at every token"
    Fernet(values["AIRFLOW_FERNET_KEY"])
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o600
    before = first.read_text()
    assert write_env.write_env(first) == [] and first.read_text() == before


def test_a_secret_that_came_with_a_later_version_is_added(tmp_path: Path) -> None:
    older = tmp_path / "env"
    older.write_text("POSTGRES_PASSWORD=kept\nKAFKA_PORT=19092")
    assert write_env.write_env(older) == [name for name in write_env.SECRETS if name != "POSTGRES_PASSWORD"]
    lines = older.read_text().splitlines()
    assert lines[:2] == ["POSTGRES_PASSWORD=kept", "KAFKA_PORT=19092"]
    assert {line.partition("=")[0] for line in lines[1:]} == {*write_env.SECRETS, "KAFKA_PORT"} - {"POSTGRES_PASSWORD"}


def test_secrets_are_not_committed() -> None:
    assert write_env.ENV_FILE == ROOT / ".env"
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_topics_are_those_of_the_pipelines() -> None:
    assert create_topics.pipeline_topics() == ["analyticsTopic", "metricsTopic", "outputTopic"]


def test_topics_need_a_broker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_topics, "TIMEOUT_SECONDS", 1)
    assert create_topics.main(["127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().out


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """A server with three pages: /json, /empty, /broken (status 503)."""
    answers = {"/json": (200, b'{"worker": {"status": "ALIVE"}}'), "/empty": (200, b""), "/broken": (503, b"{}")}

    class Page(Quiet):
        def do_GET(self) -> None:
            status, body = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

    with serving(Page) as address:
        yield address


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        pytest.param(["/json", "worker.status=ALIVE"], 0, id="field agrees"),
        pytest.param(["/json", "worker.status=DEAD"], 1, id="field differs"),
        pytest.param(["/json", "master.status=ALIVE"], 1, id="field missing"),
        pytest.param(["/empty"], 0, id="the answer alone counts"),
        pytest.param(["/empty", "status=ALIVE"], 1, id="not JSON"),
        pytest.param(["/broken"], 1, id="status 503"),
    ],
)
def test_healthy(page: str, arguments: list[str], exit_code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthy.main([page + arguments[0], *arguments[1:]]) == exit_code
    assert len(capsys.readouterr().out.splitlines()) == exit_code, "one line, when something is wrong"


def test_of_several_pages_the_first_that_is_not_healthy_is_named(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    agrees, differs = [f"{page}/json", "worker.status=ALIVE"], [f"{page}/json", "worker.status=DEAD"]
    assert healthy.main([*agrees, f"{page}/empty"]) == 0
    assert healthy.main([*agrees, *differs, f"{page}/broken"]) == 1
    assert capsys.readouterr().out == f"{page}/json: worker.status is 'ALIVE', not 'DEAD'\n"


def test_a_dead_service_is_not_healthy() -> None:
    assert healthy.main(["http://127.0.0.1:1/"]) == 1
