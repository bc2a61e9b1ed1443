"""Each documented right is needed: without it there is one line that names it, and with it given the work goes on."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from spark_jobs import land_events, pair_events, publish_compounds, reconcile
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import VARIABLE
from tests.helpers import secured_broker
from tests.helpers.kafka_rights import documented, grant
from tests.helpers.reading import consume

pytestmark = [pytest.mark.integration, pytest.mark.long]

certificates, broker, ways_in = secured_broker.certificates, secured_broker.broker, secured_broker.ways_in
RIGHTS = documented()
# Without these the work goes on, with a warning.
SPARED = [right for right in RIGHTS if "DescribeConfigs" in right or "none" in right]
WHO = "User:pairing"


@pytest.fixture
def guarded(warehouse, pipeline, ways_in, monkeypatch):
    """The warehouse of a pipeline that shows its lag, and whose jobs log in."""
    monkeypatch.setenv(VARIABLE, json.dumps(ways_in["scram"]))
    return replace(warehouse, pipeline=replace(pipeline, consumer_group=f"{pipeline.name}.lag"))


def jobs(warehouse):
    land_events.main(warehouse, 1_000, ())
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)


def refused(work, right):
    """The work fails, soon, by a line with the command that grants the right."""
    began = time.monotonic()
    with pytest.raises(NeedsOperator) as problem:
        work()
    line = str(problem.value)
    assert line.endswith(f"kafka-acls.sh --add --allow-principal {WHO} {right}") and "\n" not in line
    # A consumer that may not see its group asks for 20 s.
    assert time.monotonic() - began < 45


def call(send, user):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    send("a", user, ago, 1)
    send("m", user, ago + 50, 2)


@pytest.mark.parametrize("seen", [False, True], ids=["nothing", "describe only"])
@pytest.mark.parametrize("number", range(len(RIGHTS)), ids=RIGHTS)
def test_each_right_is_needed(number, seen, guarded, broker, send, capsys):
    rights = documented(guarded.pipeline)
    lacking, others = rights[number], rights[:number] + rights[number + 1 :]
    thing = lacking.partition(" --")[2]
    grant(broker.bootstrap, WHO, [*others, f"--operation Describe --{thing}"] if seen else others)
    call(send, "u1")
    if RIGHTS[number] in SPARED:
        jobs(guarded)
        err = capsys.readouterr().err
        assert err.count("warning: ") == err.count(f"kafka-acls.sh --add --allow-principal {WHO} {lacking}") >= 1
    else:
        refused(lambda: jobs(guarded), lacking)
    grant(broker.bootstrap, WHO, rights)
    jobs(guarded)
    assert len(consume(broker.bootstrap, guarded.pipeline.output_topic)) == 1


def test_who_reconciles_has_to_read_all_topics(guarded, broker, send):
    rights = documented(guarded.pipeline)
    grant(broker.bootstrap, WHO, rights)
    call(send, "u1")
    jobs(guarded)
    reads = [right for right in rights if right.startswith("--operation Read --topic")]
    assert len(reads) == 3
    for read in reads:
        grant(broker.bootstrap, WHO, [right for right in reads if right != read])
        refused(lambda: reconcile.main(guarded), read)
        grant(broker.bootstrap, WHO, [*(right for right in reads if right != read), read.replace("Read", "Describe")])
        refused(lambda: reconcile.main(guarded), read)
    grant(broker.bootstrap, WHO, reads)
    assert not reconcile.main(guarded).offenders


def test_records_of_any_time_are_read_with_the_same_rights(guarded, broker, send):
    grant(broker.bootstrap, WHO, documented(guarded.pipeline))
    send("a", value=b"x", timestamp=2**62)
    call(send, "u1")
    assert land_events.main(guarded, 1_000, ())["landed"] == 3
    send("a", value=b"x", timestamp=2**62)
    (read, *_) = rights = documented(guarded.pipeline)
    grant(broker.bootstrap, WHO, [*rights[1:], read.replace("Read", "Describe")])
    refused(lambda: land_events.main(guarded, 1_000, ()), read)
