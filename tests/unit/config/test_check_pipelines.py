"""The command that is asked before a pipeline file is deployed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from include.config.check_pipelines import main
from include.config.pipeline import PIPELINES
from tests.helpers.timeline import ROOT


def test_each_file_has_a_line_and_one_refusal_is_a_failure(tmp_path, capsys):
    shipped = PIPELINES / "calls.yaml"
    broken = tmp_path / "orders.yaml"
    broken.write_text(shipped.read_text().replace("grace: 3m", "grace: 3 minutes"))
    assert main([broken, shipped]) == 1
    refused, accepted = capsys.readouterr().out.splitlines()
    assert refused.startswith(f"refused: {broken}: grace: '3 minutes' is not a duration")
    assert accepted == f"accepted: {shipped}: analyticsTopic + metricsTopic -> outputTopic"


def test_without_a_file_it_is_all_that_are_deployed():
    command = [sys.executable, "-m", "include.check_pipelines"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    files = sorted(path.name for path in PIPELINES.glob("*.yaml"))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, len(files)), done.stderr
    assert "calls.yaml" in files


GALLERY = ROOT / "include/sample/gallery"


@pytest.mark.parametrize("example", ["orders", "clicks", "legs"])
def test_the_gallery_is_accepted_without_a_doubt(example, capsys):
    files = sorted((GALLERY / example).glob("*.yaml"))
    assert main(files) == 0
    assert [line.rpartition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"accepted: {file}" for file in files
    ]


def test_the_files_may_be_in_another_folder():
    command = [sys.executable, "-m", "include.check_pipelines"]
    environment = os.environ | {"PAIRING_PIPELINES": str(GALLERY / "clicks")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"accepted: {GALLERY}/clicks/ad_clicks.yaml: impressions + clicks -> adClicks\n"


@pytest.fixture
def chain(tmp_path):
    """The two files of docs/three-sides.md."""
    text = (ROOT / "docs/three-sides.md").read_text()
    found = re.findall(r"`include/pipelines/(\w+\.yaml)`:.*?```yaml\n(.*?)```", text, re.S)
    for name, content in found:
        (tmp_path / name).write_text(content)
    return [tmp_path / name for name, _ in found]


def test_the_documented_chain_is_accepted_without_a_doubt(chain, capsys):
    assert main(chain) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["accepted", "accepted"]


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        (", compounds: true", "", "left.compounds: callLegs has the compounds of call_legs; without compounds: true"),
        # Exactly as long is too short: the compounds come after that.
        (
            "grace: 15m",
            "grace: 4m",
            "grace: compounds of call_legs come later than 4m after their sessions; with a grace of 4m many",
        ),
        (
            "late: replay",
            "maintenance: {time_travel: 7d, raw_retention: 30d}",
            "maintenance.raw_retention: call_legs can correct older compounds",
        ),
    ],
)
def test_a_chain_that_would_go_wrong_is_a_warning(chain, capsys, old, new, warning):
    second = chain[1]
    second.write_text(second.read_text().replace(old, new))
    assert main(chain) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"warning: {second}: {warning}")


def test_silence_that_closes_only_the_second_one_is_a_warning(chain, capsys):
    first, second = chain
    first.write_text(first.read_text() + "clock: stream_time\n")
    assert main(chain) == 0
    assert f"warning: {second}: clock: in silence call_legs publishes nothing (stream_time)" in capsys.readouterr().out
    second.write_text(second.read_text() + "clock: stream_time\n")
    assert main(chain) == 0
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("grace: 15m", "grace: 240001ms"),
        ("grace: 15m", "grace: 1m\nclock: stream_time"),
        ("topic: callLegs", "connection: other, topic: callLegs"),
    ],
)
def test_what_waits_long_enough_or_reads_another_topic_is_no_doubt(chain, capsys, old, new):
    second = chain[1]
    second.write_text(second.read_text().replace(old, new))
    assert main(chain) == 0
    assert "warning" not in capsys.readouterr().out


def test_who_reads_the_rejected_records_of_another_pipeline_reads_no_compounds(chain, capsys):
    first, second = chain
    first.write_text(first.read_text().replace("topic: callLegs", "rejected_topic: callRejects, topic: callLegs"))
    second.write_text(second.read_text().replace("topic: callLegs", "topic: callRejects").replace(", compounds: true", ""))
    assert main(chain) == 0
    assert "warning" not in capsys.readouterr().out
