"""A warehouse without any key in its options: the machine's role has them, in each of the three ways in which Amazon hands them out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.local.machine import ROOT, project_environment
from include.local.store import BUCKET
from tests.helpers.credential_server import IDENTITY, ROLE, TOKEN, Server, handing_out
from tests.helpers.secured_broker import openssl

pytestmark = pytest.mark.integration

# What a job does with a warehouse: probe, a first commit, rows, and the same again when credentials have come to their end.
WORK = """
import os, sys, time
import pyarrow as pa
from include.config.store import hide_cloud_variables, warehouse_store
from spark_jobs.maintenance.uploads import unfinished_uploads
from spark_jobs.tables.one_writer import check_store
from deltalake import DeltaTable, write_deltalake
hide_cloud_variables(os.environ)
store = warehouse_store(sys.argv[1])
assert not [name for name in store.options if "key" in name or "token" in name], store.options
check_store(store)
table = store.at("table")
for number in range(2):
    write_deltalake(table.uri, pa.table({"n": [number]}), mode="append", storage_options=table.delta_options)
    rows = DeltaTable(table.uri, storage_options=table.delta_options).to_pyarrow_table().num_rows
    assert rows == number + 1, rows
    time.sleep(float(sys.argv[2]))
    check_store(store.at(str(number)))
assert unfinished_uploads(store) is None
print("done")
"""


@pytest.fixture
def server(request, s3, tmp_path) -> Iterator[Server]:
    """Hands out the store's keys, each time for so many seconds as the test is parametrized with."""
    if request.getfixturevalue("way") == "web identity":
        # The client exchanges an identity over TLS only.
        subject = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
        openssl(tmp_path, "req", "-x509", *subject, "-keyout", "server.key", "-out", "server.pem")
    with handing_out(s3.user, s3.secret, tmp_path, request.param) as running:
        yield running


def variables(way: str, server: Server, folder: Path) -> tuple[dict[str, str], str]:
    """What the cloud sets in the environment of a machine with a role, and the request that gets the keys."""
    token = folder / "token"
    token.write_text({"web identity": IDENTITY}.get(way, TOKEN))
    if way == "container":
        uri = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.address}/container"}
        return uri | {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)}, "GET /container 200"
    if way == "instance":
        return {"AWS_METADATA_ENDPOINT": server.address}, "GET /latest/meta-data/iam/security-credentials/pairing 200"
    identity = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": ROLE}
    own = {
        "AWS_ENDPOINT_URL_STS": server.address.replace("http:", "https:"),
        "PAIRING_STORE": '{"allow_invalid_certificates": "true"}',
    }
    return identity | own, "POST / 200"


@pytest.mark.parametrize(
    ("server", "wait_s", "way"),
    [
        *((3600, 0, way) for way in ("container", "instance", "web identity")),
        (3, 2, "container"),
        *(pytest.param(3, 2, way, marks=pytest.mark.long) for way in ("instance", "web identity")),
    ],
    indirect=["server"],
)
def test_a_machine_with_a_role_needs_no_key(way, server, wait_s, s3, tmp_path):
    given, request = variables(way, server, tmp_path)
    place = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL_S3": s3.address, "AWS_ALLOW_HTTP": "true"}
    cleared = {
        name: value for name, value in project_environment().items() if not name.startswith(("AWS_", "PAIRING_STORE"))
    }
    root = f"s3://{BUCKET}/role-{way.replace(' ', '-')}-{wait_s}"
    command = [sys.executable, "-c", WORK, root, str(wait_s)]
    done = subprocess.run(command, cwd=ROOT, env=cleared | given | place, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
    asked = server.asked(request)
    assert asked >= (3 if wait_s else 1), server.log.read_text()
    assert os.environ.get("AWS_ACCESS_KEY_ID") is None
