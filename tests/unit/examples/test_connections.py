"""The connections, as Airflow's own class, the Spark provider, librdkafka, the object-store client and the project read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from airflow.models.connection import Connection
from airflow.providers.apache.spark.hooks import spark_submit
from confluent_kafka import Consumer, Producer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from include.airflow.connections import options_of
from include.config.store import Store
from spark_jobs.kafka.settings import VARIABLE, consumer_settings, kafka_settings, producer_settings
from tests.helpers.example_files import EXAMPLES, connection, helm_values

FILES = sorted(path.stem for path in (EXAMPLES / "connections").glob("*.json"))


def as_airflow_reads_it(name: str) -> Connection:
    return Connection.from_json(json.dumps(connection(name)), conn_id=name.partition("-")[0])


@pytest.mark.parametrize("name", FILES)
def test_each_says_what_was_not_run_and_has_fields_that_airflow_knows(name) -> None:
    text = json.loads((EXAMPLES / "connections" / f"{name}.json").read_text())
    assert ("Checked by tests" in text["description"] and " not " in f" {text['description']} ") or "only" in text[
        "description"
    ]
    known = {"conn_type", "description", "login", "password", "host", "port", "schema", "extra"}
    assert set(text) <= known
    assert as_airflow_reads_it(name).extra_dejson == text.get("extra", {})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "spark_default-kubernetes",
            ["--master", "k8s://https://kubernetes.default.svc:443", "--conf", "spark.kubernetes.namespace=event-pairing", "--deploy-mode", "client"],
        ),
        ("spark_default-yarn", ["--master", "yarn", "--deploy-mode", "client", "--queue", "pairing"]),
    ],
)  # fmt: skip
def test_spark_submit_is_called_as_meant(name, options, monkeypatch) -> None:
    # The lock is without the Kubernetes client, which docs/examples/image adds; the hook only asks whether it is there.
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    monkeypatch.setattr(spark_submit.SparkSubmitHook, "get_connection", lambda *_: as_airflow_reads_it(name))
    command = spark_submit.SparkSubmitHook(conn_id="spark_default")._build_spark_submit_command("job.py")
    assert command[0] == "spark-submit" and command[-1] == "job.py"
    given = command[1:-1]
    pairs, wanted = ([list(each) for each in zip(words[::2], words[1::2], strict=True)] for words in (given, options))
    assert [each for each in wanted if each not in pairs] == []
    assert [each for each in pairs if each not in wanted] == [["--name", "default-name"]], "nothing else, and no secret"


def test_a_task_finds_the_spark_server(monkeypatch) -> None:
    from include.airflow import operators

    for kind in (operators.BaseHook, operators.SparkConnectHook):
        monkeypatch.setattr(kind, "get_connection", lambda *_: as_airflow_reads_it("spark_default-connect"))
    assert operators._spark_server("spark_default") == "sc://spark-connect:15002/"
    monkeypatch.setattr(operators.BaseHook, "get_connection", lambda *_: as_airflow_reads_it("spark_default-yarn"))
    assert operators._spark_server("spark_default") is None


def certificate() -> str:
    """A certificate authority's, made now."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    signed = made.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def test_kafka_s_clients_take_the_settings(monkeypatch) -> None:
    extra = connection("kafka_default")["extra"]
    assert extra["ssl.ca.pem"].startswith("-----BEGIN CERTIFICATE-----")
    monkeypatch.setenv(VARIABLE, json.dumps(extra | {"ssl.ca.pem": certificate(), "bootstrap.servers": "127.0.0.1:1"}))
    # The project's own refusals, then librdkafka's.
    settings = kafka_settings()
    Consumer(consumer_settings(settings)).close()
    Producer(producer_settings(settings, "calls.publisher-0"))


@pytest.mark.parametrize(
    ("name", "uri", "options"),
    [
        ("s3", "s3://lake/x", {"aws_access_key_id": "ACCESS-KEY-ID", "aws_secret_access_key": "SECRET-ACCESS-KEY", "aws_region": "eu-central-1"}),
        (
            "azure",
            "abfss://container@account.dfs.core.windows.net/x",
            {"azure_client_id": "CLIENT-ID", "azure_client_secret": "CLIENT-SECRET", "azure_tenant_id": "TENANT-ID",
             "azure_storage_account_name": "account"},
        ),
        ("google", "gs://lake/x", {"google_service_account": "/etc/google/key.json"}),
    ],
)  # fmt: skip
def test_the_store_s_client_takes_the_options(name, uri, options) -> None:
    found = options_of(as_airflow_reads_it(f"warehouse_default-{name}"))
    assert found == options
    if name != "google":
        # Google's client reads the file of the key, which is not here.
        assert Store(uri, found).client


def test_the_chart_s_values_have_the_same_connection() -> None:
    given = {each["name"]: each["value"] for each in helm_values()["env"]}
    assert json.loads(given["AIRFLOW_CONN_SPARK_DEFAULT"]) == connection("spark_default-connect")
