"""The connections of jobs: those of Kafka clusters, as settings of Kafka clients, `schema_registry_default`, as settings of the schema registry's client,
and `warehouse_default`, as options of the object store of the tables.

`warehouse_default` may have a provider's type (`aws`, `wasb`, `adls`, `google_cloud_platform`) without that provider being installed; the extra
of any other type holds the options by their names. Without the connection the client uses the machine's role or identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from airflow.sdk.log import mask_secret

from include.config.pipeline import KAFKA, Pipeline
from include.config.secret_values import secret_settings
from include.config.store import normal_options

WAREHOUSE, SCHEMA_REGISTRY = "warehouse_default", "schema_registry_default"
_AWS = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint_url",
    "aws_session_token": "aws_session_token",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
}
_AZURE = {
    "sas_token": "azure_storage_sas_key",
    "tenant_id": "azure_tenant_id",
    "endpoint_url": "azure_storage_endpoint",
    "account_name": "azure_storage_account_name",
    "client_secret_auth_config": "",
}
# The providers' hooks resolve these before a request; the store's client cannot.
_UNSUPPORTED = (
    "role_arn",
    "assume_role_method",
    "profile_name",
    "connection_string",
    "key_secret_name",
    "impersonation_chain",
)


def kafka_settings(connection: str = KAFKA) -> dict[str, Any]:
    """The extra of the connection, its secrets hidden in logs: Airflow does not recognise, for one, a key given as text."""
    settings = dict(BaseHook.get_connection(connection).extra_dejson)
    _hide(settings)
    return settings


def all_kafka_settings(pipeline: Pipeline) -> dict[str, Any]:
    """Those of the pipeline's one cluster, if that is `kafka_default`, or those of each by its connection, as PAIRING_KAFKA has them."""
    if pipeline.connections == (KAFKA,):
        return kafka_settings()
    return {connection: kafka_settings(connection) for connection in pipeline.connections}


def schema_registry_settings() -> dict[str, Any]:
    """The settings of `schema_registry_default`, empty without that connection. Raises AirflowException for fields that cannot be used."""
    try:
        settings = registry_settings_of(BaseHook.get_connection(SCHEMA_REGISTRY))
    except AirflowNotFoundException:
        return {}
    _hide(settings)
    return settings


def registry_settings_of(connection: Any) -> dict[str, Any]:
    """Addresses of the host, the login, and the extra, which wins. Raises AirflowException for fields that cannot be used.

    The host: one or several separated by commas, each with or without http(s)://, port and path, which default to the schema and the port of
    the connection.
    """
    scheme = connection.schema or ("https" if connection.conn_type == "https" else "http")
    if scheme not in ("http", "https"):
        raise AirflowException(f"connection {SCHEMA_REGISTRY}: the schema must be http or https; a path belongs to the host")
    hosts = [host.strip() for host in (connection.host or "").split(",") if host.strip()]
    url = ",".join(_address(host if "://" in host else f"{scheme}://{host}", connection.port) for host in hosts)
    settings: dict[str, Any] = {"url": url} if url else {}
    if connection.login or connection.password:
        settings["basic.auth.user.info"] = f"{connection.login or ''}:{connection.password or ''}"
    return settings | connection.extra_dejson


def _address(url: str, port: int | None) -> str:
    try:
        parts = urlsplit(url)
        given = parts.port
    except ValueError:
        # What is no address may be a password.
        raise AirflowException(f"connection {SCHEMA_REGISTRY}: the host is no address: give name, port and path") from None
    return parts._replace(netloc=f"{parts.netloc}:{port}").geturl() if port and given is None else url


def warehouse_options() -> dict[str, str]:
    """The options of `warehouse_default`, empty without that connection. Raises AirflowException for fields that cannot be used."""
    try:
        options = options_of(BaseHook.get_connection(WAREHOUSE))
    except AirflowNotFoundException:
        return {}
    _hide(options)
    return options


def _hide(settings: Mapping[str, object]) -> None:
    for secret in secret_settings(settings):
        mask_secret(secret)


def options_of(connection: Any) -> dict[str, str]:
    """The options of a connection, by its type. Raises AirflowException for fields that cannot be used."""
    # A provider may put its prefix in front of a field's name: extra__aws__region_name.
    extra = {name.rpartition("__")[2]: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    if refused := [name for name in _UNSUPPORTED if name in extra]:
        raise AirflowException(
            f"connection {WAREHOUSE}: {', '.join(refused)} cannot be used for a warehouse: give keys, or say nothing and give the machine the role"
        )
    kind = connection.conn_type
    if kind == "aws":
        keys = {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
        options = keys | _renamed(extra, _AWS)
    elif kind in ("wasb", "adls"):
        options = _azure_keys(connection, "tenant_id" in extra) | _renamed(extra, _AZURE)
    elif kind == "google_cloud_platform":
        key = extra.get("keyfile_dict")
        options = {
            "google_service_account": extra.get("key_path"),
            "google_service_account_key": json.dumps(key) if isinstance(key, dict) else key,
        } | {name: value for name, value in extra.items() if name.startswith("google_")}
    else:
        options = extra
    return normal_options({name: value for name, value in options.items() if name and value not in (None, "")})


def _azure_keys(connection: Any, of_client: bool) -> dict[str, Any]:
    """`of_client`: the connection names a service principal, not an account with its key."""
    if not of_client:
        return {"azure_storage_account_name": connection.login, "azure_storage_account_key": connection.password}
    # The host names the account, if the address of the warehouse does not.
    account = (connection.host or "").removeprefix("https://").partition(".")[0]
    return {
        "azure_client_id": connection.login,
        "azure_client_secret": connection.password,
        "azure_storage_account_name": account,
    }


def _renamed(extra: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The fields under the names of options. Fields unknown to the provider are options already, such as `allow_http`."""
    return {names.get(name, name): value for name, value in extra.items()}
