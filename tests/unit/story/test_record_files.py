"""Files of records that nobody should write."""

import json

import pytest

from spark_jobs.story.record_files import read_records
from tests.helpers.timeline import CALLS

SOUND = {"topic": CALLS.left.topic, "partition": 0, "offset": 0, "ts": 5, "key": None, "payload": "x"}


@pytest.mark.parametrize(
    ("changed", "words"), [({"topic": "t" * 100_000}, "is neither"), ({"payload": ["a"] * 100_000}, "was expected")]
)
def test_an_error_shows_the_begin_of_what_is_wrong(tmp_path, capsys, changed, words):
    file = tmp_path / "records"
    file.write_text(json.dumps(SOUND | changed))
    with pytest.raises(SystemExit):
        read_records(file, CALLS)
    line = capsys.readouterr().err
    assert words in line and "…" in line and len(line) < 500
