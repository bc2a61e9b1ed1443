"""What another Airflow takes from the package, here from the tree: its description, and the DAGs of its own files."""

from __future__ import annotations

import importlib
import json
import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest

from include.config import pipeline
from include.config.pipeline import PipelineError
from include.local.machine import ROOT
from include.package.provider import get_provider_info, make_dags


def test_it_is_a_provider_by_airflow_s_own_schema():
    schema = Path(find_spec("airflow").submodule_search_locations[0]) / "provider_info.schema.json"
    info = get_provider_info()
    jsonschema.validate(info, json.loads(schema.read_text()))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert info["package-name"] == settings["project"]["name"], "or Airflow does not start"
    named = [name for kind in ("operators", "triggers") for each in info[kind] for name in each["python-modules"]]
    assert named and all(map(importlib.import_module, named))


def test_the_dags_of_a_folder_belong_to_the_file_that_asks_for_them(tmp_path, monkeypatch):
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "pipelines").mkdir()
    shutil.copy(ROOT / "include/pipelines/calls.yaml", tmp_path / "pipelines/orders.yaml")
    monkeypatch.setattr(pipeline, "PIPELINES", tmp_path / "pipelines")
    file = tmp_path / "dags" / "pairs.py"
    file.parent.mkdir()
    file.write_text('"""Airflow DAGs."""\nfrom include.package.provider import make_dags\n\nmake_dags()\n')
    # Twice in one process, as Airflow's commands do.
    for _ in range(2):
        bag = DagBag(dag_folder=str(file.parent))
        assert bag.import_errors == {}
        assert {name: dag.fileloc for name, dag in bag.dags.items()} == dict.fromkeys(
            ("orders", "orders_replay", "orders_maintenance"), str(file)
        )


def test_a_folder_that_is_not_there_is_named_with_the_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "PIPELINES", tmp_path / "none")
    with pytest.raises(PipelineError, match=r"none: no such folder; set PAIRING_PIPELINES to the absolute path"):
        make_dags()
