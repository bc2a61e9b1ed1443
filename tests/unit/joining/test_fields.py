"""Which fields documents have, and how a pipeline file names them."""

from __future__ import annotations

from spark_jobs.joining.documents import read_documents
from spark_jobs.joining.fields import ABSENT, Field, code_fields, find_fields
from tests.helpers.worlds import NOW, Sent, sample


def fields(*sent: Sent) -> dict[str, list]:
    return {field.source: field.values for field in find_fields(read_documents(sample("t", list(sent)), None))}


def test_fields_are_texts_and_numbers_of_values_keys_and_headers_by_path():
    deep = {"a": {"b.c": {"$d": 1}}, "list": ["x"], "yes": True, "nothing": None, "empty": "", "huge": 2**64, "half": 0.5}
    found = fields(Sent(deep, NOW, b'{"user": "ann"}', (("trace", b"t1"), ("trace", b"t2"), ("raw", b"\xff"))))
    assert found == {r"a.b\.c.$d": [1], "half": [0.5], "$key.user": ["ann"], "$header.trace": ["t1"]}
    assert fields(Sent({"x": 1}, NOW, b"ann-bob")) == {"x": [1], "$key": ["ann-bob"]}


def test_the_same_in_another_place_and_what_few_records_have_are_left_out():
    many = [Sent({"user": f"u{number}", "x": 1, f"once{number}": 1}, NOW, f"u{number}".encode()) for number in range(100)]
    assert list(fields(*many)) == ["user", "x"]


def test_one_wide_record_and_a_map_by_user_hide_nothing(monkeypatch):
    wide = Sent({"labels": {f"l{number}": 1 for number in range(450)}}, NOW)
    by_user = [
        Sent(
            {"seen": {f"u{row}-{number}": 1 for number in range(9)}, "user": f"u{row}"},
            NOW,
            f"k{row}".encode(),
            (("h", b"1"),),
        )
        for row in range(100)
    ]
    assert list(fields(wide, *by_user)) == ["user", "$key", "$header.h"]
    monkeypatch.setattr("spark_jobs.joining.fields._MOST_COUNTED", 20)
    assert list(fields(wide, *by_user)) == ["user", "$key", "$header.h"]
    monkeypatch.undo()
    often = [
        Sent({f"f{number}": number + row for number in range(450)} | {"user": row}, NOW, b"k%d" % row) for row in range(9)
    ]
    assert len(fields(*often)) == 401 and "$key" in fields(*often)


def test_a_name_that_no_pipeline_file_may_have_is_no_field():
    assert fields(Sent({'a"b': 1, "a\\b": 2, "c": {'"': 3}, "d": 4}, NOW, None, (('e"', b"5"),))) == {
        "d": [4],
        '$header.e"': ["5"],
    }


def test_a_few_whole_numbers_are_mistakes():
    assert not Field("user", ["a"] * 95 + [1] * 5, 1.0).is_integer
    assert Field("user", [1] * 50 + [None] * 50, 0.5).is_integer


def test_equal_texts_have_equal_numbers_on_both_sides():
    left, right = Field("l", ["Ann", 7, None, 0.5], 0.75), Field("r", ["7", "ann "], 1.0)
    ((one, two, three, four),), ((five, six),) = code_fields([left], [right])
    assert two == five and one != six and three == four == ABSENT
    ((one, *_),), ((_, six),) = code_fields([left], [right], ("trim", "lower"))
    assert one == six
