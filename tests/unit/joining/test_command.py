"""The command around a proposal: what it prints, which file it writes, and when it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from include.config.check_pipelines import main as check_pipelines
from include.config.pipeline import KAFKA
from include.config.pipeline_file import load_pipeline
from spark_jobs.joining import command
from spark_jobs.joining.command import OUT, chosen_name, propose_file, schema_files
from spark_jobs.joining.documents import NoProposal
from tests.helpers.timeline import ROOT
from tests.helpers.worlds import NOW, REPORT, WORLDS, World, records, sample


@pytest.fixture
def topics(monkeypatch):
    """topics(world): what is read of the topics is that world."""
    monkeypatch.delenv("PAIRING_SCHEMA_REGISTRY", raising=False)
    monkeypatch.setenv("PAIRING_KAFKA", '{"bootstrap.servers": "127.0.0.1:9"}')

    def read(world: World) -> None:
        left, right, _ = records(world)
        both = {"calls.ended": sample("calls.ended", left), "media-metrics": sample("media-metrics", right)}
        monkeypatch.setattr(command, "read_newest", lambda settings, asked, most: (NOW + 3_600_000, [both[asked[0]]]))

    return read


def given(**options) -> Namespace:
    return Namespace(
        **{
            "left": "calls.ended",
            "right": "media-metrics",
            "left_connection": KAFKA,
            "right_connection": KAFKA,
            "output": None,
            "name": None,
            "sample": 100,
            "write": OUT,
            "force": False,
            **dict.fromkeys(("left_schema_file", "left_message", "right_schema_file", "right_message")),
        }
        | options
    )


def test_the_file_is_what_is_printed_with_a_picture_and_is_accepted(tmp_path, topics, capsys):
    topics(WORLDS["skewed clocks"])
    file = tmp_path / "mine.yaml"
    asked = given(write=file)
    propose_file(asked, chosen_name(asked))
    printed = capsys.readouterr().out
    assert printed.startswith(file.read_text()) and f"wrote {file}" in printed and "topic mine-compounds" in printed
    assert "would pair" in printed and printed.count("#####") >= 5
    assert "times of the right side are 2m" in printed
    assert check_pipelines([file]) == 0
    with pytest.raises(SystemExit) as ended:
        chosen_name(asked)
    assert ended.value.code == 2 and "--force overwrites it" in capsys.readouterr().err
    assert chosen_name(given(write=file, force=True)) == "mine"


def test_each_side_may_be_on_a_cluster_of_its_own(tmp_path, topics, monkeypatch):
    topics(WORLDS["plain names"])
    clusters = {KAFKA: {"bootstrap.servers": "127.0.0.1:9"}, "kafka_calls": {"bootstrap.servers": "127.0.0.1:10"}}
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps(clusters))
    asked, read = [], command.read_newest

    def recorded(settings, names, most):
        asked.append((settings["bootstrap.servers"], names))
        return read(settings, names, most)

    monkeypatch.setattr(command, "read_newest", recorded)
    file = tmp_path / "mine.yaml"
    propose_file(given(write=file, left_connection="kafka_calls"), "mine")
    assert asked == [("127.0.0.1:10", ["calls.ended"]), ("127.0.0.1:9", ["media-metrics"])]
    assert load_pipeline(file).connections == ("kafka_calls", KAFKA)


def test_two_candidates_and_a_guess_are_said(topics, capsys):
    left = WORLDS["call id"].left

    def retold(call, rng):
        made = left(call, rng)
        return made._replace(value=made.value | {"call_id": made.value["call_id"].upper(), "begun": call.at - 90_000})

    topics(replace(WORLDS["call id"], left=retold))
    propose_file(given(), "calls")
    printed = capsys.readouterr().out
    assert "# - candidates for the time of left: timestamp (" in printed and "begun (1m30s" in printed
    topics(WORLDS["call id"])
    propose_file(given(), "calls")
    assert (
        "two candidates for the key: call_id = conversation (100%), user1 = user1, user2 = user2 (100%)"
        in capsys.readouterr().out
    )


def test_a_file_that_is_refused_is_not_named_after_its_place(topics):
    topics(WORLDS["plain names"])
    with pytest.raises(NoProposal) as why:
        propose_file(given(output="media-metrics"), "calls")
    assert str(why.value).startswith("the proposed file cannot be: output.topic: media-metrics is already the right topic")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "calls.ended has no records"),
        ([b"\x00\x00\x00\x00\x07\x02a"] * 9, "in a schema registry's frame (schema 7): set PAIRING_SCHEMA_REGISTRY"),
        (
            [b"\x0a\x03ann"] * 9,
            "plain Avro or Protobuf needs its schema, which does not show in records; give it with --left-sch",
        ),
        ([b"not json"] * 9, "neither JSON objects nor in a schema registry's frame"),
    ],
)
def test_values_that_say_nothing_are_one_line(topics, monkeypatch, values, words):
    topics(WORLDS["plain names"])
    odd = sample("calls.ended", [records(WORLDS["plain names"])[0][0]._replace(value=value) for value in values])
    monkeypatch.setattr(command, "read_newest", lambda *_: (NOW, [odd]))
    with pytest.raises(NoProposal) as why:
        propose_file(given(), "calls")
    assert words in str(why.value) and "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"right": "calls.ended"}, "--right calls.ended: is the left topic, too"),
        ({"output": "calls.ended"}, "--output calls.ended: is one of the topics that are paired"),
        ({"right": "c-compounds", "name": "c"}, "--output c-compounds: is one of the topics that are paired"),
        (
            {"right": "replay"},
            "calls_ended_replay would be the name of another pipeline's replay DAG; name it otherwise; give a --name",
        ),
        ({"write": Path("Calls.yaml")}, "--write Calls.yaml: a pipeline is named after its file"),
        ({"write": Path("calls.yml")}, "name a file that ends with .yaml"),
        ({"write": Path("nowhere/calls.yaml")}, "in a folder that is there"),
        ({"write": Path("calls.yaml"), "name": "others"}, "write others.yaml"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_topics_are_read(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        chosen_name(given(**options))
    error = capsys.readouterr().err
    assert ended.value.code == 2 and words in error and error.count("\n") == 1


def test_the_command_has_help_and_one_line_on_bad_arguments():
    ask = [sys.executable, "-m", "include.init_pipeline"]
    helped = subprocess.run([*ask, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert helped.returncode == 0 and "--left TOPIC" in helped.stdout
    refused = subprocess.run([*ask, "--left", "a b"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "'a b' is no Kafka topic name" in refused.stderr


def test_schema_files_are_put_where_the_written_file_finds_them(tmp_path, topics, capsys):
    world = WORLDS["plain Avro and Protobuf"]
    topics(world)
    texts = [file.text for file in world.files if file]
    avro, proto = tmp_path / "call.avsc", tmp_path / "report.proto"
    avro.write_text(texts[0])
    proto.write_text(texts[1])
    (folder := tmp_path / "pipelines").mkdir()
    file = folder / "calls.yaml"
    asked = given(write=file, left_schema_file=avro, right_schema_file=proto, right_message="media.Report")
    propose_file(asked, "calls")
    assert "call.avsc, which belongs into the folder schemas beside this file" in capsys.readouterr().out
    assert [side.schema for side in load_pipeline(file).sides] == texts and check_pipelines([file]) == 0
    (folder / "schemas" / "call.avsc").write_text("{}")
    with pytest.raises(SystemExit):
        schema_files(asked)
    assert "schemas/call.avsc is there already, and is another one; --force overwrites it" in capsys.readouterr().err
    assert schema_files(given(**vars(asked) | {"force": True}))[0] == world.files[0]


@pytest.mark.parametrize(
    ("name", "content", "message", "words"),
    [
        ("a.json", "{}", None, "name a file that ends with .avsc or .proto; its end says what the schema is"),
        ("a.avsc", None, None, "cannot be read: [Errno 2]"),
        ("a.avsc", "{}", "media.Report", "an Avro schema has no message media.Report"),
        ("a.proto", REPORT, None, "which message is a record? Name one of media.Loss, media.Report (--left-message)"),
        ("a.proto", REPORT, "Report", "has no message 'Report'; its file has media.Loss, media.Report (--left-message)"),
        ("a.proto", "message {", None, "a.proto: "),
        (None, None, "Report", "--left-message Report: goes with --left-schema-file"),
    ],
)
def test_schema_files_that_cannot_be_used_are_one_line(tmp_path, capsys, name, content, message, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit) as ended:
        schema_files(given(left_schema_file=name and tmp_path / name, left_message=message))
    error = capsys.readouterr().err
    assert ended.value.code == 2 and words in error and error.count("\n") == 1


def test_two_schema_files_of_one_name_are_refused(tmp_path, capsys):
    paths = [tmp_path / side / "a.avsc" for side in ("left", "right")]
    for path, text in zip(paths, ("{}", "[]"), strict=True):
        path.parent.mkdir()
        path.write_text(text)
    with pytest.raises(SystemExit):
        schema_files(given(left_schema_file=paths[0], right_schema_file=paths[1]))
    assert "--right-schema-file a.avsc: another file of this name is given for left" in capsys.readouterr().err
    assert schema_files(given(left_schema_file=paths[0], right_schema_file=paths[0]))
