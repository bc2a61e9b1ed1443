"""Peers are named commands; one that fails ends the bench with what it printed."""

import argparse
import os
import sys
from types import SimpleNamespace

import pytest

from tests.benches import peers
from tests.benches.chains import Answers
from tests.benches.peers import Peer, run_followed
from tests.benches.usage import Usage
from tests.helpers.timeline import CALLS

BROKER = SimpleNamespace(bootstrap="127.0.0.1:1", folder=None)


def test_a_command_may_have_equal_signs_of_its_own():
    assert Peer.parse("flink=java -Da=b peer.Bench state=hashmap") == Peer("flink", "java -Da=b peer.Bench state=hashmap")


@pytest.mark.parametrize("given", ["java -jar peer.jar", "a name=java", "=java", "name="])
def test_a_peer_without_a_name_or_a_command_is_refused(given):
    with pytest.raises(argparse.ArgumentTypeError, match="not NAME=COMMAND"):
        Peer.parse(given)


def test_a_command_that_fails_tells_its_errors(tmp_path):
    program = "import sys; print('fine'); sys.exit('broken' if sys.argv[1] else 0)"
    with Usage() as usage:
        outcomes = [run_followed([sys.executable, "-c", program, fails], usage, tmp_path / "log") for fails in ("", "yes")]
    assert outcomes == [(0, "fine\n"), (1, "broken\n")]


def test_a_peer_gets_what_it_asks_for_and_its_own_words_count(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "pid_of", lambda folder, program: os.getpid())
    program, called = tmp_path / "peer.py", tmp_path / "called"
    figures = '{"events_per_s": 50, "seconds_from_start": 2.5, "process_cpu_s": 3.5, "right_pairs": 4, "halves": 9}'
    program.write_text(f"import sys\nopen(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))\nprint('noise\\n{figures}')\n")
    peer = Peer("other", f"{sys.executable} {program} {called} {{bootstrap}} {{left}} {{right}} {{check}}")
    run = peer.run(BROKER, CALLS, 10, tmp_path, check=True)
    assert called.read_text() == f"127.0.0.1:1 {CALLS.left.topic} {CALLS.right.topic} true"
    assert (run.seconds, run.rate, run.cost.cpu_s) == (2.5, 50, 3.5)
    assert run.answers == Answers(right_pairs=4, mixed=0, missing=1, repeated=0)


def test_a_peer_that_says_nothing_ends_the_bench_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "pid_of", lambda folder, program: os.getpid())
    with pytest.raises(SystemExit, match="the peer other failed; its last line has to be JSON with events_per_s: fine"):
        Peer("other", f"""{sys.executable} -c 'print("fine")'""").run(BROKER, CALLS, 10, tmp_path, check=False)
