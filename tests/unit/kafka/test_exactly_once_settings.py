"""Settings that would break the promise are refused by name; the others pass."""

import json
import re
import socket

import pytest

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.exactly_once_settings import check_exactly_once
from spark_jobs.kafka.settings import VARIABLE, kafka_settings

BROKER = {"bootstrap.servers": "127.0.0.1:1"}
TOKENS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OIDC = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": "mine"}
ENDPOINT = {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:9/token"}

REFUSED = [
    ({"acks": 1}, "acks=1", "lost with a broker"),
    ({"acks": "0"}, "acks=0", "lost with a broker"),
    ({"request.required.acks": "1"}, "request.required.acks=1", "lost with a broker"),
    ({"enable.idempotence": False}, "enable.idempotence=False", "double"),
    ({"enable.idempotence": "false"}, "enable.idempotence=false", "double"),
    ({"max.in.flight": 6}, "max.in.flight=6", "more than 5"),
    ({"max.in.flight.requests.per.connection": "100"}, "max.in.flight.requests.per.connection=100", "more than 5"),
    ({"retries": 0}, "retries=0", "without repeats"),
    ({"message.send.max.retries": "0"}, "message.send.max.retries=0", "without repeats"),
    ({"partitioner": "consistent_random"}, "partitioner=consistent_random", "other partitions"),
    ({"isolation.level": "read_uncommitted"}, "isolation.level=read_uncommitted", "aborted transactions"),
    ({"enable.auto.commit": True}, "enable.auto.commit=True", "without its records"),
    ({"delivery.report.only.error": "true"}, "delivery.report.only.error=true", "acknowledged"),
    ({"delivery.timeout.ms": 30_000, "linger.ms": 1}, "delivery.timeout.ms=30000", "linger.ms + request.timeout.ms"),
    ({"message.timeout.ms": 999, "request.timeout.ms": 1000}, "message.timeout.ms=999", "less than"),
    (
        {"delivery.timeout.ms": 60_001, "transaction.timeout.ms": 60_000},
        "delivery.timeout.ms=60001",
        "more than transaction",
    ),
    ({"security.protocol": "sasl_ssl"}, "security.protocol=sasl_ssl", "no sasl.mechanism"),
    ({"enable.ssl.certificate.verification": False}, "enable.ssl.certificate.verification=False", "would get the login"),
    ({"ssl.certificate.location": "c.pem"}, "ssl.certificate.location=…", "ssl.key.location"),
    ({"ssl.key.pem": "secret"}, "ssl.key.pem=…", "ssl.certificate.location"),
    (TOKENS, "sasl.mechanism=OAUTHBEARER", "nothing beside it says where its tokens come from"),
    ({"token_provider": "a.secret"}, "token_provider=…", "it needs a security.protocol with SASL"),
    (
        TOKENS | {"security.protocol": "ssl", "token_provider": "a.b"},
        "token_provider=…",
        "it needs a security.protocol with SASL",
    ),
    (TOKENS | {"sasl.mechanism": "PLAIN", "token_provider": "a.b"}, "token_provider=…", "sasl.mechanism=OAUTHBEARER"),
    (
        TOKENS | {"sasl.oauthbearer.method": "oidc", "token_provider": "a.b"},
        "token_provider=…",
        "and no sasl.oauthbearer.method",
    ),
]
ALLOWED = [
    {"acks": "all"}, {"acks": -1}, {"acks": "ALL"}, {"enable.idempotence": "True"}, {"max.in.flight": 5}, {"retries": 1},
    {"partitioner": "murmur2_random"}, {"isolation.level": "read_committed"}, {"enable.auto.commit": "false"},
    {"delivery.timeout.ms": 30_005, "linger.ms": 5}, {"delivery.timeout.ms": 60_000, "transaction.timeout.ms": 60_000},
    {"fetch.max.bytes": 70_000_000, "compression.type": "zstd", "batch.size": 100_000, "group.id": "mine"},
    {"sasl.mechanism": "PLAIN"}, TOKENS | OIDC | ENDPOINT, TOKENS | {"token_provider": "not.imported.here"},
    TOKENS | {"enable.sasl.oauthbearer.unsecure.jwt": True},
]  # fmt: skip


@pytest.mark.parametrize(("settings", "named", "consequence"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_refused(settings, named, consequence, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps(BROKER | settings))
    with pytest.raises(
        NeedsOperator, match=f"setting {named} of kafka_default is refused: .*{re.escape(consequence)}"
    ) as refusal:
        kafka_settings()
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("settings", ALLOWED, ids=str)
def test_allowed(settings, monkeypatch):
    check_exactly_once(settings)
    monkeypatch.setenv(VARIABLE, json.dumps(BROKER | settings))
    assert kafka_settings() == BROKER | settings


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"linger.mss": 5}, "linger.mss"),
        ({"batch.size": "much"}, "batch.size"),
        ({"compression.type": "rar"}, "compression.codec"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"}, "No provider for SASL mechanism …"),
        (TOKENS | OIDC, "`sasl.oauthbearer.token.endpoint.url` is mandatory"),
        # By Python's part of the client.
        ({"oauth_cb": "my.function"}, "expected oauth_cb property as a callable function"),
        (
            TOKENS
            | OIDC
            | ENDPOINT
            | {"sasl.oauthbearer.metadata.authentication.type": "aws_iam", "sasl.oauthbearer.config": "region=r"},
            "confluent-kafka.oauthbearer-aws",
        ),
    ],
    ids=str,
)
def test_what_the_client_does_not_know_is_said_in_its_words(settings, name, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps(BROKER | settings))
    with pytest.raises(NeedsOperator, match=f"a setting of kafka_default is refused by the client: .*{name}"):
        kafka_settings()


def test_nobody_is_asked_for_a_token_to_check_settings(monkeypatch):
    """The client would wait for 20 seconds where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = {"sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{silent.getsockname()[1]}/token"}
        monkeypatch.setenv(VARIABLE, json.dumps(BROKER | TOKENS | OIDC | endpoint | {"client.id": "asked-once"}))
        kafka_settings()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
