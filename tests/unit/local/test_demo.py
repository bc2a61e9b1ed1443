"""The demo's order of things: nothing is read while a run may change it, and what differs is said."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.local import demo
from include.sample.truth import EQUAL


class ScriptedAirflow:
    """Takes the place of the client: `active` are runs under way, `scheduled` appears when the schedule is started."""

    def __init__(self, active: tuple[str, ...] = (), scheduled: str | None = None, state: str = "success") -> None:
        self.active = list(active)
        self.scheduled = scheduled
        self.state = state
        self.paused = False
        self.past = ["old"]
        self.waited: list[str] = []

    def pause(self, dag_id: str, is_paused: bool) -> None:
        self.paused = is_paused
        if not is_paused and self.scheduled:
            self.past.append(self.scheduled)

    def active_runs(self, dag_id: str) -> list[str]:
        return list(self.active)

    def runs(self, dag_id: str) -> list[dict[str, str]]:
        return [{"dag_run_id": run} for run in self.past]

    def trigger(self, dag_id: str) -> str:
        return "by hand"

    def wait_for_run(self, dag_id: str, run: str, timeout_s: float, on_change: Any = None) -> str:
        assert not self.paused, "a run of a paused DAG never ends"
        self.waited.append(run)
        self.active = [other for other in self.active if other != run]
        return self.state


def test_nothing_is_scheduled_before_everything_answers() -> None:
    done: list[str] = []

    class Server(SimpleNamespace):
        def __getattr__(self, step: str) -> Any:
            def take() -> bool:
                time.sleep(0.05 if self.name == "spark" else 0)
                done.append(f"{self.name} {step}")
                return True

            return take

    demo.start_servers(*(Server(name=name) for name in ("broker", "spark", "airflow")))  # type: ignore[arg-type]
    before = done[: done.index("airflow start")]
    assert {"broker start", "spark start", "airflow prepare"} <= {*before}
    assert "spark warm_up" in done


def test_a_run_under_way_ends_before_the_schedule_is_held() -> None:
    airflow = ScriptedAirflow(active=("running",))
    demo.pause_when_idle(airflow, "calls")  # type: ignore[arg-type]
    assert (airflow.waited, airflow.paused) == (["running"], True)


@pytest.mark.parametrize(("scheduled", "taken"), [("scheduled now", "scheduled now"), (None, "by hand")])
def test_the_run_taken_began_after_the_traffic(scheduled: str | None, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SCHEDULED_WITHIN_S", 0.5)
    airflow = ScriptedAirflow(scheduled=scheduled)
    demo.run_dag(airflow, "calls")  # type: ignore[arg-type]
    assert airflow.waited == [taken]


def airflow() -> Any:
    return SimpleNamespace(url="http://127.0.0.1:8080", password=lambda: "sesame")


def test_a_verdict_with_differences_fails_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = demo.Verdict(1, {"pair": 2}, {"late": 1}, 0, [], 0, [], {"pair": "{}"})
    demo.summarise([verdict], airflow(), demo.EXAMPLES[""])
    printed = capsys.readouterr().out
    assert "\n\n  published: 2 compounds (2 pair)\n" in printed
    assert "1 late" in printed
    assert "password sesame" in printed
    assert "http://127.0.0.1:8080/quality/calls/" in printed
    assert "make stop" in printed
    assert "one pair" not in printed
    verdict.besides.append("outputTopic lacks 1 × pair")
    with pytest.raises(
        demo.DemoFailed, match=r"NOT EQUAL TO THE TRUTH.*reconcile --pipeline include/pipelines/calls.yaml"
    ) as failed:
        demo.summarise([verdict], airflow(), demo.EXAMPLES[""])
    assert "outputTopic lacks 1 × pair" in capsys.readouterr().out
    assert "make clean" not in str(failed.value)


def test_traffic_of_your_own_is_no_difference_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = demo.Verdict(1, {"pair": 3}, {}, 0, ["outputTopic has 1 × too many: pair"], 1, [])
    demo.summarise([verdict], airflow(), demo.EXAMPLES[""])
    printed = capsys.readouterr().out
    assert EQUAL in printed and "1 compounds and events of other traffic" in printed and "too many" not in printed


def test_every_pipeline_of_an_example_is_judged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE", "legs")
    legs, whole = demo.Verdict(1, {}, {}, 0, [], 0, [], {"pair": '{"a":1}'}), demo.Verdict(1, {}, {}, 0, [], 0, ["differs"])
    with pytest.raises(demo.DemoFailed, match=r"reconcile --pipeline include/sample/gallery/legs/whole_calls\.yaml"):
        demo.summarise([legs, whole], airflow(), demo.EXAMPLES["legs"])
    printed = capsys.readouterr().out
    assert (
        printed.index("  call_legs\n") < printed.index(EQUAL) < printed.index("  whole_calls\n") < printed.index("differs")
    )
    assert '  one pair: {"a":1}\n' in printed
    assert "/dags/whole_calls " in printed and "/quality/call_legs/\n" in printed


def test_each_step_of_an_example_has_its_own_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TRUTH", tmp_path)
    for name in ("truth-0001.jsonl", "truth-live.jsonl", "step-2-0001.jsonl"):
        (tmp_path / name).touch()
    assert [[file.name for file in demo.truth_files(step)] for step in range(3)] == [
        ["truth-0001.jsonl", "truth-live.jsonl"],
        ["step-2-0001.jsonl"],
        [],
    ]
