"""Client settings for each kind of client, made of those of the Airflow connections of a pipeline's clusters."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from functools import cache
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from include.config.pipeline import KAFKA
from include.config.secret_values import without_values
from include.config.tokens import CONNECTION, PROVIDER, NoToken, ProviderRefused, connection_of, with_tokens
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.exactly_once_settings import check_exactly_once

VARIABLE = "PAIRING_KAFKA"
ANSWER_WITHIN_S = 20.0
_ENDPOINT, _NOBODY = "sasl.oauthbearer.token.endpoint.url", "http://127.0.0.1:9"

Settings = dict[str, Any]

# Settings of one kind of client; another kind would log a warning about each.
_CONSUMER_ONLY = """
    group.id auto.offset.reset enable.auto.commit enable.partition.eof session.timeout.ms isolation.level fetch.min.bytes
    fetch.max.bytes fetch.wait.max.ms max.partition.fetch.bytes fetch.message.max.bytes
""".split()
_PRODUCER_ONLY = """
    acks request.required.acks linger.ms queue.buffering.max.ms compression.type compression.codec compression.level
    batch.size batch.num.messages enable.idempotence partitioner transactional.id transaction.timeout.ms
    delivery.timeout.ms message.timeout.ms request.timeout.ms retries message.send.max.retries retry.backoff.ms
    delivery.report.only.error
""".split()
# A new client waits half of this, by default 50 ms, before it asks the broker that it has just reached, and a run has a dozen clients. One that fails to
# connect still tries less and less often, at last once in ten seconds.
_PRESET = {"reconnect.backoff.ms": 20}


class BrokerProblem(JobProblem):
    """The broker cannot be reached or refuses; the text holds its address."""


def kafka_settings(connection: str = KAFKA) -> Settings:
    """The settings of a connection in the environment variable PAIRING_KAFKA; raises NeedsOperator if they cannot be used.

    The variable has those of kafka_default, or, by connection, those of each: `{"kafka_default": {…}, "kafka_calls": {…}}`.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        raise NeedsOperator(
            f'{VARIABLE} is not set: give client settings as JSON, like {{"bootstrap.servers": "127.0.0.1:9092"}}'
        )
    try:
        given = json.loads(text)
    except ValueError as error:
        # The text may hold a password, so it is not repeated.
        raise NeedsOperator(f"{VARIABLE} is not JSON: {error}") from None
    settings = given
    if isinstance(given, dict) and (connection != KAFKA or isinstance(given.get(KAFKA), dict)):
        settings = given.get(connection)
    if not isinstance(settings, dict) or not isinstance(settings.get("bootstrap.servers"), str):
        hint = "" if connection == KAFKA else f'; by hand give {{"{KAFKA}": {{…}}, "{connection}": {{…}}}}'
        raise NeedsOperator(f"{VARIABLE} has no bootstrap.servers; the connection {connection} needs it in its extra{hint}")
    if connection != KAFKA:
        settings |= {CONNECTION: connection}
    _check(json.dumps(settings))
    return settings


@cache
def _check(text: str) -> None:
    """Cached, because each request to the broker begins with kafka_settings."""
    settings = json.loads(text)
    check_exactly_once(settings)
    # Without a connection: librdkafka only checks names and values. For a token it would wait.
    checked = {name: value for name, value in settings.items() if name != PROVIDER}
    if {_ENDPOINT, "sasl.oauthbearer.metadata.authentication.type"} & checked.keys():
        checked[_ENDPOINT] = _NOBODY
    try:
        Producer(producer_settings(checked, "check"))
        Consumer(consumer_settings(checked, "check"))
    except (KafkaException, TypeError, ImportError) as error:
        # What Python's part of the client refuses is no KafkaException.
        text = error.args[0].str() if isinstance(error, KafkaException) else " ".join(str(error).split())
        raise NeedsOperator(
            f"a setting of {connection_of(settings)} is refused by the client: {without_values(settings, text)}"
        ) from None


def address(settings: Settings) -> str:
    return str(settings["bootstrap.servers"])


def consumer_settings(settings: Settings, group: str = "event-pairing.landing") -> Settings:
    """For a consumer that commits only when told and reads committed records only. The default group commits nothing."""
    required = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    return _without(_PRODUCER_ONLY, settings) | required


def admin_settings(settings: Settings) -> Settings:
    return _without((*_CONSUMER_ONLY, *_PRODUCER_ONLY), settings)


def producer_settings(settings: Settings, transactional_id: str) -> Settings:
    """For a transactional producer with Java's default partitioner."""
    # A large batch is one transaction. A quarter of an hour is the longest timeout that a broker allows by default.
    preset = {"linger.ms": 20, "compression.type": "lz4", "transaction.timeout.ms": 900_000}
    required = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}
    return _without(_CONSUMER_ONLY, preset | settings) | required | {"transactional.id": transactional_id}


def delivery_timeout_s(settings: Settings) -> float:
    """Seconds without progress after which the publisher stops waiting: a little more than the client's own timeout, if one is set."""
    given = settings.get("delivery.timeout.ms", settings.get("message.timeout.ms"))
    return ANSWER_WITHIN_S if given is None else float(given) / 1000 + 1


def _without(others: Collection[str], settings: Settings) -> Settings:
    """The settings but for those of other clients, with tokens. Raises NeedsOperator and JobProblem where a token cannot be had.

    Silent: librdkafka would log every failed connection, which the job reports once.
    """
    logger = logging.getLogger("librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    try:
        return with_tokens(_PRESET | {name: value for name, value in settings.items() if name not in others}) | {
            "logger": logger
        }
    except NoToken as error:
        # By these names the driver recognises them in what a worker raised.
        raise (NeedsOperator if isinstance(error, ProviderRefused) else JobProblem)(str(error)) from None
