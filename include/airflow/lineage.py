"""OpenLineage: what a job read and wrote (`spark_jobs/job/lineage.py`), as datasets that Airflow's OpenLineage provider adds to a task's events.

The provider asks for them only if it is configured, and only then is its client imported. docs/lineage.md has what the events say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from include.config.store import local_folder, store_options

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.generated.base import DatasetFacet, InputDatasetFacet

# The entry of a run's parameters that names the run which started it, as the provider reads it.
PARENT = "openlineage"
_SOURCE, _KAFKA_PORT = "event-pairing", 9092
_SEVERITY = {"critical": "error", "warning": "warn", "info": "info"}
# The checks of a report are about what it publishes.
_JUDGED = "compound_events"


def operator_lineage(outcome: Mapping[str, Any]) -> OperatorLineage:
    """What the provider adds to the events of a task whose job left this `outcome`; nothing if that has no lineage."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(inputs=inputs_of(outcome), outputs=outputs_of(outcome), run_facets=run_facets_of(outcome))


def inputs_of(outcome: Mapping[str, Any]) -> list[InputDataset]:
    """What the job read, with the checks of a report."""
    checks = outcome.get("checks", [])
    return [_input(dataset, checks) for dataset in outcome.get("lineage", {}).get("inputs", [])]


def outputs_of(outcome: Mapping[str, Any]) -> list[OutputDataset]:
    """What the job wrote."""
    return [_output(dataset) for dataset in outcome.get("lineage", {}).get("outputs", [])]


def run_facets_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The batches of the job, their kind, and the interval of a replay, as tags of the run."""
    from openlineage.client.facet_v2 import tags_run

    given = outcome.get("lineage", {})
    said = {name: given[name] for name in ("batches", "kind", "interval") if name in given}
    tags = [tags_run.TagsRunFacetFields(key=name, value=text, source=_SOURCE) for name, text in said.items()]
    return {"tags": tags_run.TagsRunFacet(tags=tags)} if tags else {}


def with_parent(conf: dict[str, Any], task_instance: Any) -> dict[str, Any]:
    """The parameters of a run that this task starts, with the task as its parent if lineage is configured."""
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return conf
    if is_disabled():
        return conf
    from airflow.providers.standard.utils.openlineage import safe_inject_openlineage_properties_into_dagrun_conf

    return safe_inject_openlineage_properties_into_dagrun_conf(conf, task_instance) or conf


def place_of(uri: str, account: str | None = None) -> tuple[str, str]:
    """Namespace and name of a table by OpenLineage's rules. `account`: of Azure, where `az://` has only the container.

    >>> place_of("/lake/calls/raw_a"), place_of("s3://lake/calls/raw_a")
    (('file', '/lake/calls/raw_a'), ('s3://lake', 'calls/raw_a'))
    >>> place_of("az://lake/calls/raw_a", "acme")
    ('abfss://lake@acme.dfs.core.windows.net', 'calls/raw_a')
    """
    if folder := local_folder(uri):
        return "file", str(folder)
    parts = urlsplit(uri)
    if parts.scheme == "az" and account:
        return f"abfss://{parts.netloc}@{account}.dfs.core.windows.net", parts.path.lstrip("/")
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")


def cluster_of(servers: str) -> str:
    """The namespace of the topics of a cluster, by the first address of `bootstrap.servers`.

    >>> cluster_of("SASL_SSL://b1.example:9093, b2:9093"), cluster_of("b1"), cluster_of("[::1]")
    ('kafka://b1.example:9093', 'kafka://b1:9092', 'kafka://[::1]:9092')
    """
    first = servers.partition(",")[0].strip().rpartition("/")[2]
    return f"kafka://{first}" if ":" in first.rpartition("]")[2] else f"kafka://{first}:{_KAFKA_PORT}"


def _place(dataset: Mapping[str, Any]) -> tuple[str, str]:
    if "topic" in dataset:
        return cluster_of(dataset["servers"]), dataset["topic"]
    return place_of(dataset["table"], store_options().get("azure_storage_account_name"))


def _input(dataset: Mapping[str, Any], checks: list[dict[str, Any]]) -> InputDataset:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import data_quality_assertions_dataset, input_statistics_input_dataset

    namespace, name = _place(dataset)
    facets: dict[str, InputDatasetFacet] = {}
    if dataset["rows"] is not None:
        statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=dataset["rows"])
        facets["inputStatistics"] = statistics
    if checks and name.rpartition("/")[2] == _JUDGED:
        assertions = [_assertion(check) for check in checks]
        facets["dataQualityAssertions"] = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions)
    return InputDataset(namespace, name, facets=_facets(dataset), inputFacets=facets)


def _output(dataset: Mapping[str, Any]) -> OutputDataset:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset

    namespace, name = _place(dataset)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=dataset["rows"])
    facets = {"outputStatistics": statistics} if dataset["rows"] is not None else {}
    return OutputDataset(namespace, name, facets=_facets(dataset), outputFacets=facets)  # type: ignore[arg-type]


def _facets(dataset: Mapping[str, Any]) -> dict[str, DatasetFacet]:
    """What is true of a dataset whether it was read or written: version, columns, and how a table is stored."""
    from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset, storage_dataset

    facets: dict[str, DatasetFacet] = {}
    if dataset["version"] is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(dataset["version"]))
    if columns := dataset.get("columns"):
        fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
    if "table" in dataset:
        facets["storage"] = storage_dataset.StorageDatasetFacet("delta", "parquet")
    return facets


def _assertion(check: Mapping[str, Any]) -> Any:
    from openlineage.client.facet_v2 import data_quality_assertions_dataset

    return data_quality_assertions_dataset.Assertion(
        assertion=check["metric"],
        success=check["passed"],
        severity=_SEVERITY[check["severity"]],
        name=f"batch {check['batch']}: {check['metric']}",
        description=check["sentence"],
        expected=f"{check['least']:g} to {check['most']:g}",
        actual=None if check["observed"] is None else f"{check['observed']:g}",
    )
