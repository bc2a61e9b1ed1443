"""The DAGs: exactly those of the pipeline files, tasks in order, the same defaults for all."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import pendulum
import pytest
from airflow.sdk import CronDataIntervalTimetable, CronTriggerTimetable
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from airflow.timetables.base import TimeRestriction
from airflow.utils.types import DagRunType

from include.airflow import dag_settings
from include.config import pipeline as pipeline_config
from include.config.pipeline_file import load_pipeline
from tests.helpers.timeline import ROOT

TASKS = ["land_events", "pair_events", "publish_compounds", "report_quality"]


@pytest.fixture(scope="module")
def dag_bag(tmp_path_factory):
    import os

    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("airflow")
        patch.setenv("AIRFLOW_HOME", str(home))
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
        patch.setenv("AIRFLOW__CORE__PLUGINS_FOLDER", str(home / "none"))
        assert os.environ["AIRFLOW_HOME"] == str(home)
        from airflow.dag_processing.dagbag import DagBag

        yield lambda folder: DagBag(dag_folder=str(folder))


def test_exactly_the_dags_of_the_pipelines(dag_bag):
    bag = dag_bag(ROOT / "dags")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"calls", "calls_replay", "calls_maintenance"}


def test_the_live_dag(dag_bag):
    dag = dag_bag(ROOT / "dags").dags["calls"]
    assert [task.task_id for task in dag.topological_sort()] == TASKS
    assert downstream(dag) == {
        "land_events": {"pair_events"},
        "pair_events": {"publish_compounds", "report_quality"},
        "publish_compounds": {"report_quality"},
        "report_quality": set(),
    }
    # Also where the batch could not be published there is a report of it; but none where nothing was paired.
    assert rules(dag) == dict.fromkeys(TASKS, "all_success") | {"report_quality": "all_done_min_one_success"}
    assert dag.max_active_runs == 1
    assert dag.catchup is False
    assert all(task in dag.doc_md for task in TASKS)
    # A plain cron string would give zero-width data intervals.
    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert dag.timetable.expression == "*/5 * * * *"


def only(project, *changes):
    """Has the copy of the project one pipeline, `calls`, with these settings instead of its own."""
    file = project / "include/pipelines/calls.yaml"
    lines = [
        line for line in file.read_text().splitlines() if line.split(":")[0] not in [new.split(":")[0] for new in changes]
    ]
    file.write_text("\n".join([*lines, *changes]))


def test_late_events_start_replays_where_the_file_says_so(dag_bag, project):
    assert "replay_late" not in dag_bag(project / "dags").dags["calls"].task_ids
    only(project, "late: replay")
    dag = dag_bag(project / "dags").dags["calls"]
    assert [task.task_id for task in dag.topological_sort()] == [*TASKS, "replay_late"]
    task = dag.get_task("replay_late")
    assert (task.replay_dag_id, task.pool, task.retries) == ("calls_replay", "calls", 2)
    # How far replays are started Airflow keeps with an asset, which must be one of the task's.
    assert task.inlets == [task.asset] and task.outlets == []
    assert "replay_late" in dag.doc_md


def test_a_run_begins_when_there_is_data(dag_bag, project):
    only(project, "schedule: on_data", "consumer_group: calls.landed")
    (asset,) = dag_bag(project / "dags").dags["calls"].timetable.asset_condition.objects
    (watcher,) = asset.watchers
    assert asset.name == "calls/records"
    path, kwargs = watcher.trigger.serialize()
    assert path == "include.airflow.triggers.RecordsWaiting"
    # Over after gap and grace, and after max_future more where a stamp was ahead.
    topics = dict.fromkeys(("analyticsTopic", "metricsTopic"), "kafka_default")
    assert kwargs == {"topics": topics, "group": "calls.landed", "settle_s": [241.0, 541.0]}
    only(
        project,
        "left: {topic: [calls-eu, calls-us], payload: analytics}",
        "right: {topic_pattern: metrics-.*, payload: metrics}",
    )
    (asset,) = dag_bag(project / "dags").dags["calls"].timetable.asset_condition.objects
    kwargs = asset.watchers[0].trigger.serialize()[1]
    assert kwargs["topics"] == dict.fromkeys(("calls-eu", "calls-us"), "kafka_default")
    assert kwargs["patterns"] == {"metrics-.*": "kafka_default"}
    only(project, "clock: stream_time")
    (asset,) = dag_bag(project / "dags").dags["calls"].timetable.asset_condition.objects
    assert asset.watchers[0].trigger.serialize()[1]["settle_s"] == []


def test_only_the_report(dag_bag, project):
    only(project, "late: replay")
    dag = dag_bag(project / "dags").dags["calls"]
    idle = [task for task in dag.topological_sort() if task.idle_with == "report_only"]
    assert [task.task_id for task in idle] == [*TASKS[:3], "replay_late"]
    for task in idle[:3]:
        assert task.execute({"params": {"report_only": True}}) == {}
    (template,) = dag.get_task("report_quality").job_arguments
    asked = [dag.get_template_env().from_string(template).render(params={"report_only": wanted}) for wanted in (True, False)]
    assert asked == ["--again", ""]


def downstream(dag):
    return {task.task_id: task.downstream_task_ids for task in dag.tasks}


def rules(dag):
    return {task.task_id: task.trigger_rule.value for task in dag.tasks}


def test_judged_before_it_is_published(dag_bag, project):
    file = project / "include/pipelines/calls.yaml"
    file.write_text(file.read_text().replace("quality:", "quality:\n  gate: before_publish"))
    dags = dag_bag(project / "dags").dags
    for dag, paired in ((dags["calls"], "pair_events"), (dags["calls_replay"], "replay_interval")):
        assert {task: downstream(dag)[task] for task in (paired, *TASKS[2:])} == {
            paired: {"publish_compounds", "report_quality"},
            "report_quality": {"publish_compounds"},
            "publish_compounds": set(),
        }
        # What was judged good before goes out, whatever the report said of this batch: the job holds that one back itself.
        assert rules(dag)["publish_compounds"] == "all_done_min_one_success"
        assert rules(dag)["report_quality"] == "all_success"
        order = [dag.doc_md.index(f"**{task}**") for task in ("report_quality", "publish_compounds")]
        assert order == sorted(order)


def test_a_released_batch_reaches_the_job(dag_bag):
    dag = dag_bag(ROOT / "dags").dags["calls"]
    (template,) = dag.get_task("publish_compounds").job_arguments
    told = dag.get_template_env().from_string(template)
    assert told.render(params={"release_batch": 7}) == "--release-batch=7"
    assert told.render(params={"release_batch": None}) == ""


RANGES = "a-0:5-8 b.c_d-1:0-3"


def test_what_an_operator_may_accept(dag_bag):
    pattern = dag_bag(ROOT / "dags").dags["calls"].params.get_param("accept_lost_range").schema["pattern"]
    assert all(re.search(pattern, value) for value in ("a-0:5-8", RANGES))
    wrong = ["a-0:5", "a-0:5-8; rm -rf x", "a-0:5-8  b-0:1-2", "$(x)-0:1-2", "a#2-0:1-2", "{{ x }}-0:1-2", "a-0:5-8\n"]
    # JSON schemas mean by a dollar the very end, Python also the place before a last newline.
    assert not any(re.search(pattern.replace("$", r"\Z"), value) for value in wrong)


def test_what_an_operator_accepts_reaches_the_job(dag_bag):
    dag = dag_bag(ROOT / "dags").dags["calls"]

    def arguments(params):
        templates = dag.get_task("land_events").job_arguments
        return [
            text for template in templates if (text := dag.get_template_env().from_string(template).render(params=params))
        ]

    given = {"max_records": 5, "accept_lost_range": RANGES}
    assert arguments(given) == ["--max-records=5", f"--accept-lost-range={RANGES}"]
    assert arguments(dict.fromkeys(given)) == []


def test_every_task_has_the_default_arguments_and_connections(dag_bag):
    tasks = [task for dag in dag_bag(ROOT / "dags").dags.values() for task in dag.tasks]
    assert len(tasks) == 9
    for task in tasks:
        assert (task.owner, task.retries, task.execution_timeout) == ("data-engineering", 2, timedelta(hours=2))
        assert task._conn_id == "spark_default"
        # The one slot in which the pipeline's writers come one after the other; reconcile only reads.
        assert task.pool == ("default_pool" if task.task_id == "reconcile" else "calls")


def test_assets_are_what_the_tasks_change(dag_bag):
    dags = dag_bag(ROOT / "dags").dags
    changed = {
        (name, task.task_id): [asset.name for asset in task.outlets] for name, dag in dags.items() for task in dag.tasks
    }
    assert {place: names for place, names in changed.items() if names} == {
        ("calls", "land_events"): ["calls/raw_analytics", "calls/raw_metrics"],
        ("calls", "pair_events"): ["calls/compound_events"],
        ("calls", "publish_compounds"): ["calls/topic/outputTopic"],
        ("calls_replay", "replay_interval"): ["calls/compound_events"],
        ("calls_replay", "publish_compounds"): ["calls/topic/outputTopic"],
    }


@pytest.mark.parametrize("topic", ["compound_events", "raw_analytics", "records"])
def test_no_topic_has_the_asset_of_a_table_or_of_the_records_waited_for(topic):
    mine = replace(load_pipeline(ROOT / "include/pipelines/calls.yaml"), output_topic=topic)
    others = [*dag_settings.raw_assets(mine), dag_settings.compounds_asset(mine)]
    assert dag_settings.topic_assets(mine)[0].name not in {"calls/records", *(asset.name for asset in others)}


def test_the_maintenance_dag(dag_bag, project):
    dag = dag_bag(ROOT / "dags").dags["calls_maintenance"]
    assert [task.task_id for task in dag.topological_sort()] == ["maintain_tables", "reconcile"]
    assert [task.pool for task in dag.topological_sort()] == ["calls", "default_pool"]
    assert "maintain_tables" in dag.doc_md and "reconcile" in dag.doc_md
    # Airflow runs a DAG that is not paused at once, for the night before: the first batch would wait for it.
    assert dag.is_paused_upon_creation is None
    assert isinstance(dag.timetable, CronTriggerTimetable) and dag.timetable.expression == "30 3 * * *"
    file = project / "include/pipelines/calls.yaml"
    file.write_text(file.read_text() + "\nmaintenance: {schedule: null}\n")
    assert dag_bag(project / "dags").dags["calls_maintenance"].schedule is None
    file.write_text(file.read_text().replace("schedule: null}", "reconcile: false}"))
    alone = dag_bag(project / "dags").dags["calls_maintenance"]
    assert [task.task_id for task in alone.tasks] == ["maintain_tables"] and "reconcile" not in alone.doc_md


def test_the_replay_dag(dag_bag):
    dag = dag_bag(ROOT / "dags").dags["calls_replay"]
    assert [task.task_id for task in dag.topological_sort()] == ["replay_interval", *TASKS[2:]]
    assert not dag.is_paused_upon_creation and dag.timetable.periodic
    assert all(task in dag.doc_md for task in ("replay_interval", *TASKS[2:]))
    # What the list of DAGs and the forms say: no schedule that nothing runs by, and no second "From" beside a backfill's own.
    assert dag.timetable.summary == "backfill, or by hand"
    assert dag.timetable.description == "Nothing runs by itself; a backfill has a run for each interval of 0 * * * *"
    assert {param.schema["title"] for param in map(dag.params.get_param, dag.params)} == {"Interval begins", "Interval ends"}


def test_only_replays_are_backfilled(dag_bag, project):
    (project / "include/pipelines/waits.yaml").write_text((project / "include/pipelines/calls.yaml").read_text())
    file = project / "include/pipelines/waits.yaml"
    file.write_text(file.read_text().replace('schedule: "*/5 * * * *"', "schedule: on_data\nconsumer_group: waits.landed"))
    dags = dag_bag(project / "dags").dags
    every = {"scheduled", "manual", "operator_triggered", "asset_triggered", "asset_materialization", "backfill"}
    assert {str(of_type.value) for of_type in DagRunType} == every, "a new type of run: is it a backfill?"
    for name, dag in dags.items():
        allowed = every if dag.allowed_run_types is None else {of_type.value for of_type in dag.allowed_run_types}
        assert every - allowed == (set() if name.endswith("_replay") else {"backfill"}), name
    assert len(dags) == 6


def test_the_replay_dag_has_intervals_but_runs_only_by_backfill(dag_bag):
    timetable = dag_bag(ROOT / "dags").dags["calls_replay"].timetable
    first, last = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 1, 2, tzinfo=UTC)

    def runs(catchup):
        info = None
        restriction = TimeRestriction(pendulum.instance(first), pendulum.instance(last), catchup)
        found = []
        while info := timetable.next_dagrun_info(
            last_automated_data_interval=info.data_interval if info else None, restriction=restriction
        ):
            found.append((info.data_interval.start, info.data_interval.end))
        return found

    hours = [first + timedelta(hours=number) for number in range(4)]
    assert runs(catchup=True) == list(pairwise(hours))
    assert runs(catchup=False) == []


@pytest.mark.parametrize(
    ("run_type", "params", "arguments"),
    [
        ("backfill", {}, ["--window-start=2026-03-01T00:00:00+00:00", "--window-end=2026-03-01T01:00:00+00:00"]),
        ("manual", {"window_start": "S", "window_end": "E"}, ["--window-start=S", "--window-end=E"]),
        ("manual", {"window_start": "S"}, ["--window-start=S"]),
        # The job says what is missing; the interval that Airflow infers is none that anybody asked for.
        ("manual", {}, []),
    ],
)
def test_the_interval_reaches_the_job(run_type, params, arguments, dag_bag):
    dag = dag_bag(ROOT / "dags").dags["calls_replay"]
    context = {
        "params": {"window_start": None, "window_end": None} | params,
        "dag_run": SimpleNamespace(run_type=run_type),
        "data_interval_start": datetime(2026, 3, 1, tzinfo=UTC),
        "data_interval_end": datetime(2026, 3, 1, 1, tzinfo=UTC),
    }
    environment = dag.get_template_env()
    templates = dag.get_task("replay_interval").job_arguments
    assert [text for template in templates if (text := environment.from_string(template).render(context))] == arguments


@pytest.mark.parametrize("name", ["window_start", "window_end"])
def test_what_is_no_time_is_refused_in_the_form(name, dag_bag):
    params = dag_bag(ROOT / "dags").dags["calls_replay"].params

    def is_taken(value):
        try:
            return params.get_param(name).resolve(value) == value
        except ParamValidationError:
            return False

    times = [
        None,
        "2026-01-31T13:00:00Z",
        "2026-01-31T13:00:00.001000+00:00",
        "2026-01-31 13:00",
        "2026-01-31",
        "1769864400000",
    ]
    assert all(map(is_taken, times))
    assert not any(
        map(is_taken, ["yesterday", "", "13:00", "31.01.2026", "2026-01-31T13:00:00Z --yes", "12", 1769864400000])
    )


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project, whose pipeline files may be changed."""
    for folder in ("dags", "include", "plugins", "spark_jobs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    # What the DAG file imports is the test process's own.
    monkeypatch.setattr(pipeline_config, "PIPELINES", tmp_path / "include/pipelines")
    return tmp_path


def test_a_broken_pipeline_is_refused_at_parse_with_one_line(dag_bag, project):
    file = project / "include/pipelines/calls.yaml"
    file.write_text(file.read_text().replace("grace: 3m", "grace: -3m"))
    errors = dag_bag(project / "dags").import_errors
    assert len(errors) == 1
    last = next(iter(errors.values())).strip().splitlines()[-1]
    assert last.endswith(
        f"{file}: grace: '-3m' is not a duration: write a whole number and a unit (ms, s, m, h, d), like 90s"
    )


def test_a_broken_pipeline_does_not_stop_the_others(dag_bag, project):
    pipelines = project / "include/pipelines"
    right = (pipelines / "calls.yaml").read_text()
    broken = {name: pipelines / f"{name}.yaml" for name in ("orders", "my orders!")}
    for file in broken.values():
        file.write_text(right.replace("grace: 3m", "grace: -3m"))
    bag = dag_bag(project / "dags")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"calls", "calls_replay", "calls_maintenance", "orders", "my_orders_"}
    assert [task.task_id for task in bag.dags["calls"].topological_sort()] == TASKS

    refused = bag.dags["orders"]
    line = f"{broken['orders']}: grace: '-3m' is not a duration"
    (task,) = refused.tasks
    with pytest.raises(AirflowFailException, match=re.escape(line)):
        task.python_callable()
    assert line in re.sub(r"\\(.)", r"\1", refused.doc_md) and "configuration-refused" in refused.tags
    # Mended, it is the pipeline's own DAG again.
    broken["orders"].write_text(right.replace("Topic", "Orders"))
    broken["my orders!"].unlink()
    assert {name: len(dag.tasks) for name, dag in dag_bag(project / "dags").dags.items()} == {
        "calls": 4, "calls_replay": 3, "calls_maintenance": 2, "orders": 4, "orders_replay": 3, "orders_maintenance": 2,
    }  # fmt: skip
