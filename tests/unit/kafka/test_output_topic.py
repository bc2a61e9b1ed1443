"""What the broker says of how long it keeps positions."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_jobs.kafka import output_topic
from spark_jobs.kafka.output_topic import positions_kept_minutes
from tests.helpers.timeline import CALLS


class Admin:
    """A broker that keeps positions for so many minutes."""

    minutes = 0

    def __init__(self, settings):
        pass

    def list_topics(self, timeout):
        return SimpleNamespace(brokers={3: "b"})

    def describe_configs(self, resources, request_timeout):
        answer = Future()
        answer.set_result({"offsets.retention.minutes": SimpleNamespace(value=str(self.minutes))})
        return dict.fromkeys(resources, answer)


@pytest.mark.parametrize(
    ("minutes", "days", "warned"),
    [(1_440, 1, False), (1_439, 1, True), (10_080, 3, False), (4_320, 3, False), (4_319, 3, True)],
)
def test_a_retention_of_positions_below_what_one_can_go_back_is_told_and_always_noted(
    minutes, days, warned, monkeypatch, capsys
):
    monkeypatch.setattr(output_topic, "AdminClient", Admin)
    monkeypatch.setattr(Admin, "minutes", minutes)
    care = replace(CALLS.maintenance, time_travel_ms=days * 86_400_000)
    kept = positions_kept_minutes({"bootstrap.servers": "b:1"}, replace(CALLS, maintenance=care))
    assert ("warning: the broker forgets the positions" in capsys.readouterr().err) == warned
    assert kept == minutes
