"""Files of records that are not as kcat prints them."""

import json
from dataclasses import replace

import pytest

from spark_jobs.story.from_files import read_messages
from tests.helpers.timeline import CALLS, SMALL, Batch, play
from tests.helpers.timeline_cases import FAR

SOUND = {"topic": CALLS.left.topic, "partition": 0, "offset": 0, "ts": 5, "key": None, "payload": "x"}


def test_with_any_order_of_the_key_a_compound_says_who_named_whom(tmp_path):
    rows = play(tmp_path, [Batch("a0:v-u=x m50:u-v=y a500:u-v=z", FAR)], replace(SMALL, key_order="any"))
    compounds = [row for row in rows if row["table"] == "compound_events"]
    keys = {"user1": "u", "user2": "v"}
    assert [list(row)[-4:] for row in compounds] == [["analytics", "metrics", "analytics_reversed", "metrics_reversed"]] * 2
    assert [keys.items() <= row.items() for row in compounds] == [True, True]
    assert [(row["analytics_reversed"], row["metrics_reversed"]) for row in compounds] == [(True, False), (False, None)]
    assert not any("reversed" in name for row in play(tmp_path, [Batch("a0 m50", FAR)]) for name in row)


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
