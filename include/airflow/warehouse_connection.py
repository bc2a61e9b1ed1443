"""The connection `warehouse_default` as options of the object store in which the tables lie.

Connections of the providers' types (`aws`, `wasb`, `adls`, `google_cloud_platform`) are understood without the providers; any other type
gives options by their names in its extra. Without the connection nothing is said, and the client asks the machine: its role, its identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from airflow.sdk.log import mask_secret

from include.config.secret_values import secret_settings
from include.config.store import normal_options

CONNECTION = "warehouse_default"
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
# What the provider's hook does before it asks the store, and the store's client does not.
_NOT_DONE = ("role_arn", "assume_role_method", "profile_name", "connection_string", "key_secret_name", "impersonation_chain")


def warehouse_options() -> dict[str, str]:
    """The options that the connection gives; none if there is no connection. Raises AirflowException where it says what cannot be done."""
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except AirflowNotFoundException:
        return {}
    options = options_of(connection)
    for secret in secret_settings(options):
        mask_secret(secret)
    return options


def options_of(connection: Any) -> dict[str, str]:
    """The options that a connection gives, by its type."""
    # Older forms of the fields carry the type in their names.
    extra = {name.rpartition("__")[2]: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    if refused := [name for name in _NOT_DONE if name in extra]:
        raise AirflowException(
            f"connection {CONNECTION}: {', '.join(refused)} cannot be used for a warehouse: give keys, or say nothing and give the machine the role"
        )
    kind = connection.conn_type
    if kind == "aws":
        found = {
            "aws_access_key_id": connection.login,
            "aws_secret_access_key": connection.password,
            **_renamed(extra, _AWS),
        }
    elif kind in ("wasb", "adls"):
        found = _azure(connection, extra)
    elif kind == "google_cloud_platform":
        found = {
            "google_service_account": extra.pop("key_path", None),
            "google_service_account_key": _text(extra.pop("keyfile_dict", None)),
        }
        found |= {name: value for name, value in extra.items() if name.startswith("google_")}
    else:
        found = extra
    return normal_options({name: value for name, value in found.items() if name and value not in (None, "")})


def _azure(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    found = _renamed(extra, _AZURE)
    if "tenant_id" in extra:
        # The account is in the host, or in the address of the warehouse.
        account = (connection.host or "").removeprefix("https://").partition(".")[0]
        return {
            "azure_client_id": connection.login,
            "azure_client_secret": connection.password,
            "azure_storage_account_name": account,
            **found,
        }
    return {"azure_storage_account_name": connection.login, "azure_storage_account_key": connection.password, **found}


def _renamed(extra: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The fields by their names as options; others as they are, for those that the provider does not know, such as `allow_http`."""
    return {names.get(name, name): value for name, value in extra.items()}


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value
