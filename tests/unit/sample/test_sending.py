import json
from collections import defaultdict
from pathlib import Path

import pytest

from include.config.pipeline_file import load_pipeline
from include.config.project import ROOT
from include.sample import calls as sample_calls
from include.sample import sending as sample_sending
from include.sample.calls import Record, SampleError, generate
from include.sample.sending import kcat_lines, settings_of

M = 60_000
NOW = 1_800_000_000_000
SHIPPED = str(ROOT / "include" / "pipelines" / "calls.yaml")


def test_kcat_lines_keep_every_byte() -> None:
    sample = generate(load_pipeline(SHIPPED), 1_000, 1, NOW)
    offsets = defaultdict(list)
    for record, line in zip(sample.records, kcat_lines(sample.records), strict=True):
        said = json.loads(line.decode("utf-8", "surrogateescape"))
        key, value = (
            None if text is None else text.encode("utf-8", "surrogateescape") for text in (said["key"], said["payload"])
        )
        assert Record(said["topic"], key, value, said["ts"]) == record
        offsets[said["topic"], said["partition"]].append(said["offset"])
    assert len(offsets) == 8 and all(found == list(range(len(found))) for found in offsets.values())


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["sample_calls", "--pipeline", SHIPPED, *arguments])
    return sample_calls.main()


def test_dry_run_prints_what_generate_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    truth = tmp_path / "truth.jsonl"
    options = ["--calls", "200", "--seed", "5", "--now", str(NOW), "--late-before", str(NOW - 10 * M), "--truth", str(truth)]
    assert run(monkeypatch, "--dry-run", *options) == 0
    sample = generate(load_pipeline(SHIPPED), 200, 5, NOW, NOW - 10 * M)
    out, err = capfdbinary.readouterr()
    assert out == b"".join(kcat_lines(sample.records))
    assert truth.read_text().splitlines() == sample.truth
    assert f"{len(sample.records):,} records to standard output".encode() in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "0"], "--rate must be above 0"),
        (["--rate", "5", "--dry-run"], "--rate is live"),
        (["--calls", "-1"], "'-1' is not a whole number"),
        (["--orphans", "0.9"], "0.9 is not a share"),
        (["--late-before", "yesterday"], "--late-before is epoch ms"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_refused(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(monkeypatch, *arguments)
    assert exit_.value.code == 2 and complaint in capsys.readouterr().err


def test_broker_away_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sample_sending, "ANSWER_WITHIN_S", 0.5)
    assert run(monkeypatch, "--bootstrap", "127.0.0.1:1") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("no Kafka at 127.0.0.1:1 (") and "python -m include.local.broker start" in line


def test_settings_come_from_the_option_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRING_KAFKA", '{"bootstrap.servers": "elsewhere:1", "client.id": "x"}')
    assert settings_of("here:2") == {"bootstrap.servers": "here:2"}
    assert settings_of(None) == {"bootstrap.servers": "elsewhere:1", "client.id": "x"}
    monkeypatch.setenv("PAIRING_KAFKA", "elsewhere:1")
    with pytest.raises(SampleError, match="PAIRING_KAFKA is not a JSON object"):
        settings_of(None)
    monkeypatch.delenv("PAIRING_KAFKA")
    assert settings_of(None) == {"bootstrap.servers": "127.0.0.1:9092"}
