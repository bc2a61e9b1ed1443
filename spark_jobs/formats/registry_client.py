"""Requests to a schema registry by confluent-kafka's client, bounded in time and size; every failure is one line.

Imported only when there is something to ask: the client's HTTP library takes over half a second to import.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import OAuthTokenError

from include.config.secret_values import HIDDEN, secret_settings, without_values
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.formats.registry import RegistryProblem, Settings

# No try begins later. With what the last one may take, all tries together end within some 20 s.
PATIENCE_S = 8.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0
MOST_BYTES = 16 * 1024 * 1024
# What registries say of a subject, a version and a schema that they do not have.
_NOT_FOUND = (40401, 40402, 40403)
_REFUSED = (401, 403)
_LATER = (408, 429)
_T = TypeVar("_T")


class RegistryClient:
    """Asks one registry, at one of its addresses. Raises RegistryProblem, and NeedsOperator where another try cannot help."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        addresses = str(settings["url"]).split(",")
        timeout_s = max(1.0, PATIENCE_S / 2 / len(addresses))
        # The client tries each address once; the tries and their end are here.
        preset = {"timeout": timeout_s, "max.retries": 0}
        try:
            self._client = SchemaRegistryClient(preset | settings)
        except (ValueError, TypeError, OSError, httpx.InvalidURL) as error:
            line = without_values(settings, _line(error))
            raise NeedsOperator(f"a setting of schema_registry_default is refused by the client: {line}") from None
        session = self._client._rest_client.session
        # A compressed answer could be a thousand times as large as what is counted.
        session.headers["Accept-Encoding"] = "identity"
        session.event_hooks = {"response": [lambda response: _bound(response, timeout_s)]}
        self._is_registry = False

    def schema(self, key: int | str) -> Schema | None:
        """The schema of an id or a GUID; None if the registry does not have it."""
        if isinstance(key, int):
            return self._asked(lambda: _whole(self._client.get_schema(key)))
        return self._asked(lambda: _whole(self._client.get_schema_by_guid(key)))

    def version(self, subject: str, version: int) -> Schema | None:
        """The schema of a version, also of one that was deleted but not for good; None if the registry does not have it."""
        return self._asked(lambda: _whole(self._client.get_version(subject, version, deleted=True).schema))

    def newest(self, subject: str) -> tuple[Schema, int] | None:
        """The newest version of a subject when it is first asked for, and its number; None if the registry does not have the subject."""

        def request() -> tuple[Schema, int]:
            found = self._client.get_latest_version(subject)
            return _whole(found.schema), int(found.version or 0)

        return self._asked(request)

    def find(self, subject: str, schema: Schema) -> tuple[int, int] | None:
        """Id and version of a schema that is a version of the subject already; None if it is none."""

        def request() -> tuple[int, int]:
            found = self._client.lookup_schema(subject, schema)
            return int(found.schema_id or 0), int(found.version or 0)

        return self._asked(request)

    def is_compatible(self, subject: str, schema: Schema) -> bool:
        """Whether the registry would take the schema behind the newest version of the subject; also if there is no such subject."""
        return self._asked(lambda: bool(self._client.test_compatibility(subject, schema))) is not False

    def register(self, subject: str, schema: Schema) -> int | None:
        """Makes the schema a version of the subject, if it is none yet; its id, or None if the registry refuses the schema."""
        return self._asked(lambda: int(self._client.register_schema(subject, schema)), "register")

    def _asked(self, request: Callable[[], _T], right: str = "read") -> _T | None:
        end, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
        while True:
            try:
                answer = request()
            except Exception as error:
                problem = self._problem(error, right)
            else:
                self._is_registry = True
                return answer
            if problem is None or isinstance(problem, NeedsOperator) or time.monotonic() + pause_s > end:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if problem:
            raise problem
        return None

    def _problem(self, error: Exception, right: str) -> JobProblem | None:
        """What an error means; None: the registry does not have what was asked for, or refuses it. `right`: what the user needs to be allowed."""
        registry = f"the schema registry at {self._settings['url']}"
        if isinstance(error, SchemaRegistryError):
            status = int(error.http_status_code)
            if status in _REFUSED:
                return NeedsOperator(
                    f"{registry} refuses the login (HTTP status {status}): correct login, password or token in the connection "
                    f"schema_registry_default, or give that user the right to {right} schemas"
                )
            if 400 <= status < 500 and status not in _LATER and (error.error_code in _NOT_FOUND or self._answers_as_one()):
                return None
            if status < 500 and status not in _LATER:
                return _no_registry(registry, f"HTTP status {status}")
            return RegistryProblem(
                f"{registry} fails (HTTP status {status}): its own log says why; try again when it is well"
            )
        if tls := _tls_error(error):
            return NeedsOperator(
                f"{registry} cannot be reached by TLS ({self._safe(tls)}): correct ssl.ca.location, ssl.certificate.location or the schema "
                "(http, https) of the connection schema_registry_default"
            )
        if isinstance(error, httpx.TransportError | OAuthTokenError):
            return RegistryProblem(
                f"{registry} cannot be reached ({self._safe(error)}): is it up, and do host and port of the connection "
                "schema_registry_default lead to it from here?"
            )
        answer = str(error) if isinstance(error, _TooMuch) else f"what it sends is no schema: {type(error).__name__}"
        return _no_registry(registry, answer)

    def _answers_as_one(self) -> bool:
        """Whether there is a registry that merely does not have what was asked for: behind a wrong path nothing would be found, either."""
        if not self._is_registry:
            try:
                kinds = self._client.get_schema_types()
            except Exception:
                return False
            self._is_registry = isinstance(kinds, list) and "AVRO" in kinds
        return self._is_registry

    def _safe(self, error: Exception) -> str:
        line = _line(error)
        for secret in secret_settings(self._settings):
            line = line.replace(secret, HIDDEN)
        return line


def _whole(schema: Schema) -> Schema:
    if not isinstance(schema.schema_str, str):
        raise ValueError("an answer without a schema")
    return schema


def _no_registry(registry: str, answer: str) -> RegistryProblem:
    return RegistryProblem(
        f"{registry} does not answer as one ({answer}): does the connection schema_registry_default lead to its API, like "
        "https://host:8081 or https://host/apis/ccompat/v7?"
    )


def _line(error: Exception) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in str(error))
    return f"{type(error).__name__}: {' '.join(text.split())[:200]}"


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The refusal of a certificate or of a handshake behind an error; a connection that just ended is none."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return None if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) else error
        error = error.__cause__ or error.__context__
    return None


class _TooMuch(Exception):
    """An answer that is larger, or takes longer, than any schema."""


def _bound(response: Any, seconds: float) -> None:
    """Called by the HTTP library between headers and body."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _TooMuch("a compressed answer, which was not asked for")
    response.stream = _BoundedStream(response.stream, time.monotonic() + seconds)


class _BoundedStream(httpx.SyncByteStream):
    """The body of an answer, up to MOST_BYTES and a moment of `time.monotonic`."""

    def __init__(self, stream: Any, end: float) -> None:
        self._stream, self._end = stream, end

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for part in self._stream:
            size += len(part)
            if size > MOST_BYTES:
                raise _TooMuch(f"more than {MOST_BYTES} bytes")
            if time.monotonic() > self._end:
                raise _TooMuch("a body that does not end")
            yield part

    def close(self) -> None:
        self._stream.close()
