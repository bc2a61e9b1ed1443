"""The bench of the whole way, small: ours cold and warm, and a peer, in turn; the answers of all are judged."""

import re
import subprocess
import sys

import pytest

from tests.helpers.timeline import ROOT

EVENTS = 19_600
# A peer that prints how it was called, and answers that are not perfect.
PEER = """
import json, sys
with open(sys.argv[1], "a") as calls:
    print(*sys.argv[2:], file=calls)
print(json.dumps({"events_per_s": 1000, "seconds_from_start": 0.5, "right_pairs": 9000, "mixed": 7, "halves": 19000, "repeated": 3}))
"""


@pytest.mark.long
def test_ours_and_a_peer_take_turns_and_answers_are_judged(tmp_path):
    program, calls = tmp_path / "peer.py", tmp_path / "calls"
    program.write_text(PEER)
    peer = f"other={sys.executable} {program} {calls} {{bootstrap}} {{left}} {{right}} {{check}}"
    options = ["--traffic", "chains", "--events", str(EVENTS), "--rounds", "2", "--peer", peer]
    command = [sys.executable, "-m", "tests.benches.whole", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    called = [line.split() for line in calls.read_text().splitlines()]
    assert [(left.endswith("-analytics"), right.endswith("-metrics"), check) for _, left, right, check in called] == [
        (True, True, "true"),
        (True, True, "false"),
    ]
    turns = re.findall(r"^    (.+?): ", done.stdout, re.M)
    assert turns == ["ours, cold", "ours, warm", "other"] * 2
    rows = {name: row.split() for name, row in re.findall(r"^  (ours, cold|ours, warm|other)  +(\d.*)$", done.stdout, re.M)}
    assert rows["other"][-4:] == ["9,000", "7", "600", "3"]
    for ours in ("ours, cold", "ours, warm"):
        right, mixed, missing, repeated = (int(each.replace(",", "")) for each in rows[ours][-4:])
        assert (missing, repeated) == (0, 0)
        # Two calls of a chain whose sides change places cannot be told apart.
        assert 9_200 < right < 9_600 and mixed < 400
    assert "ours, cold / other: " in done.stdout and "ours, warm / other: " in done.stdout
