"""Files of records that are not as kcat prints them."""

import json

import pytest

from spark_jobs.story.from_files import read_messages
from tests.helpers.timeline import CALLS

SOUND = {"topic": CALLS.left.topic, "partition": 0, "offset": 0, "ts": 5, "key": None, "payload": "x"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"topic": "t" * 100_000}, "t… is neither"), ({"payload": ["a"] * 100_000}, "got `array` - at `$.payload`")],
)
def test_an_error_names_what_is_wrong_and_stays_short(tmp_path, capsys, changed, words):
    file = tmp_path / "records"
    file.write_text(json.dumps(SOUND | changed))
    with pytest.raises(SystemExit):
        read_messages(file, CALLS)
    line = capsys.readouterr().err
    assert words in line and len(line) < 500
