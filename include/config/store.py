"""Where a warehouse lies and how it is reached: a folder, s3://, az:// (or abfss://) or gs://, all through one client.

`PAIRING_WAREHOUSE` is the place. `PAIRING_STORE` has the options of a store (credentials, region, endpoint) as a JSON object; Airflow fills it
from the connection `warehouse_default`. Options that it lacks come from the clouds' own variables (`AWS_…`, `AZURE_…`, `GOOGLE_…`). Without
any of these the client asks the machine, so instance roles and web identities need no setting.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from include.config.project import LOCAL, PACKAGE

if TYPE_CHECKING:
    from obstore.store import ObjectStore

WAREHOUSE_VARIABLE, OPTIONS_VARIABLE = "PAIRING_WAREHOUSE", "PAIRING_STORE"
# Spark's names of the stores, and ours.
_SCHEMES = {"s3": "s3", "s3a": "s3", "az": "az", "abfs": "abfss", "abfss": "abfss", "gs": "gs"}
# The clouds' variables that travel with the work, because a worker on another machine has none of them. Paths of token files do not
# travel: each machine has its own.
_CLOUD_VARIABLE = re.compile(
    r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION|ENDPOINT_URL|ENDPOINT_URL_S3|ALLOW_HTTP)"
    r"|AZURE_STORAGE_(ACCOUNT_NAME|ACCOUNT_KEY|SAS_KEY|SAS_TOKEN|ENDPOINT|USE_EMULATOR|ALLOW_HTTP)|AZURE_(CLIENT_ID|CLIENT_SECRET|TENANT_ID)"
    r"|GOOGLE_SERVICE_ACCOUNT(_KEY|_PATH)?"
)
# obstore takes the options of the HTTP client, and of its retries, apart from those of the store.
_CLIENT = frozenset(
    "allow_http allow_invalid_certificates connect_timeout http1_only http2_only pool_idle_timeout pool_max_idle_per_host proxy_url "
    "proxy_ca_certificate proxy_excludes read_timeout root_certificate timeout user_agent".split()
)
_RETRIES = frozenset(("max_retries", "retry_timeout"))
# A store may throttle requests for half a minute. With the client's defaults the tenth and last try comes after four seconds.
_DEFAULT_RETRIES = {"max_retries": "100", "retry_timeout": "60s"}
_PREFIXES = ("aws_", "azure_storage_", "azure_", "google_")
_NOT_IN_A_FOLDER = "%\\[]^|"
_SECONDS = {"s": 1, "m": 60}


class StoreRefused(Exception):
    """A place or an option that cannot be used; one line with the remedy and without any secret."""


@dataclass(frozen=True)
class Store:
    """A folder (`uri`: its absolute path) or a place in an object store (`uri`: scheme://bucket/…, no slash at its end).

    `options`: lower-case keys as delta-rs takes them; empty for a folder. They may hold secrets, so `repr` leaves them out.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def made(self) -> Store:
        """This place; a folder is created if it does not exist."""
        if (folder := self.folder) is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return self

    def at(self, *names: str) -> Store:
        """The place below this one."""
        return Store("/".join((self.uri, *names)), self.options)

    @property
    def folder(self) -> Path | None:
        """The folder; None in an object store."""
        return local_folder(self.uri)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """The options for delta-rs; None for a folder."""
        return None if self.folder is not None else _DEFAULT_RETRIES | dict(self.options)

    @property
    def client(self) -> ObjectStore:
        """The obstore client whose paths begin here. Raises FileNotFoundError for a folder that does not exist, and StoreRefused."""
        return _client(self.uri, tuple(sorted((self.delta_options or {}).items())))


def warehouse_root() -> str:
    """The warehouse of this environment: $PAIRING_WAREHOUSE, else .local/warehouse of the project. An installed package has no folder of its own to
    write to: then it is empty, which is refused where a warehouse is used.
    """
    return os.environ.get(WAREHOUSE_VARIABLE) or ("" if PACKAGE else str(LOCAL / "warehouse"))


def warehouse_store(root: str | None = None, options: Mapping[str, str] | None = None) -> Store:
    """The place of a warehouse (default: this environment's); `options` win over those of the environment. Raises StoreRefused."""
    uri = checked_root(warehouse_root() if root is None else root)
    return Store(uri) if local_folder(uri) else Store(uri, store_options() | dict(options or {}))


def pages_store(pipeline: str, root: str | None = None, options: Mapping[str, str] | None = None) -> Store:
    """The place of a pipeline's quality pages, beside its tables. Raises StoreRefused."""
    return warehouse_store(root, options).at(pipeline, "quality")


def checked_root(given: str) -> str:
    """A folder as an absolute path, or a URI with the scheme that all parts of the project use.

    Raises StoreRefused.

    >>> checked_root("s3a://lake/events/"), checked_root("/tmp/warehouse/")
    ('s3://lake/events', '/tmp/warehouse')
    """
    root = given.rstrip("/")
    folder = local_folder(root)

    def refused(reason: str) -> StoreRefused:
        # Any part of a URI but its scheme may be a password.
        shown = repr(given) if folder is not None else f"{root.partition(':')[0].lower()}://…"
        return StoreRefused(f"warehouse {shown} is refused: {reason}")

    # An empty name would be the folder in which a job happens to run.
    if not root or not root.isprintable():
        raise refused("name a folder or URI, without control characters")
    if folder is not None:
        if set(str(folder.absolute())) & set(_NOT_IN_A_FOLDER):
            raise refused(f"name a folder without any of {' '.join(_NOT_IN_A_FOLDER)} in its path")
        return str(folder.absolute())
    try:
        parts = urlsplit(root)
    except ValueError:
        raise refused("it is no URI") from None
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None:
        raise refused(f"use a folder, s3://, az://, abfss:// or gs:// ({WAREHOUSE_VARIABLE})")
    has_account = scheme == "abfss" and re.fullmatch(r"[\w.-]+@[\w.-]+", parts.netloc, re.ASCII)
    if not has_account and not re.fullmatch(r"[\w.-]+", parts.netloc, re.ASCII):
        kind = "container@account.dfs.core.windows.net" if scheme == "abfss" else "bucket"
        raise refused(
            f"write it {scheme}://{kind}/path, without user, password or port; give credentials by the connection warehouse_default "
            f"({OPTIONS_VARIABLE} outside Airflow), and the endpoint as its endpoint_url"
        )
    if parts.query or parts.fragment or re.search(r"//|[%\\#?*\[\]{}^|\"<>~`]", parts.path):
        raise refused(
            "write its path with letters, digits and - _ . = / only, without ? or #; options go into the connection warehouse_default "
            f"({OPTIONS_VARIABLE} outside Airflow)"
        )
    return f"{scheme}://{parts.netloc}{parts.path}"


def local_folder(root: str) -> Path | None:
    """The folder of a local warehouse, None for a URI of another file system.

    >>> str(local_folder("/a/b")), str(local_folder("file:///a/b")), local_folder("s3://a/b"), str(local_folder("/a:/b"))
    ('/a/b', '/a/b', None, '/a:/b')
    """
    if root.startswith("file:"):
        return Path(unquote(urlsplit(root).path))
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", root) else Path(root)


def store_options() -> dict[str, str]:
    """The options of this environment, keys in lower case; $PAIRING_STORE wins over the clouds' own variables. Raises StoreRefused."""
    try:
        given = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
    except ValueError as error:
        # Without the text, which may hold a secret.
        raise StoreRefused(f"{OPTIONS_VARIABLE} cannot be read as JSON: {error}") from None
    if not isinstance(given, dict) or not all(isinstance(value, str | int | bool) for value in given.values()):
        raise StoreRefused(f'{OPTIONS_VARIABLE} must be a JSON object of texts, like {{"aws_region": "eu-central-1"}}')
    return normal_options(_cloud_variables(os.environ)) | normal_options(given)


def hide_cloud_variables(environment: MutableMapping[str, str]) -> None:
    """Moves the clouds' own variables into $PAIRING_STORE: Spark would copy AWS_… into the Hadoop configuration (fs.s3a.…) of its JVM.

    Leaves all as it is where $PAIRING_STORE cannot be read, which `store_options` reports.

    >>> environment = {"AWS_REGION": "eu", "AWS_SECRET_ACCESS_KEY": "s", "PAIRING_STORE": '{"aws_region": "us"}'}
    >>> hide_cloud_variables(environment)
    >>> environment
    {'PAIRING_STORE': '{"aws_region": "us", "aws_secret_access_key": "s"}'}
    """
    found = _cloud_variables(environment)
    for name in [name for name in environment if _CLOUD_VARIABLE.fullmatch(name)]:
        del environment[name]
    try:
        given = json.loads(environment.get(OPTIONS_VARIABLE) or "{}")
    except ValueError:
        return
    if found and isinstance(given, dict):
        environment[OPTIONS_VARIABLE] = json.dumps(normal_options(found) | normal_options(given))


def _cloud_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if value and _CLOUD_VARIABLE.fullmatch(name)}


def normal_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Options with names in lower case, those of the HTTP client without a cloud's prefix, and values as texts.

    >>> normal_options({"AWS_REGION": "eu", "AWS_ALLOW_HTTP": True})
    {'aws_region': 'eu', 'allow_http': 'true'}
    """
    options = {}
    for name, value in given.items():
        key = name.lower()
        bare = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), key)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        options[bare if bare in _CLIENT | _RETRIES else key] = text
    # Amazon's variable for S3 alone takes precedence over that for all services; the client does not know it as an option.
    if endpoint := options.pop("aws_endpoint_url_s3", None):
        options["aws_endpoint_url"] = endpoint
    return options


def read_bytes(store: Store, name: str) -> bytes:
    """What is in the file. Raises FileNotFoundError, and the store's own errors."""
    import obstore

    return bytes(obstore.get(store.client, name).bytes())


def read_text(store: Store, name: str) -> str | None:
    """The text at a name below the place; None if there is none."""
    try:
        return read_bytes(store, name).decode("utf-8")
    except FileNotFoundError:
        return None


def exists(store: Store, name: str) -> bool:
    """Whether there is anything at a name below the place."""
    return etag(store, name) is not None


def etag(store: Store, name: str) -> str | None:
    """What is another after every write at a name below the place; None if there is nothing."""
    import obstore

    try:
        return obstore.head(store.client, name)["e_tag"] or ""
    except FileNotFoundError:
        return None


def list_names(store: Store) -> list[str]:
    """The names of everything below the place; none where nothing was ever written."""
    return [*etags(store)]


def etags(store: Store) -> dict[str, str]:
    """As `etag`, of everything below the place, by name."""
    import obstore

    try:
        return {each["path"]: each["e_tag"] or "" for each in obstore.list(store.client).collect()}
    except FileNotFoundError:
        # The folder is made by the first write.
        return {}


def write_text(store: Store, name: str, text: str) -> None:
    """Replaces a text in one step: its readers see the old one or the new one."""
    import obstore

    obstore.put(store.made().client, name, text.encode("utf-8"))


@cache
def _client(uri: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    # Imported late, because DAG files name places and are parsed again and again.
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if (folder := local_folder(uri)) is not None:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not there")
        return LocalStore(folder)
    client = {name: value for name, value in options if name in _CLIENT}
    config = {name: value for name, value in options if name not in _CLIENT | _RETRIES}
    try:
        retries = {name: _retry_option(name, value) for name, value in options if name in _RETRIES}
        return from_url(uri, config=config, client_options=client, retry_config=retries or None)  # type: ignore[call-overload]
    except (BaseError, ValueError, LookupError) as error:
        # The client names the option; its value may be a secret.
        wrong = next((name for name, _ in options if f"'{name}'" in str(error)), None)
        what = f"has an option {wrong} that it does not know" if wrong else "has options that do not go together"
        raise StoreRefused(
            f"the store of {uri} cannot be used: it {what}: see warehouse_default, or {OPTIONS_VARIABLE} outside Airflow"
        ) from None


def _retry_option(name: str, text: str) -> int | timedelta:
    return int(text) if name == "max_retries" else timedelta(seconds=int(text[:-1]) * _SECONDS[text[-1]])
