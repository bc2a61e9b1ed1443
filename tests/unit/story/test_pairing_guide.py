"""The examples of docs/pairing.md run, and print what it shows."""

import json
import re
import subprocess
import sys
from textwrap import dedent

from tests.helpers.timeline import ROOT

GUIDE = (ROOT / "docs/pairing.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Code blocks without the indentation of the list they may stand in."""
    return [dedent(text) for text in re.findall(rf"^ *```{language}\n(.*?)^ *```$", GUIDE, re.M | re.S)]


def run(script: str, folder) -> str:
    script = script.replace(".venv/bin/python", sys.executable).replace("include/pipelines", f"{ROOT}/include/pipelines")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_story_is_the_one_that_the_guide_shows(tmp_path):
    (script,) = (text for text in blocks("bash") if "cat > calls.jsonl" in text)
    assert blocks("text") == [run(script, tmp_path)]


def test_a_dump_is_cut_by_arrival_and_rehearsed_and_its_orphans_are_asked(tmp_path):
    cut, ask = (text for text in blocks("bash") if "cat batches" in text)
    minute, start = 60_000, 1_767_225_600_000
    sent = [("analyticsTopic", "analytics", 0, 1), ("metricsTopic", "metrics", 0, 2), ("metricsTopic", "metrics", 2, 12)]
    with (tmp_path / "dump.jsonl").open("w") as dump:
        for offset, (topic, payload, at, arrival) in enumerate(sent):
            body = {"user1": "ann", "user2": "bob", "timestamp": start + at * minute, payload: 1}
            record = {
                "topic": topic,
                "partition": 0,
                "offset": offset,
                "ts": start + arrival * minute,
                "payload": json.dumps(body),
            }
            print(json.dumps(record), file=dump)
    ledger = [json.loads(line) for line in run(cut, tmp_path).splitlines()]
    assert [(row["clock"] - start) // minute for row in ledger] == [5, 15]
    assert [(row["pair"], row["right_only"]) for row in ledger] == [(1, 0), (0, 1)]
    printed = run(ask, tmp_path)
    assert '"kind": "right_only"' in printed and "ann, bob: 3 messages in 2 batches" in printed
