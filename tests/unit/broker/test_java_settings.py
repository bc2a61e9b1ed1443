"""What the Java client that reads the input topics is told."""

import pytest

from spark_jobs.broker.java_settings import java_client
from spark_jobs.problems import NeedsOperator

KEY = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("settings", "java"),
    [
        ({"ssl.ca.location": "/ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}),
        ({"security.protocol": "ssl"}, {"security.protocol": "SSL"}),
        ({"ssl.ca.pem": "text"}, {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "text"}),
        ({"ssl.endpoint.identification.algorithm": "none"}, {"ssl.endpoint.identification.algorithm": ""}),
        ({"ssl.endpoint.identification.algorithm": "https"}, {"ssl.endpoint.identification.algorithm": "https"}),
        (
            {"ssl.certificate.pem": "cert", "ssl.key.pem": KEY, "ssl.key.password": "p"},
            {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "cert", "ssl.keystore.key": KEY, "ssl.key.password": "p"},
        ),
        (
            {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "p"},
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "p"},
        ),
        ({"fetch.wait.max.ms": 10, "fetch.message.max.bytes": 5}, {"fetch.max.wait.ms": "10", "max.partition.fetch.bytes": "5"}),
        ({"acks": "all", "linger.ms": 5, "group.id": "g"}, {}),
    ],
    ids=str,
)  # fmt: skip
def test_translated(settings, java):
    assert java_client(settings) == java


def test_a_certificate_in_files_travels_as_text(tmp_path):
    (tmp_path / "cert.pem").write_text("cert")
    (tmp_path / "key.pem").write_text(KEY)
    settings = {"ssl.certificate.location": str(tmp_path / "cert.pem"), "ssl.key.location": str(tmp_path / "key.pem")}
    java = java_client(settings)
    assert (java["ssl.keystore.certificate.chain"], java["ssl.keystore.key"]) == ("cert", KEY)
    with pytest.raises(NeedsOperator, match=r"ssl\.key\.location of kafka_default cannot be read: .*nowhere"):
        java_client(settings | {"ssl.key.location": str(tmp_path / "nowhere")})


def test_a_key_that_java_cannot_read_is_refused():
    with pytest.raises(NeedsOperator, match=r"openssl pkcs8 -topk8"):
        java_client({"ssl.certificate.pem": "cert", "ssl.key.pem": KEY.replace("PRIVATE", "RSA PRIVATE")})
