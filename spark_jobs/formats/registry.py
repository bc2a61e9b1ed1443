"""Schemas of a schema registry by the ids in records: each is asked for once, then kept, so that known ones do not need the registry.

The environment variable PAIRING_SCHEMA_REGISTRY has the settings of confluent-kafka's SchemaRegistryClient as JSON; Airflow fills it from the
connection `schema_registry_default`.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from spark_jobs.faults.problems import JobProblem, NeedsOperator

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaReference

    from spark_jobs.formats.registry_client import RegistryClient

VARIABLE = "PAIRING_SCHEMA_REGISTRY"
# The id is an int of Java to every registry.
HIGHEST_ID = 2**31 - 1
# Of one object. Producers choose the ids, and each unknown one is a request.
VAIN_REQUESTS = 1_000
_MOST_REFERENCES = 500

Settings = dict[str, Any]


class RegistryProblem(JobProblem):
    """The registry does not answer, or not as a registry; the text holds its address."""


class RegisteredSchema(NamedTuple):
    """A schema with all that it needs. `kind`: AVRO, PROTOBUF or JSON; a registry may have others.

    `references`: the name by which a schema refers to another, and the text of that; each comes after those that it refers to itself.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class Cache(Protocol):
    """Where known schemas are kept between jobs; what it raises goes to the caller of `Registry.schema`."""

    def read(self, name: str) -> bytes | None:
        """The content under a name; None if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Keeps the content, in one step. Two jobs may write the same name, with the same content."""


class NoCache:
    """Keeps nothing, for commands that only look."""

    def read(self, name: str) -> bytes | None:
        """None."""
        return None

    def write(self, name: str, content: bytes) -> None:
        """Does nothing."""


def registry_settings() -> Settings:
    """The settings in the environment variable PAIRING_SCHEMA_REGISTRY; raises NeedsOperator if they cannot be used."""
    text = os.environ.get(VARIABLE)
    if not text:
        raise NeedsOperator(
            f"{VARIABLE} is not set: create the connection schema_registry_default, or give client settings as JSON, like "
            '{"url": "http://127.0.0.1:8081"}'
        )
    try:
        settings = json.loads(text)
    except ValueError as error:
        # The text may hold a password, so it is not repeated.
        raise NeedsOperator(f"{VARIABLE} is not JSON: {error}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("url"), str):
        raise NeedsOperator(f"{VARIABLE} has no url; the connection schema_registry_default needs a host")
    if not all(_is_address(url.strip()) for url in settings["url"].split(",")):
        # Any part of it may be a password.
        raise NeedsOperator(
            f"the url in {VARIABLE} is refused: give http:// or https:// with host and port, several separated by commas, and credentials as "
            "login and password of the connection schema_registry_default, not in the url"
        )
    return settings


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(
            parts.scheme in ("http", "https")
            and parts.hostname
            and (parts.port is None or parts.port)
            and not (parts.username or parts.password or parts.query or parts.fragment)
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        return False


class Registry:
    """A registry's schemas by their ids. Threads may share it: they ask one after the other."""

    def __init__(self, settings: Settings, cache: Cache, vain_requests: int = VAIN_REQUESTS) -> None:
        """`settings`: those of `registry_settings`. Nothing is asked yet, and the client, which takes long to import, is not made.

        `vain_requests`: after so many schemas that the registry did not know it is not asked for others.
        """
        self._settings, self._cache, self._vain_requests = settings, cache, vain_requests
        # Ids of another registry mean other schemas.
        addresses = sorted(url.strip().rstrip("/").lower() for url in settings["url"].split(","))
        self._of = hashlib.sha256(",".join(addresses).encode()).hexdigest()[:16]
        self._client: RegistryClient | None = None
        self._known: dict[int | str, RegisteredSchema] = {}
        self._unknown: set[int | str] = set()
        self._in_vain = 0
        self._lock = Lock()

    def schema(self, key: int | str) -> RegisteredSchema | None:
        """The schema of an id or GUID; None if the registry does not know it, or not all that it refers to.

        A key is asked for once. After `vain_requests` that the registry did not know, this object asks for no others: those that are not in the
        cache are taken as unknown, too. Raises RegistryProblem if the registry does not answer within some 20 s, NeedsOperator if it refuses the
        login, its certificate is not trusted, or the client refuses the settings.
        """
        with self._lock:
            if key in self._unknown or not _is_key(key):
                return None
            if key not in self._known:
                found = self._kept(key) or self._asked(key)
                if found is None:
                    self._unknown.add(key)
                    return None
                self._known[key] = found
            return self._known[key]

    def _name(self, key: int | str) -> str:
        return f"{self._of}-{key}.json"

    def _kept(self, key: int | str) -> RegisteredSchema | None:
        try:
            found = json.loads(self._cache.read(self._name(key)) or b"{}")
            return RegisteredSchema(found["kind"], found["text"], tuple((name, text) for name, text in found["references"]))
        except (ValueError, TypeError, KeyError):
            # Not there, or not whole: the registry has it.
            return None

    def _asked(self, key: int | str) -> RegisteredSchema | None:
        if self._in_vain >= self._vain_requests:
            return None
        if self._client is None:
            # It takes as long to import as a small job to run.
            from spark_jobs.formats.registry_client import RegistryClient

            self._client = RegistryClient(self._settings)
        schema = self._client.schema(key)
        found = None if schema is None else with_references(self._client, schema)
        if found is None:
            self._in_vain += 1
            return None
        self._cache.write(self._name(key), json.dumps(found._asdict()).encode())
        return found


def with_references(client: RegistryClient, schema: Schema) -> RegisteredSchema | None:
    """The schema with all that it refers to; None if the registry lacks any of it."""
    references: dict[str, str] = {}
    if not _resolve(client, schema.references or [], references, set()):
        return None
    return RegisteredSchema(schema.schema_type or "AVRO", schema.schema_str or "", tuple(references.items()))


def _resolve(client: RegistryClient, wanted: list[SchemaReference], found: dict[str, str], begun: set[str]) -> bool:
    """Adds to `found` what is referred to, with what that refers to before it; False if the registry lacks any of it.

    As for the client, the first of a name counts.
    """
    for reference in wanted:
        name = str(reference.name)
        if name in begun:
            continue
        begun.add(name)
        if len(begun) > _MOST_REFERENCES:
            return False
        schema = client.version(str(reference.subject), reference.version or 0)
        if schema is None or not _resolve(client, schema.references or [], found, begun):
            return False
        found[name] = str(schema.schema_str)
    return True


def _is_key(key: int | str) -> bool:
    if isinstance(key, int):
        return 0 <= key <= HIGHEST_ID
    try:
        return str(uuid.UUID(key)) == key
    except ValueError:
        return False
