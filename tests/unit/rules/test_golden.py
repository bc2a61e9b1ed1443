"""The answers of the real Kafka Streams where they are right, and the right ones where they are not."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from fastavro import schemaless_writer

from include.config.pipeline_file import load_pipeline
from spark_jobs.story.from_files import BatchFile, explain, read_batches, rehearse
from tests.helpers.timeline import CALLS, ROOT

GOLDEN = sorted((ROOT / "tests" / "golden").glob("*/*.json"))
SETTINGS = ("tolerance_ms", "gap_ms", "grace_ms", "max_future_ms", "max_session_ms")


def main(pipeline, files):
    """The lines that the rehearsal prints."""
    return rehearse(pipeline, read_batches(pipeline, files))


def write_batches(folder: Path, scenario: dict, cut: str) -> list[BatchFile]:
    records = {f"{r['topic']}-{r['partition']}-{r['offset']}": json.dumps(r) for r in scenario["records"]}
    batches = []
    for number, batch in enumerate(scenario["cuts"][cut]["batches"]):
        path = folder / f"{cut}-{number}.jsonl"
        path.write_text("\n".join(records[source] for source in batch["offsets"]))
        batches.append(BatchFile(path, batch["clock"]))
    return batches


def rows(lines) -> Counter:
    decoded = (json.loads(line) for line in lines)
    return Counter(json.dumps(row, sort_keys=True) for row in decoded if row["table"] != "batch_ledger")


def expected_rows(scenario: dict, cut: str, mode: str) -> Counter:
    return Counter(json.dumps(row, sort_keys=True) for row in scenario["cuts"][cut]["expected"][mode])


def test_all_scenarios_are_here():
    assert len(GOLDEN) == 39


@pytest.mark.parametrize("mode", ["one_to_one", "collapse"])
@pytest.mark.parametrize("cut", ["one_batch", "batch_per_event"])
@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_golden(path, cut, mode, tmp_path):
    scenario = json.loads(path.read_text())
    pipeline = replace(CALLS, matching=mode, **{name: scenario[name] for name in SETTINGS})
    assert rows(main(pipeline, write_batches(tmp_path, scenario, cut))) == expected_rows(scenario, cut, mode)


@pytest.mark.parametrize("path", [p for p in GOLDEN if p.parent.name == "agree"], ids=lambda path: path.stem)
def test_agree_means_the_compounds_of_kafka_streams(path, tmp_path):
    scenario = json.loads(path.read_text())
    pipeline = replace(CALLS, **{name: scenario[name] for name in SETTINGS})
    lines = [json.loads(line) for line in main(pipeline, write_batches(tmp_path, scenario, "one_batch"))]
    ours = Counter(
        json.dumps({k: v for k, v in row.items() if k in ("user1", "user2", "ts", "analytics", "metrics")}, sort_keys=True)
        for row in lines
        if row["table"] == "compound_events"
    )
    assert ours == Counter(json.dumps(row, sort_keys=True) for row in scenario["kafka_streams"])


def test_the_command_prints_the_same(tmp_path):
    scenario = json.loads((ROOT / "tests/golden/differ/08-late-beyond-grace.json").read_text())
    batches = write_batches(tmp_path, scenario, "batch_per_event")
    command = [sys.executable, "-m", "spark_jobs.rehearse_pairing", "--pipeline", "include/pipelines/calls.yaml"]
    for batch in batches:
        command += ["--batch", f"{batch.path}@{batch.clock}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert rows(done.stdout.splitlines()) == expected_rows(scenario, "batch_per_event", "one_to_one")
    ledger = [json.loads(line) for line in done.stdout.splitlines() if '"batch_ledger"' in line]
    assert [row["batch"] for row in ledger] == list(range(1, len(batches) + 1))
    assert sum(row["landed"] for row in ledger) == len(scenario["records"])


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ("nowhere.jsonl@5", "no such file"),
        ("Makefile", "FILE@CLOCK"),
        ("Makefile@soon", "FILE@CLOCK"),
        ("Makefile@5", "Makefile:1: not a record as `kcat -C -J` prints it"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(batch, says):
    command = [
        sys.executable,
        "-m",
        "spark_jobs.rehearse_pairing",
        "--pipeline",
        "include/pipelines/calls.yaml",
        "--batch",
        batch,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_bytes_that_are_no_utf8_stop_nothing(tmp_path):
    line = json.dumps({"topic": "analyticsTopic", "partition": 0, "offset": 0, "ts": 5, "key": "k", "payload": "@"}).encode()
    good = {
        "topic": "analyticsTopic",
        "partition": 0,
        "offset": 2,
        "ts": 5,
        "key": "k",
        "payload": '{"user1":"a","user2":"b"}',
    }
    path = tmp_path / "raw.jsonl"
    path.write_bytes(
        line.replace(b"@", b"\xff")
        + b"\n"
        + line.replace(b"@", b"\\ud800").replace(b'"offset": 0', b'"offset": 1')
        + b"\n"
        + json.dumps(good).encode()
    )
    told = [json.loads(line) for line in main(CALLS, [BatchFile(path, 10_000_000)])]
    assert [(row["table"], row.get("reason")) for row in told[:3]] == [
        ("compound_events", None),
        ("rejected_events", "malformed_json"),
        ("rejected_events", "malformed_json"),
    ]


@pytest.mark.parametrize(
    "change", [{"partition": 2**40}, {"offset": 2**70}, {"offset": -1}, {"ts": 2**70}, {"topic": "other"}, {"payload": 5}]
)
def test_records_no_broker_could_hold_are_one_line_and_exit_2(change, tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"topic": "analyticsTopic", "partition": 0, "offset": 0, "ts": 5, "payload": "{}"} | change))
    with pytest.raises(SystemExit) as ended:
        list(main(CALLS, [BatchFile(path, 5)]))
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_payloads_are_printed_in_one_ascii_line(tmp_path):
    payload = '{"user1":"a","user2":"b","analytics":\n{"x":"\u2028 é 😀"}}'
    path = tmp_path / "wide.jsonl"
    path.write_text(json.dumps({"topic": "analyticsTopic", "partition": 0, "offset": 0, "ts": 5, "payload": payload}))
    line = next(iter(main(CALLS, [BatchFile(path, 10_000_000)])))
    assert line.isascii() and line.splitlines() == [line]
    assert json.loads(line)["analytics"] == {"x": "\u2028 é 😀"}


def as_kcat_prints(record: dict, value: bytes) -> bytes:
    """kcat escapes control characters, and prints all other bytes as they are."""
    text = json.dumps(record | {"payload": value.decode("utf-8", "surrogateescape")}, ensure_ascii=False)
    return text.encode("utf-8", "surrogateescape") + b"\n"


def test_files_of_avro_are_read_by_the_decoding_of_landing(tmp_path):
    schema = {"type": "record", "name": "Call", "fields": [
        {"name": "who", "type": "string"}, {"name": "user2", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}, {"name": "analytics", "type": "double"}]}  # fmt: skip
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "call.avsc").write_text(json.dumps(schema))
    file = tmp_path / "calls.yaml"
    avro = "payload: analytics, format: avro, schema: call.avsc, key: {user1: who}, timestamp: at}"
    shipped = (ROOT / "include/pipelines/calls.yaml").read_text()
    file.write_text(shipped.replace("payload: analytics}", avro))
    to = BytesIO()
    schemaless_writer(to, schema, {"who": "ann", "user2": "bob", "at": 5_000_999, "analytics": -0.1})
    left = {"topic": "analyticsTopic", "partition": 0, "offset": 0, "ts": 9}
    right = {"topic": "metricsTopic", "partition": 0, "offset": 0, "ts": 9}
    other = json.dumps({"user1": "ann", "user2": "bob", "timestamp": 5_000, "metrics": 1}).encode()
    batch = tmp_path / "batch.jsonl"
    lines = [(left, to.getvalue()), (left | {"offset": 1}, to.getvalue()[:-1]), (right, other)]
    batch.write_bytes(b"".join(as_kcat_prints(*each) for each in lines))
    pipeline = load_pipeline(file)
    pair, rejected, _ = (json.loads(line) for line in main(pipeline, [BatchFile(batch, 10_000_000)]))
    assert (pair["kind"], pair["ts"], pair["analytics"], pair["metrics"]) == ("pair", 5_000, -0.1, 1)
    assert (rejected["reason"], rejected["source"]) == ("undecodable", "analyticsTopic-0-1")
    told = list(explain(pipeline, ("ann", "bob"), read_batches(pipeline, [BatchFile(batch, 10_000_000)])))
    assert told[0].startswith("ann, bob: 2 messages in 1 batch")


def test_without_a_registry_a_file_that_needs_one_is_one_line(tmp_path):
    file = tmp_path / "calls.yaml"
    shipped = (ROOT / "include/pipelines/calls.yaml").read_text()
    file.write_text(shipped.replace("payload: metrics}", "payload: metrics, format: avro}"))
    batch = tmp_path / "batch.jsonl"
    batch.write_text(json.dumps({"topic": "metricsTopic", "partition": 0, "offset": 0, "payload": "x"}))
    command = [sys.executable, "-m", "spark_jobs.rehearse_pairing", "--pipeline", str(file), "--batch", f"{batch}@1"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: PAIRING_SCHEMA_REGISTRY is not set")


def test_keys_and_headers_of_files_are_read(tmp_path):
    """As kcat prints them: `key`, and names and values of headers in turn."""
    text = (ROOT / "include/pipelines/calls.yaml").read_text()
    file = tmp_path / "calls.yaml"
    layout = "payload: analytics, key: {user1: $key.user, user2: $header.callee}, timestamp: $timestamp, payload_from: $value, only: {kind: end}}"
    file.write_text(text.replace("payload: analytics}", layout))
    record = {
        "topic": "analyticsTopic",
        "partition": 0,
        "offset": 1,
        "ts": 5,
        "key": '{"user":"ann"}',
        "payload": '{"kind":"end"}',
    }
    headers = ["trace", None, "callee", "bob"]
    batch = tmp_path / "batch.jsonl"
    others = [
        record | {"offset": 2, "headers": headers[:2]},
        record | {"offset": 3, "headers": headers, "payload": '{"kind":"begin"}'},
    ]
    batch.write_text("\n".join(map(json.dumps, [record | {"headers": headers}, *others])))
    command = [sys.executable, "-m", "spark_jobs.rehearse_pairing", "--pipeline", str(file), "--batch", f"{batch}@1000000"]
    lines = [
        json.loads(line)
        for line in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    assert lines[0] == {"table": "compound_events", "batch": 1, "pair_id": "analyticsTopic-0-1", "kind": "left_only", "user1": "ann",
                        "user2": "bob", "ts": 5, "analytics": {"kind": "end"}, "metrics": None}  # fmt: skip
    assert lines[1] == {"table": "rejected_events", "batch": 1, "reason": "missing_key", "source": "analyticsTopic-0-2"}
    ledger = {"landed": 3, "accepted": 1, "filtered": 1, "rejected": {"missing_key": 1}}
    assert len(lines) == 3 and ledger.items() <= lines[2].items()
