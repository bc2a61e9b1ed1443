"""Refuses client settings that would break exactly-once publishing, before anything is read or sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from include.config.secret_values import HIDDEN
from include.config.tokens import PROVIDER, connection_of
from spark_jobs.faults.problems import NeedsOperator

# Values that belong to these settings. Any other value is not repeated, because it may be a password in the wrong place.
_SAYABLE = re.compile(
    r"-?\d{1,9}|true|false|read_\w+|sasl_(ssl|plaintext)|(consistent|fnv1a)(_random)?|random|oauthbearer", re.IGNORECASE
)
_DELIVERY = ("delivery.timeout.ms", "message.timeout.ms")


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


def _number(is_fine: Callable[[int], bool]) -> Callable[[str], bool]:
    # librdkafka refuses what is not a number.
    return lambda value: not value.lstrip("-").isdigit() or is_fine(int(value))


# All names of a setting, which values are fine, and the consequence of any other.
_RULES: tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...] = (
    (("acks", "request.required.acks"), _one_of("all", "-1"),
     "a record that not all replicas have can be lost with a broker, while the position says that it was sent"),
    (("enable.idempotence",), _one_of("true"), "a request that is repeated would double its records"),
    (("max.in.flight", "max.in.flight.requests.per.connection"), _number(lambda requests: 1 <= requests <= 5),
     "with more than 5 requests under way the broker cannot tell a repeated one from a new one"),
    (("retries", "message.send.max.retries"), _number(lambda retries: retries > 0),
     "without repeats the first broker that moves ends the publication"),
    (("partitioner",), _one_of("murmur2_random", "murmur2"),
     "compounds would be in other partitions than a Java producer and the positions put them"),
    (("isolation.level",), _one_of("read_committed"), "records of aborted transactions would be paired"),
    (("enable.auto.commit",), _one_of("false"), "a position would move without its records"),
    (("delivery.report.only.error",), _one_of("false"), "the acknowledged records could not be counted"),
    (("enable.ssl.certificate.verification",), _one_of("true"),
     "a server in the broker's place would get the login; set the right certificate authority instead"),
)  # fmt: skip


def check_exactly_once(settings: Mapping[str, Any]) -> None:
    """Raises NeedsOperator with the setting's name and its consequence."""
    for names, is_fine, consequence in _RULES:
        for name in names:
            if name in settings and not is_fine(_text(settings[name])):
                raise _refused(settings, name, settings[name], consequence)
    _check_times(settings)
    _check_login(settings)


def _check_times(settings: Mapping[str, Any]) -> None:
    delivery = _milliseconds(settings, *_DELIVERY)
    request = _milliseconds(settings, "request.timeout.ms") or 30_000  # librdkafka's default
    linger = _milliseconds(settings, "linger.ms", "queue.buffering.max.ms") or 0
    transaction = _milliseconds(settings, "transaction.timeout.ms")
    consequence = ""
    if delivery is not None and delivery < linger + request:
        consequence = (
            f"it is less than linger.ms + request.timeout.ms ({linger:.0f} + {request:.0f}), so a record would be given up before the "
            "broker has had time to answer"
        )
    elif delivery is not None and transaction is not None and delivery > transaction:
        consequence = (
            f"it is more than transaction.timeout.ms ({transaction:.0f}), so the broker would end a transaction with records "
            "under way"
        )
    if consequence:
        raise _refused(settings, next(name for name in _DELIVERY if name in settings), f"{delivery:.0f}", consequence)


def _check_login(settings: Mapping[str, Any]) -> None:
    """A login without a mechanism would mean Kerberos; a token needs a source, a certificate its key."""
    protocol = str(settings.get("security.protocol", ""))
    mechanism = str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))).upper()
    if protocol.upper().startswith("SASL") and not mechanism:
        raise _refused(
            settings,
            "security.protocol",
            protocol,
            "there is no sasl.mechanism beside it (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER)",
        )
    _check_source_of_tokens(settings, mechanism == "OAUTHBEARER" and protocol.upper().startswith("SASL"))
    for given, missing in (("certificate", "key"), ("key", "certificate")):
        places = [f"ssl.{given}.{form}" for form in ("location", "pem") if f"ssl.{given}.{form}" in settings]
        if places and not any(f"ssl.{missing}.{form}" in settings for form in ("location", "pem")):
            raise _refused(
                settings, places[0], "…", f"there is no ssl.{missing}.location or ssl.{missing}.pem that belongs to it"
            )


def _check_source_of_tokens(settings: Mapping[str, Any], needs_token: bool) -> None:
    """The client would wait for a token that nothing fetches or asks for."""
    sources = [name for name in (PROVIDER, "sasl.oauthbearer.method") if settings.get(name, "default") != "default"]
    unsigned = _text(settings.get("enable.sasl.oauthbearer.unsecure.jwt", False)) == "true"
    if needs_token and not sources and not unsigned:
        raise _refused(
            settings,
            "sasl.mechanism",
            "OAUTHBEARER",
            "nothing beside it says where its tokens come from: sasl.oauthbearer.method=oidc, or token_provider",
        )
    if PROVIDER in sources and (not needs_token or len(sources) > 1):
        raise _refused(
            settings,
            PROVIDER,
            settings[PROVIDER],
            "it needs a security.protocol with SASL, sasl.mechanism=OAUTHBEARER, and no sasl.oauthbearer.method",
        )


def _milliseconds(settings: Mapping[str, Any], *names: str) -> float | None:
    given = next((settings[name] for name in names if name in settings), "")
    with suppress(TypeError, ValueError):
        return float(given)
    return None


def _text(value: object) -> str:
    return str(value).lower() if str(value).lower() in ("true", "false", "all") else str(value)


def _refused(settings: Mapping[str, Any], name: str, value: object, consequence: str) -> NeedsOperator:
    value = value if _SAYABLE.fullmatch(str(value)) else HIDDEN
    return NeedsOperator(f"setting {name}={value} of {connection_of(settings)} is refused: {consequence}")
