"""The container image, built by the steps of its Dockerfile: who runs in it, what is in it and what is not, and how large its layers are."""

from __future__ import annotations

import re

import pytest

from include.local.machine import ROOT
from tests.helpers import built_image
from tests.helpers.stores import skip_or_fail

pytestmark = [pytest.mark.integration, pytest.mark.long]

HOME = "opt/event-pairing"
MB = 1_000_000


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if lacking := built_image.missing():
        skip_or_fail(lacking)
    with built_image.BuiltImage(tmp_path_factory.mktemp("image")) as built:
        yield built


def test_it_runs_as_an_unprivileged_user_in_the_project_s_folder(image):
    config = image.description()["config"]
    assert (config["User"], config["WorkingDir"]) == ("pairing", f"/{HOME}")
    assert image.run("id", "-u").strip() == "10001"
    with pytest.raises(AssertionError, match="Permission denied"):
        image.run("touch", f"/{HOME}/new")
    image.run("touch", "/var/lib/event-pairing/airflow/new", "/var/lib/event-pairing/warehouse/new")


def test_its_layers_are_as_large_as_what_they_hold_and_the_code_is_in_the_last_ones(image):
    layers = image.layers()
    print("".join(f"{size / MB:9.1f} MB  {step[:100]}\n" for step, size in layers))
    large = [step for step, size in layers if size > 20 * MB]
    assert len(large) == 3 + 0, "the base, Java, and packages with jars"
    assert sum(size for _, size in layers) < 2_500 * MB
    of_the_set_up = next(number for number, (step, _) in enumerate(layers) if "include.local.setup" in step)
    after = layers[of_the_set_up + 2 :]
    assert len(after) >= 6 and sum(size for _, size in after) < 20 * MB, "a change of code fetches no packages again"


def test_it_holds_what_was_copied_and_no_secret_or_local_state(image):
    root = image.root() / HOME
    assert {each.name for each in root.iterdir()} == {
        ".local",
        ".venv",
        "dags",
        "docs",
        "include",
        "plugins",
        "requirements-celery.lock",
        "requirements.lock",
        "spark_jobs",
    }
    for folder in ("dags", "include", "plugins", "spark_jobs"):
        for source in (ROOT / folder).rglob("*.py"):
            assert (root / source.relative_to(ROOT)).read_bytes() == source.read_bytes()
    foreign = [
        each for each in (*root.rglob(".env"), *root.rglob(".git"), *root.rglob("test_*.py")) if ".venv" not in each.parts
    ]
    assert foreign == []
    assert not [each for each in (root / "spark_jobs").rglob("*") if each.stat().st_uid]
    assert re.search(r"PASSWORD|SECRET|TOKEN|_KEY", " ".join(image.description()["config"]["Env"])) is None


def test_nothing_in_it_may_give_rights_that_its_user_has_not(image):
    root = image.root()
    privileged = {
        str(path.relative_to(root))
        for folder in ("opt", "var/lib/event-pairing", "home")
        for path in (root / folder).rglob("*")
        if not path.is_symlink() and path.stat().st_mode & 0o6000
    }
    assert privileged == set()


def test_its_programs_work(image):
    assert image.run("airflow", "version").splitlines()[-1] == "3.3.2"
    assert image.run("python", "-m", "include.check_pipelines").startswith("accepted: ")
    assert "17." in image.run("sh", "-c", "java -version 2>&1")
    record = '{"topic":"analyticsTopic","partition":0,"offset":0,"ts":1,"key":null,"payload":"x"}'
    told = image.run(
        "sh",
        "-c",
        f"echo '{record}' > /tmp/a.jsonl; python -m spark_jobs.rehearse_pairing --pipeline include/pipelines/calls.yaml --batch /tmp/a.jsonl@100",
    )
    assert '"reason": "malformed_json"' in told
