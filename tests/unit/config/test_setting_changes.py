"""Settings that differ, spelt as in the file."""

from __future__ import annotations

from dataclasses import replace

from include.config.pipeline import Maintenance, Quality
from include.config.pipeline_file import load_pipeline
from include.config.setting_changes import Change, changed_settings
from tests.helpers.pipeline_files import file_of
from tests.helpers.timeline import CALLS


def test_every_setting_is_spelt_so_that_the_file_gives_it_back(tmp_path):
    unusual = replace(
        CALLS,
        key=("user2", "user1"),
        tolerance_ms=0,
        gap_ms=90_001,
        drop_duplicates=False,
        schedule=None,
        consumer_group="lag",
        output_fields=(("who", "user2"), ("at", "left.ts"), ("a", "right.payload")),
        output_orphans_topic="orphans",
        output_rejected_topic="rejected",
        quality=Quality(silence_ms=None, max_orphan_ratio=0.25),
        maintenance=Maintenance(raw_retention_ms=30 * 86_400_000, archive="/srv/archive"),
    )
    assert load_pipeline(file_of(unusual, tmp_path)) == unusual


def test_only_what_differs_is_listed():
    new = replace(CALLS, gap_ms=120_000, quality=replace(CALLS.quality, silence_ms=None))
    assert changed_settings(CALLS, new) == [Change("gap", "1m", "2m"), Change("quality.silence", "30m", "null")]
    assert changed_settings(CALLS, replace(CALLS, name="other")) == []
