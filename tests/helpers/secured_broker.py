"""A broker with TLS, logins and rights: who may do what there is what the test grants, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from include.local.broker import LocalBroker
from include.local.process import free_port

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
    """Listens without protection, too: the test itself goes there and may do everything, the jobs do not know of it."""

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
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates / "both.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates / "authority.pem",
        }
        settings = self.folder / "server.properties"
        # In such a file a backslash begins an escape.
        lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in more.items()]
        settings.write_text(settings.read_text().replace(plain, plain + secured) + "".join(lines))


def make_certificates(folder: Path) -> Path:
    """Two authorities, and what the first has signed, in the folder."""
    for name in ("authority", "stranger"):
        make_authority(folder, name)
    for name in ("server", "client"):
        make_certificate(folder, name)
    (folder / "both.pem").write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return folder


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates, tmp_path_factory):
    """Instead of the one of all other tests."""
    yield from running_broker(certificates, tmp_path_factory)


def running_broker(certificates, tmp_path_factory):
    """The broker, where the user has PASSWORD as it is then."""
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
