"""librdkafka's settings in the words of the Java client that reads the input topics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_jobs.problems import NeedsOperator

# librdkafka's name -> the Java client's.
_NAMES = {
    "bootstrap.servers": "bootstrap.servers",
    "security.protocol": "security.protocol",
    "client.id": "client.id",
    "fetch.min.bytes": "fetch.min.bytes",
    "fetch.max.bytes": "fetch.max.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
_STORE = ("ssl.keystore.location", "ssl.keystore.password")


def java_client(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a Java consumer; raises NeedsOperator where a file that they name cannot be used."""
    java = {called: str(settings[name]) for name, called in _NAMES.items() if name in settings}
    if "security.protocol" in java:
        java["security.protocol"] = java["security.protocol"].upper()
    if "ssl.endpoint.identification.algorithm" in settings:
        algorithm = str(settings["ssl.endpoint.identification.algorithm"])
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return java | _login(settings) | _authority(settings) | _certificate(settings)


def _login(settings: Mapping[str, Any]) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    if not mechanism:
        return {}
    module = "scram.ScramLoginModule" if str(mechanism).startswith("SCRAM") else "plain.PlainLoginModule"
    user, password = (_jaas_quoted(settings.get(name, "")) for name in ("sasl.username", "sasl.password"))
    line = f"org.apache.kafka.common.security.{module} required username={user} password={password};"
    return {"sasl.mechanism": str(mechanism), "sasl.jaas.config": line}


def _authority(settings: Mapping[str, Any]) -> dict[str, str]:
    if "ssl.ca.pem" in settings:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": str(settings["ssl.ca.pem"])}
    if "ssl.ca.location" in settings:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(settings["ssl.ca.location"])}
    return {}


def _certificate(settings: Mapping[str, Any]) -> dict[str, str]:
    """The client's own certificate, for mutual TLS."""
    if "ssl.keystore.location" in settings:
        return {"ssl.keystore.type": "PKCS12"} | {name: str(settings[name]) for name in _STORE if name in settings}
    certificate, key = (_pem(settings, what) for what in ("certificate", "key"))
    if not certificate:
        return {}
    if "PRIVATE KEY" in key and not any(f"-----BEGIN {kind}PRIVATE KEY-----" in key for kind in ("", "ENCRYPTED ")):
        raise NeedsOperator(
            "setting ssl.key of kafka_default is refused: the Java client that reads the input topics takes a key in PKCS#8 only "
            "(BEGIN PRIVATE KEY); convert it with openssl pkcs8 -topk8"
        )
    java = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
    return java | ({"ssl.key.password": str(settings["ssl.key.password"])} if "ssl.key.password" in settings else {})


def _pem(settings: Mapping[str, Any], what: str) -> str:
    """The text itself, from the setting or from the file that it names: executors need no file then."""
    if f"ssl.{what}.pem" in settings:
        return str(settings[f"ssl.{what}.pem"])
    path = settings.get(f"ssl.{what}.location")
    if path is None:
        return ""
    try:
        return Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise NeedsOperator(f"setting ssl.{what}.location of kafka_default cannot be read: {path} ({reason})") from None


def _jaas_quoted(text: object) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
