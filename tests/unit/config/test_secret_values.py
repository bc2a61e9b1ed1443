"""Secrets are taken out of what is said, however they are spelled there, and nothing else is."""

from __future__ import annotations

import json

import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from include.config.project import REMOTE_VARIABLE
from include.config.secret_values import secret_settings, without_secrets
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.job.run import errors_in_one_line
from spark_jobs.kafka.settings import VARIABLE, kafka_settings
from spark_jobs.quality.pages import write_unjudged
from spark_jobs.spark.session import NoSparkServer, reading_session, server_problem
from tests.helpers.pages import pages_in

PASSWORD = 'p"a\\ss wörd'
KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END PRIVATE KEY-----\n"
SETTINGS = {
    "bootstrap.servers": "b:1",
    "sasl.username": "somebody",
    "sasl.password": PASSWORD,
    "ssl.key.pem": KEY,
    "ssl.key.password": "abc",
}


REGISTRY = {
    "url": "http://r:8081",
    "basic.auth.user.info": "anybody:of the registry",
    "bearer.auth.token": "token-of-the-registry",
    "bearer.auth.client.id": "a-client",
    "bearer.auth.client.secret": "secret-of-the-registry",
    "proxy": "http://u:proxy-pass@p:1",
}


@pytest.fixture(autouse=True)
def logged_in(monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps(SETTINGS))
    monkeypatch.setenv("PAIRING_SCHEMA_REGISTRY", json.dumps(REGISTRY))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("PAIRING_SPARK_REMOTE", "sc://127.0.0.1:1/;token=to-ken")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"refused {PASSWORD}!", "refused …!"),
        (json.dumps({"sasl.password": PASSWORD}), '{"sasl.password": "…"}'),
        (repr({"sasl.password": PASSWORD}), "{'sasl.password': '…'}"),
        ("begin MIIEvQIBADANBgkqhkiG9w0B end", "begin … end"),
        (" ".join(KEY.split()), "…"),
        ("abc abcd abc", "… abcd …"),
        ("wJalrXUtnFEMI and to-ken", "… and …"),
        ("somebody at b:1", "somebody at b:1"),
        ("anybody:of the registry; of the registry", "…; …"),
        ("token-of-the-registry, secret-of-the-registry", "…, …"),
        ("by http://u:proxy-pass@p:1", "by …"),
        ("a-client at http://r:8081", "a-client at http://r:8081"),
    ],
)
def test_hidden(text, left):
    assert without_secrets(text) == left


def test_secrets_of_several_clusters_are_hidden(monkeypatch):
    clusters = {"kafka_default": {"sasl.password": "one-secret"}, "kafka_calls": {"sasl.password": "another-secret"}}
    monkeypatch.setenv(VARIABLE, json.dumps(clusters))
    assert without_secrets("one-secret, another-secret") == "…, …"


def test_nothing_to_hide_in_what_is_no_setting(monkeypatch):
    assert secret_settings({"sasl.password": "", "ssl.key.password": None, "ssl.key.location": "/k.pem"}) == set()
    for text in ("{", "[]", '"x"'):
        monkeypatch.setenv(VARIABLE, text)
        assert without_secrets("x {}") == "x {}"


@pytest.mark.parametrize("kind", [JobProblem, ValueError])
def test_whatever_a_job_ends_with(kind, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PAIRING_OUTCOME", str(tmp_path / "outcome"))
    with pytest.raises(SystemExit), errors_in_one_line():
        raise kind(f"with {PASSWORD} in it")
    told = capsys.readouterr().err + (tmp_path / "outcome").read_text()
    assert "with … in it" in told and "wörd" not in told
    write_unjudged(pages_in(tmp_path), "calls", 1, kind(f"with {PASSWORD} in it"))
    pages = "".join(path.read_text() for path in tmp_path.glob("*.html"))
    assert "with … in it" in pages and "wörd" not in pages


def test_a_server_that_does_not_answer_is_named_without_its_token():
    with pytest.raises(NoSparkServer, match=r"no Spark server answers at sc://127\.0\.0\.1:1 ") as problem:
        reading_session("test", "calls")
    assert "to-ken" not in str(problem.value)


def test_the_token_of_a_server_that_goes_away_is_not_shown(monkeypatch):
    gone = SparkConnectGrpcException(
        'terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "refused (\'a "b"\')"\n\tdebug = "c"'
    )
    monkeypatch.delenv(REMOTE_VARIABLE, raising=False)
    assert server_problem(gone) is None
    monkeypatch.setenv(REMOTE_VARIABLE, "sc://spark:15002/;token=hidden")
    assert str(server_problem(gone)).startswith(
        "the Spark server at sc://spark:15002 went away during the job (refused ('a \"b\"')): start it"
    )
    assert server_problem(SparkConnectGrpcException("StatusCode.INTERNAL")) is None
    assert server_problem(ValueError("StatusCode.UNAVAILABLE")) is None


@pytest.mark.parametrize(
    "setting", ["debug", "security.protocol", "sasl.mechanism", "compression.type", "linger.ms", "acks"]
)
def test_a_password_in_the_wrong_place_is_not_repeated(setting, monkeypatch):
    given = {"bootstrap.servers": "b:1", "security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", setting: "my-secret"}
    monkeypatch.setenv(VARIABLE, json.dumps(given))
    with pytest.raises(NeedsOperator) as refused:
        kafka_settings()
    assert "is refused" in str(refused.value) and "my-secret" not in str(refused.value)
