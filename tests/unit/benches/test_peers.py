"""Peers are named commands; one that fails ends the bench with what it printed."""

import argparse
import sys

import pytest

from tests.benches.peers import Peer, run_followed
from tests.benches.usage import Usage


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
