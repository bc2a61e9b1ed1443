"""Processor time, memory and files of a program and of its children are counted, also when these have ended before it."""

import os
import subprocess
import sys
import time

from tests.benches.usage import Usage

_CHILD = "import sys; a = bytearray(50_000_000); a[::4096] = b'x' * len(a[::4096]); f = open(sys.argv[1], 'wb'); f.write(bytes(20_000_000))\n"
_CHILD += "f.flush(); import os, time; os.fsync(f.fileno())\nwhile time.process_time() < 0.4: pass\ntime.sleep(0.2)"
# Two children, one after the other.
_PARENT = "import subprocess, sys, time; program = [sys.executable, '-c', sys.argv[1], sys.argv[2]]\nsubprocess.run(program); subprocess.run(program)\n"
_PARENT += "time.sleep(0.3)"


def test_children_that_have_ended_count(tmp_path):
    with Usage() as usage:
        process = subprocess.Popen([sys.executable, "-c", _PARENT, _CHILD, str(tmp_path / "file")])
        usage.follow(process.pid)
        process.wait()
    cost = usage.cost
    assert 0.8 <= cost.cpu_s < 2
    assert 50 < cost.memory_mb < 150
    # A file system in memory writes nothing to a disk.
    assert 40 <= cost.written_mb < 60 or cost.written_mb < 1


def test_what_a_server_did_before_does_not_count():
    while time.process_time() < 0.3:
        pass
    with Usage(os.getpid()) as usage:
        pass
    assert usage.cost.cpu_s < 0.2 and usage.cost.memory_mb > 10
