"""Files of records that are not as kcat prints them."""

import json
from dataclasses import replace

import pytest

from include.config.pipeline import Side
from spark_jobs.story.from_files import BatchFile, read_batches, read_messages, rehearse
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


def test_events_keep_their_topics_when_further_ones_come(tmp_path):
    """A rehearsal numbers the topics of each batch anew; open events, and the order of equal times, follow the names."""
    pipeline = replace(SMALL, left=Side(("b", "d", "f"), "analytics"), right=Side(None, "metrics", topic_pattern="[ace]"))

    def record(topic, partition, offset, at, user):
        body = {
            "user1": user,
            "user2": "v",
            "timestamp": at,
            "analytics" if topic in "bdf" else "metrics": f"{topic}{offset}",
        }
        return {"topic": topic, "partition": partition, "offset": offset, "ts": at, "key": None, "payload": json.dumps(body)}

    cuts = [
        ([record("d", 1, 7, 100, "x"), record("e", 0, 0, 100, "y"), record("d", 0, 1, 100, "y")], 500),
        # By name, both stand before what waits.
        ([record("b", 1, 7, 100, "y"), record("c", 1, 3, 100, "y"), record("c", 2, 4, 150, "x")], 900),
        ([], 10_000),
    ]
    files = []
    for number, (records, clock) in enumerate(cuts):
        files.append(BatchFile(tmp_path / f"{number}", clock))
        files[-1].path.write_text("\n".join(map(json.dumps, records)))
    rows = [json.loads(line) for line in rehearse(pipeline, read_batches(pipeline, files))]
    found = [(row["pair_id"], row["metrics"]) for row in rows if row["table"] == "compound_events"]
    assert found == [("b-1-7", "c3"), ("d-0-1", "e0"), ("d-1-7", "c4")]


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
