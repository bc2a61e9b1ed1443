"""The schemas of a real registry: of each kind, with references, behind a login, and while it is away."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import psutil
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from include.local.machine import ROOT
from include.sample.examples import EXAMPLES
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats import registry_client
from spark_jobs.formats.frames import split_frames
from spark_jobs.formats.registry import RegisteredSchema, Registry, RegistryProblem
from tests.helpers import schema_registry
from tests.helpers.job_processes import wait_for
from tests.helpers.stores import skip_or_fail
from tests.helpers.web_server import Quiet, serving

pytestmark = pytest.mark.integration

POINT = '{"type":"record","name":"Point","namespace":"n","fields":[{"name":"x","type":"int"}]}'
LINE = '{"type":"record","name":"Line","namespace":"n","fields":[{"name":"a","type":"n.Point"}]}'
SHAPE = (
    '{"type":"record","name":"Shape","namespace":"n","fields":[{"name":"l","type":"n.Line"},{"name":"p","type":"n.Point"}]}'
)
INNER = 'syntax = "proto3"; package p; message Inner { int32 x = 1; }'
OUTER = 'syntax = "proto3"; package p; import "inner.proto"; message Outer { Inner i = 1; }'
# Without the name of its dialect, Apicurio does not take a text for a JSON schema.
NAME = '{"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://e/name.json", "type": "string"}'
USER = NAME.replace('name.json", "type": "string"', 'user.json", "properties": {"name": {"$ref": "http://e/name.json"}}')


@pytest.fixture(scope="module")
def server(started_registry):
    """Without any schema, so that it gives the same ids again after a start."""
    started_registry.restart()
    return started_registry


class Kept(dict):
    """A cache in memory."""

    read = dict.get
    write = dict.__setitem__


@pytest.fixture(scope="module")
def ids(server):
    """The ids of all schemas, by the names of their texts."""
    return register_all(server)


def register_all(server):
    return {
        "POINT": server.register("point", "AVRO", POINT),
        "LINE": server.register("line", "AVRO", LINE, {"n.Point": ("point", 1)}),
        "SHAPE": server.register("shape", "AVRO", SHAPE, {"n.Line": ("line", 1), "n.Point": ("point", 1)}),
        "INNER": server.register("inner", "PROTOBUF", INNER),
        "OUTER": server.register("outer", "PROTOBUF", OUTER, {"inner.proto": ("inner", 1)}),
        "NAME": server.register("name", "JSON", NAME),
        "USER": server.register("user", "JSON", USER, {"http://e/name.json": ("name", 1)}),
    }


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(registry_client, "PATIENCE_S", 0.5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("POINT", RegisteredSchema("AVRO", POINT)),
        ("LINE", RegisteredSchema("AVRO", LINE, (("n.Point", POINT),))),
        ("SHAPE", RegisteredSchema("AVRO", SHAPE, (("n.Point", POINT), ("n.Line", LINE)))),
        ("INNER", RegisteredSchema("PROTOBUF", INNER)),
        ("OUTER", RegisteredSchema("PROTOBUF", OUTER, (("inner.proto", INNER),))),
        ("NAME", RegisteredSchema("JSON", NAME)),
        ("USER", RegisteredSchema("JSON", USER, (("http://e/name.json", NAME),))),
    ],
)
def test_schemas_with_all_that_they_refer_to(name, expected, server, ids):
    assert Registry({"url": server.url}, Kept()).schema(ids[name]) == expected


def test_what_it_does_not_know(server, ids):
    cache = Kept()
    registry = Registry({"url": server.url}, cache)
    # An id that is no int of Java, and GUIDs, which it does not have, are errors of its web server.
    for key in (max(ids.values()) + 1000, 0, 2**31 - 1, 2**32 - 1, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"):
        assert registry.schema(key) is None
    assert cache == {}


def test_a_message_of_the_client_leads_to_its_schema(server, ids):
    client = SchemaRegistryClient({"url": server.url})
    write = AvroSerializer(client, POINT, conf={"auto.register.schemas": False})
    server.register("t-value", "AVRO", POINT)
    value = write({"x": 21}, SerializationContext("t", MessageField.VALUE))
    frames = split_frames(pa.array([value]), None, "__value_schema_id")
    assert frames.bodies.to_pylist() == [b"\x2a"]
    assert Registry({"url": server.url}, Kept()).schema(frames.keys[0]) == RegisteredSchema("AVRO", POINT)
    assert client.get_schema(frames.keys[0]) == Schema(POINT, "AVRO")


@contextmanager
def behind_a_login(server, user, password):
    """The address of a server that passes requests on to the registry if they have this login."""
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(Quiet):
        def do_GET(self):
            status, content = 401, b'{"error_code": 401, "message": "Unauthorized"}'
            if self.headers["Authorization"] == wanted:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{self.path}", timeout=10) as answer:
                        status, content = 200, answer.read()
                except urllib.error.HTTPError as error:
                    status, content = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with serving(Handler) as address:
        yield f"{address}/apis/ccompat/v7"


def test_behind_a_login(server, ids):
    with behind_a_login(server, "pairing", "p:4ss") as url:
        registry = Registry({"url": url, "basic.auth.user.info": "pairing:p:4ss"}, Kept())
        assert registry.schema(ids["POINT"]) == RegisteredSchema("AVRO", POINT) and registry.schema(9999) is None
        for settings in ({}, {"basic.auth.user.info": "pairing:wr0ng"}):
            with pytest.raises(NeedsOperator, match=r"refuses the login \(HTTP status 401\)") as refused:
                Registry({"url": url} | settings, Kept()).schema(ids["POINT"])
            assert "wr0ng" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_wrong_path_is_not_taken_for_unknown_schemas(server, ids, impatient):
    for url in (f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{server.port}/apis"):
        with pytest.raises(RegistryProblem, match=r"does not answer as one \(HTTP status 404\)"):
            Registry({"url": url}, Kept()).schema(ids["POINT"])


def test_a_registry_that_was_killed(server, ids, impatient):
    cache = Kept()
    assert Registry({"url": server.url}, cache).schema(ids["SHAPE"]) is not None
    server.kill()
    try:
        # A job that runs now.
        registry = Registry({"url": server.url}, cache)
        assert registry.schema(ids["SHAPE"]).references == (("n.Point", POINT), ("n.Line", LINE))
        with pytest.raises(
            RegistryProblem, match=rf"^the schema registry at {server.url} cannot be reached \(ConnectError: "
        ):
            registry.schema(ids["OUTER"])
    finally:
        server.start()
        assert register_all(server) == ids
    assert registry.schema(ids["OUTER"]) == RegisteredSchema("PROTOBUF", OUTER, (("inner.proto", INNER),))


def test_it_ends_with_the_process_that_started_it(tmp_path):
    if not shutil.which("setpriv"):
        skip_or_fail("setpriv not found: install it (Debian: apt-get install util-linux)")
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.helpers.schema_registry import LocalRegistry\n"
        "from include.local.process import free_port\n"
        "LocalRegistry(Path(sys.argv[1]), free_port()).start()\n"
        "time.sleep(600)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        wait_for(lambda: (tmp_path / "registry.pid").exists() and (tmp_path / "registry.pid").read_text(), "its start", 60)
        started = psutil.Process(int((tmp_path / "registry.pid").read_text()))
        wait_for(lambda: "java" in started.name(), "Java", 30)
        starter.send_signal(signal.SIGKILL)
        starter.wait(10)
        wait_for(lambda: not started.is_running() or started.status() == psutil.STATUS_ZOMBIE, "its end", 10)
    finally:
        starter.kill()


@pytest.mark.long
def test_the_schemas_of_an_example_are_there_from_each_start_on(tmp_path):
    with schema_registry.running_registry(tmp_path) as registry:
        registry.schemas = EXAMPLES["orders"].schemas
        assert registry.start() is False
        ids = registry.ids
        assert len(set(ids)) == len(registry.schemas) == 3
        registry.restart()
        assert registry.ids == ids
        client = SchemaRegistryClient({"url": registry.url})
        texts = [json.loads(client.get_schema(each).schema_str) for each in ids]
        assert texts == [json.loads(each.text) for each in registry.schemas]
