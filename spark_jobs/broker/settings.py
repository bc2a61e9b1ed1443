"""Client settings, as the Airflow connection gave them (librdkafka names), for librdkafka and for Spark's Java client."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from spark_jobs.problems import JobProblem, NeedsOperator

VARIABLE = "PAIRING_KAFKA"
ANSWER_WITHIN_S = 20.0

Settings = dict[str, Any]

# Of one kind of client only: the other kind would complain about them in the log.
_CONSUMER_ONLY = ("group.id", "auto.offset.reset", "enable.auto.commit", "session.timeout.ms", "isolation.level")
_PRODUCER_ONLY = (
    "acks",
    "linger.ms",
    "compression.type",
    "batch.size",
    "enable.idempotence",
    "partitioner",
    "transactional.id",
)
_SAME_NAME_IN_JAVA = ("bootstrap.servers", "security.protocol", "ssl.endpoint.identification.algorithm", "client.id")


class BrokerProblem(JobProblem):
    """The broker cannot be reached or refuses; the text holds its address."""


def kafka_settings() -> Settings:
    """The settings in the environment variable PAIRING_KAFKA; raises NeedsOperator if it cannot be used."""
    text = os.environ.get(VARIABLE)
    if not text:
        raise NeedsOperator(
            f'{VARIABLE} is not set: give client settings as JSON, like {{"bootstrap.servers": "127.0.0.1:9092"}}'
        )
    try:
        settings = json.loads(text)
    except ValueError as error:
        # The text may hold a password, so it is not repeated.
        raise NeedsOperator(f"{VARIABLE} is not JSON: {error}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("bootstrap.servers"), str):
        raise NeedsOperator(f"{VARIABLE} has no bootstrap.servers; the connection kafka_default needs it in its extra")
    return settings


def address(settings: Settings) -> str:
    """Where the brokers are, for messages."""
    return str(settings["bootstrap.servers"])


def consumer_settings(settings: Settings, group: str) -> Settings:
    """For a consumer or admin client that commits nothing by itself and sees committed records only."""
    mine = {name: value for name, value in settings.items() if name not in _PRODUCER_ONLY}
    return mine | {
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "logger": _quiet_logger(),
    }


def admin_settings(settings: Settings) -> Settings:
    """For an admin client."""
    only = (*_CONSUMER_ONLY, *_PRODUCER_ONLY)
    return {name: value for name, value in settings.items() if name not in only} | {"logger": _quiet_logger()}


def producer_settings(settings: Settings, transactional_id: str) -> Settings:
    """For a transactional producer that places keys as Java's default partitioner does."""
    mine = {name: value for name, value in settings.items() if name not in _CONSUMER_ONLY}
    required = {
        "transactional.id": transactional_id,
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "logger": _quiet_logger(),
    }
    # Large backlogs are one transaction a batch; a quarter of an hour is the most a broker grants by default.
    return {"linger.ms": 20, "compression.type": "lz4", "transaction.timeout.ms": 900_000} | mine | required


def java_settings(settings: Settings) -> dict[str, str]:
    """Options of Spark's Kafka source, `kafka.` in front."""
    java = {name: str(settings[name]) for name in _SAME_NAME_IN_JAVA if name in settings}
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    if mechanism:
        java["sasl.mechanism"] = str(mechanism)
        login = "scram.ScramLoginModule" if str(mechanism).startswith("SCRAM") else "plain.PlainLoginModule"
        user, password = (_jaas_quoted(settings.get(name, "")) for name in ("sasl.username", "sasl.password"))
        java["sasl.jaas.config"] = f"org.apache.kafka.common.security.{login} required username={user} password={password};"
    if "ssl.ca.location" in settings:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(settings["ssl.ca.location"])}
    return {f"kafka.{name}": value for name, value in java.items()} | {"kafka.isolation.level": "read_committed"}


def _jaas_quoted(text: object) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _quiet_logger() -> logging.Logger:
    """librdkafka repeats every failed connection on standard error; the job says it once, in its own message."""
    logger = logging.getLogger("librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
