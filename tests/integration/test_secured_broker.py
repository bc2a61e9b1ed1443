"""A broker with TLS and logins: every way in that the settings allow goes the whole way, and a wrong one is said in a line."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from include.local_broker import LocalBroker
from include.local_process import free_port
from spark_jobs import land_events, pair_events, publish_compounds
from spark_jobs.broker import offsets
from spark_jobs.broker.settings import VARIABLE, BrokerProblem, kafka_settings
from spark_jobs.problems import NeedsOperator
from tests.integration.reading import consume, table_rows

pytestmark = pytest.mark.integration

USER, PASSWORD = "pairing", 'se"cret\\ word'
LISTENERS = {"LOGIN": "SASL_SSL", "MUTUAL": "SSL"}


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> None:
    subject = ["-subj", f"/CN={name}", "-days", "2", "-nodes", "-newkey", "rsa:2048"]
    openssl(folder, "req", "-x509", *subject, "-keyout", f"{name}.key", "-out", f"{name}.pem")


def make_certificate(folder: Path, name: str) -> None:
    """`name`.pem and `name`.key for 127.0.0.1, signed by the authority."""
    openssl(
        folder,
        "req",
        "-subj",
        f"/CN={name}",
        "-nodes",
        "-newkey",
        "rsa:2048",
        "-keyout",
        f"{name}.key",
        "-out",
        f"{name}.csr",
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    signed_by = ["-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem")


class SecuredBroker(LocalBroker):
    """Listens without protection, too: the test itself goes there, the jobs do not know of it."""

    def __init__(self, folder: Path, certificates: Path) -> None:
        super().__init__(folder, free_port())
        self.certificates = certificates
        self.ports = {name: free_port() for name in LISTENERS}

    def _configure(self) -> None:
        super()._configure()
        plain = f"listeners=PLAINTEXT://{self.bootstrap},"
        secured = "".join(f"{name}://127.0.0.1:{port}," for name, port in self.ports.items())
        protocols = {**LISTENERS, "PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        login = "org.apache.kafka.common.security"
        quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        more = {
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.login.plain.sasl.jaas.config": f'{login}.plain.PlainLoginModule required user_{USER}="{quoted}";',
            "listener.name.login.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
            "listener.name.mutual.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates / "both.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates / "authority.pem",
        }
        settings = self.folder / "server.properties"
        # In such a file a backslash begins an escape.
        lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in more.items()]
        settings.write_text(settings.read_text().replace(plain, plain + secured) + "".join(lines))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("authority", "stranger"):
        make_authority(folder, name)
    for name in ("server", "client"):
        make_certificate(folder, name)
    (folder / "both.pem").write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return folder


@pytest.fixture(scope="module")
def broker(certificates, tmp_path_factory):
    """Instead of the one of all other tests."""
    with SecuredBroker(tmp_path_factory.mktemp("secured"), certificates) as running:
        user = UserScramCredentialUpsertion(USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.alter_user_scram_credentials([user])[USER].result(timeout=20)
        # It is written then; whoever asks for logins may learn of it a moment later. Until then the client tries again.
        AdminClient(scram_login(running, certificates) | {"log_level": 0}).list_topics(timeout=20)
        yield running


def login(broker: SecuredBroker) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.ports['LOGIN']}",
        "security.protocol": "SASL_SSL",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


def scram_login(broker: SecuredBroker, certificates: Path) -> dict[str, str]:
    return login(broker) | {"sasl.mechanism": "SCRAM-SHA-512", "ssl.ca.location": str(certificates / "authority.pem")}


@pytest.fixture
def ways_in(broker, certificates):
    """Name -> the extra of kafka_default."""
    return {
        "scram": scram_login(broker, certificates),
        "plain": login(broker) | {"sasl.mechanisms": "PLAIN", "ssl.ca.pem": (certificates / "authority.pem").read_text()},
        "certificate": {
            "bootstrap.servers": f"127.0.0.1:{broker.ports['MUTUAL']}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(certificates / "authority.pem"),
            "ssl.certificate.location": str(certificates / "client.pem"),
            "ssl.key.location": str(certificates / "client.key"),
        },
    }


@pytest.fixture
def connect(monkeypatch, tmp_path):
    """connect(extra): what Airflow's operator does with the extra of the connection."""

    def as_the_operator_does(extra):
        monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
        from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook

        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        hook = KafkaBaseHook(kafka_config_id="kafka_default")
        monkeypatch.setenv(VARIABLE, json.dumps(hook.get_connection("kafka_default").extra_dejson))

    return as_the_operator_does


@pytest.mark.parametrize(
    "way", ["scram", pytest.param("plain", marks=pytest.mark.long), pytest.param("certificate", marks=pytest.mark.long)]
)
def test_the_whole_way_over_a_secured_connection(way, ways_in, connect, warehouse, pipeline, send, broker):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(5):
        send("a", f"u{number}", ago, number)
        send("m", f"u{number}", ago + 50, number)
    connect(ways_in[way])
    assert kafka_settings() == ways_in[way]
    land_events.main(warehouse, 1_000, ())
    pair_events.main(warehouse)
    assert publish_compounds.main(warehouse)["sent"] == 5
    published = consume(broker.bootstrap, pipeline.output_topic)
    assert sorted(m["pair-id"] for m in published) == sorted(
        row["pair_id"] for row in table_rows(warehouse, "compound_events")
    )
    assert all(m["value"]["analytics"] == m["value"]["metrics"] for m in published)


WRONG = {
    "password": ("scram", {"sasl.password": "other"}, "uthentication failed"),
    "password of PLAIN": ("plain", {"sasl.password": "other"}, "uthentication failed"),
    "authority": ("scram", {"ssl.ca.location": "stranger.pem"}, "certificate verify failed"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_setting_is_said_in_a_line(wrong, ways_in, connect, warehouse, certificates, monkeypatch):
    way, changes, reason = WRONG[wrong]
    if "ssl.ca.location" in changes:
        changes = {"ssl.ca.location": str(certificates / changes["ssl.ca.location"])}
    connect(ways_in[way] | changes)
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 3.0)
    with pytest.raises(NeedsOperator) as refused:
        land_events.main(warehouse, 1_000, ())
    assert reason in str(refused.value) and PASSWORD not in str(refused.value) and "\n" not in str(refused.value)
    assert table_rows(warehouse, "batch_ledger") == []


def test_the_wrong_protocol_is_hinted_at(ways_in, connect, warehouse, monkeypatch):
    connect(ways_in["scram"] | {"security.protocol": "SASL_PLAINTEXT"})
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 3.0)
    with pytest.raises(
        BrokerProblem,
        match=r"no answer from Kafka at .*are bootstrap\.servers and security\.protocol of kafka_default right",
    ):
        land_events.main(warehouse, 1_000, ())


def test_an_authority_that_is_not_there_is_named(ways_in, connect, warehouse, certificates):
    connect(ways_in["scram"] | {"ssl.ca.location": str(certificates / "nowhere.pem")})
    with pytest.raises(NeedsOperator, match=r"refused by the client: .*ssl\.ca\.location failed"):
        land_events.main(warehouse, 1_000, ())
