"""Tokens for SASL OAUTHBEARER: what a Kafka client needs besides the settings of kafka_default, in jobs and in Airflow alike.

`token_provider` names a function as confluent-kafka takes it for `oauth_cb`: of the text of sasl.oauthbearer.config (empty if not set), it returns
(token, expiry in epoch seconds), or (token, expiry, principal, extensions). It runs in every process that has a client: driver, Spark's workers,
Airflow's triggerer.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from include.config.pipeline import KAFKA
from include.config.secret_values import HIDDEN, secret_settings

PROVIDER = "token_provider"
# Beside a client's settings, for messages: the Airflow connection that they come from, if that is not kafka_default.
CONNECTION = "airflow connection"
_YEAR_S = 366 * 86_400
_DEBIANS_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"

Token = tuple[Any, ...]


class NoToken(Exception):
    """The provider has no token now; one line with cause and remedy."""


class ProviderRefused(NoToken):
    """No try with this provider can help."""


def connection_of(settings: Mapping[str, Any]) -> str:
    """The connection that the settings come from."""
    return str(settings.get(CONNECTION, KAFKA))


def with_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the client takes them: a callback in the place of the provider's name, authorities for the endpoint of `oidc`.

    Raises NoToken, so that the first token is there before there is a client: that would wait ten seconds, and know no reason.
    """
    ready = dict(settings)
    if settings.get("sasl.oauthbearer.method") == "oidc" and not {"https.ca.location", "https.ca.pem"} & settings.keys():
        # The client's wheel looks for them where only Red Hat has them, and reads no folder.
        places = (ssl.get_default_verify_paths().cafile, _DEBIANS_AUTHORITIES)
        found = [place for place in places if place and Path(place).is_file()]
        ready |= {"https.ca.location": found[0]} if found else {}
    ready.pop(CONNECTION, None)
    if (name := ready.pop(PROVIDER, None)) is not None:
        ready["oauth_cb"] = _callback(str(name), settings)
    return ready


def _callback(name: str, settings: Mapping[str, Any]) -> Callable[[str], Token]:
    connection, secrets = connection_of(settings), secret_settings(settings)
    ask = partial(_token, name, connection, _imported(name, connection), secrets)
    first = [ask(str(settings.get("sasl.oauthbearer.config", "")))]

    def oauth_cb(config: str) -> Token:
        if first:
            return first.pop()
        try:
            return ask(config)
        except NoToken as problem:
            # The client drops the reason, and asks again ten seconds later.
            logging.getLogger(__name__).warning("%s", problem)
            raise

    return oauth_cb


def _imported(name: str, connection: str) -> Callable[[str], Any]:
    module, _, function = name.rpartition(".")
    try:
        found = getattr(import_module(module), function)
    except Exception as error:
        raise ProviderRefused(
            f"token_provider {name} of {connection} cannot be imported {_here()} ({_cause(error)}): install its package there, or correct the name"
        ) from None
    if not callable(found):
        raise ProviderRefused(f"token_provider {name} of {connection} is no function {_here()}: correct the name")
    return found


def _token(name: str, connection: str, provide: Callable[[str], Any], secrets: set[str], config: str) -> Token:
    try:
        answer = provide(config)
    except Exception as error:
        cause = _cause(error)
        for secret in secrets:
            cause = cause.replace(secret, HIDDEN)
        raise NoToken(
            f"token_provider {name} of {connection} failed {_here()} ({cause}): does it find its credentials and reach its server there?"
        ) from None
    if wrong := _wrong(answer):
        raise ProviderRefused(
            f"token_provider {name} of {connection} returned {wrong} {_here()}: it must return (token, expiry in epoch seconds)"
        )
    return tuple(answer)


def _wrong(answer: Any) -> str:
    """What is wrong with a provider's answer, without its values; empty if nothing is."""
    kinds = ((str,), (int, float), (str,), (dict,))
    if not isinstance(answer, tuple | list) or not 2 <= len(answer) <= len(kinds):
        return f"{type(answer).__name__}" + (f" of {len(answer)}" if isinstance(answer, tuple | list) else "")
    if not all(isinstance(value, kind) for value, kind in zip(answer, kinds, strict=False)) or not answer[0]:
        return f"({', '.join(type(value).__name__ for value in answer)})" if answer[0] else "an empty token"
    if not 0 < answer[1] - time.time() < _YEAR_S:
        return f"an expiry of {answer[1]:.0f}, which is " + ("past" if answer[1] < time.time() else "no time in seconds")
    return ""


def _here() -> str:
    return f"by {sys.executable} on {socket.gethostname()}"


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:300]
