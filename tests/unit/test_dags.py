"""The DAGs: exactly those of the pipeline files, tasks in order, the same defaults for all."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from itertools import pairwise

import pytest
from airflow.sdk import CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException

from tests.timeline import ROOT

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
    assert set(bag.dags) == {path.stem for path in (ROOT / "include/pipelines").glob("*.yaml")} == {"calls"}


def test_the_live_dag(dag_bag):
    dag = dag_bag(ROOT / "dags").dags["calls"]
    assert [task.task_id for task in dag.topological_sort()] == TASKS
    for before, after in pairwise(TASKS):
        assert dag.get_task(before).downstream_task_ids == {after}
    assert dag.max_active_runs == 1
    assert dag.catchup is False
    assert all(task in dag.doc_md for task in TASKS)
    # A plain cron string would give zero-width data intervals.
    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert dag.timetable.expression == "*/5 * * * *"


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
    for task in dag_bag(ROOT / "dags").dags["calls"].tasks:
        assert (task.owner, task.retries, task.execution_timeout) == ("data-engineering", 2, timedelta(hours=2))
        assert task._conn_id == "spark_default"


@pytest.fixture
def project(tmp_path):
    """A copy of the project, whose pipeline files may be changed."""
    for folder in ("dags", "include", "plugins", "spark_jobs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
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
    assert set(bag.dags) == {"calls", "orders", "my_orders_"}
    assert [task.task_id for task in bag.dags["calls"].topological_sort()] == TASKS

    refused = bag.dags["orders"]
    line = f"{broken['orders']}: grace: '-3m' is not a duration"
    (task,) = refused.tasks
    with pytest.raises(AirflowFailException, match=re.escape(line)):
        task.python_callable()
    assert line in refused.doc_md and "configuration-refused" in refused.tags
    # Mended, it is the pipeline's own DAG again.
    broken["orders"].write_text(right.replace("Topic", "Orders"))
    broken["my orders!"].unlink()
    assert {name: len(dag.tasks) for name, dag in dag_bag(project / "dags").dags.items()} == {"calls": 4, "orders": 4}
