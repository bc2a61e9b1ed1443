"""The logins in docs/kafka.md work with the librdkafka of the lock: a client takes each example, and knows each setting that the text names."""

from __future__ import annotations

import json
import re
import sys
import time
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer

from include.config.tokens import PROVIDER, with_tokens
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import VARIABLE, admin_settings, kafka_settings
from tests.helpers.secured_broker import make_authority
from tests.helpers.timeline import ROOT

PAGE = (ROOT / "docs" / "kafka.md").read_text()
BLOCKS = re.findall(r"^```json( kerberos)?\n(.*?)^```$", PAGE, re.M | re.S)
EXAMPLES = [json.loads(block) for kind, block in BLOCKS if not kind]
KERBEROS = [json.loads(block) for kind, block in BLOCKS if kind]
# Settings of brokers and topics, of the project, and hosts.
NOT_THE_CLIENTS = re.compile(
    r"(min\.insync|unclean|quota|replica|connections\.max|transaction\.max|max_records|run_deadline|quality|schedule)|\.(lock|conf|md|com)$"
)


def kind(example):
    return example.get("sasl.oauthbearer.method") or example.get("sasl.mechanism") or example["security.protocol"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What stands for the files of the examples: an authority, and a certificate with its key."""
    folder = tmp_path_factory.mktemp("files")
    make_authority(folder, "any")
    return lambda path: str(folder / ("any.key" if path.endswith(".key") else "any.pem"))


@pytest.fixture
def given(files, monkeypatch):
    """given(example): as the connection's extra, with files that are there."""

    def give(example):
        extra = {
            name: files(value) if str(value).startswith("/etc/event-pairing/") else value for name, value in example.items()
        }
        monkeypatch.setenv(VARIABLE, json.dumps(extra))
        return extra

    return give


@pytest.mark.parametrize("example", EXAMPLES, ids=kind)
def test_a_client_takes_the_example(example, given):
    extra = given(example)
    assert kafka_settings() == extra
    # A client with the example's own endpoint would ask it, and one with a provider wait for the first token.
    offline = {name: value for name, value in extra.items() if name != PROVIDER}
    Producer(admin_settings(offline | {name: "http://127.0.0.1:9" for name in offline if name.endswith("endpoint.url")}))


def test_there_is_an_example_of_each_way():
    assert [kind(example) for example in EXAMPLES] == ["SCRAM-SHA-512", "SSL", "oidc", "OAUTHBEARER"]
    assert [kind(example) for example in KERBEROS] == ["GSSAPI"]


def test_kerberos_is_all_that_the_wheel_lacks_for_its_example(given):
    (example,) = KERBEROS
    given(example)
    with pytest.raises(NeedsOperator, match="No provider for SASL mechanism"):
        kafka_settings()
    # The page says how to see it, and which version to build.
    assert f"confluent-kafka=={confluent_kafka.version()}`" in PAGE
    with pytest.raises(KafkaException, match="libsasl2 not available at build time"):
        Producer({"builtin.features": "sasl_gssapi"})
    known = {name: value for name, value in example.items() if name.startswith("sasl.kerberos")}
    Producer(known | {"bootstrap.servers": "b:1"})


def test_the_function_for_amazon_returns_what_a_client_takes(monkeypatch, tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (example,) = (example for example in EXAMPLES if PROVIDER in example)
    asked = []

    def generate_auth_token(region):
        asked.append(region)
        # As the package has it: milliseconds, a quarter of an hour ahead.
        return "signed", int(time.time() * 1000) + 900_000

    signer = SimpleNamespace(MSKAuthTokenProvider=SimpleNamespace(generate_auth_token=generate_auth_token))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    module, _, _ = example[PROVIDER].rpartition(".")
    file = tmp_path / (module.replace(".", "/") + ".py")
    file.parent.mkdir(parents=True)
    file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    token, expiry = with_tokens(example)["oauth_cb"]("")
    assert (token, asked) == ("signed", [example["sasl.oauthbearer.config"]])
    assert 890 < expiry - time.time() <= 900


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_]+(?:\.[a-z0-9_]+)+)`", PAGE))))
def test_the_client_knows_every_setting_that_the_page_names(name):
    if NOT_THE_CLIENTS.search(name):
        return
    with pytest.raises(KafkaException) as refused:
        Producer({name: "1", "no.such.setting": "1"})
    assert f'No such configuration property: "{name}"' not in str(refused.value)
