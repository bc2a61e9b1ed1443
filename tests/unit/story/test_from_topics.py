"""A rehearsal of topics says when their records are too large to be read as asked."""

from __future__ import annotations

import pytest

from spark_jobs.story import from_topics
from spark_jobs.story.from_topics import read_topics
from tests.helpers.timeline import CALLS
from tests.helpers.worlds import NOW, Sent, sample


def test_a_sample_that_is_cut_for_its_size_is_named_with_its_topic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = (sample(side.topic, [Sent({"user1": "a"}, NOW)] * 3) for side in CALLS.sides)
    monkeypatch.setenv("PAIRING_KAFKA", '{"bootstrap.servers": "127.0.0.1:9"}')
    for cut, lines in ((False, 0), (True, 1)):
        monkeypatch.setattr(from_topics, "read_newest", lambda *_, cut=cut: (NOW, [left, right._replace(is_fewer=cut)]))
        (batch,) = read_topics(CALLS, 1_000, None)
        said = capsys.readouterr()
        assert len(batch.messages) == 6 and said.out == "" and said.err.count("\n") == lines
    assert (
        "records of metricsTopic are so large that only the newest 3 records of it are rehearsed, 48 MB at most" in said.err
    )
