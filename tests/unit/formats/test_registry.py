"""Schemas of a registry: what is asked, how often, what is kept, and what a registry that is away, broken or hostile becomes: one line."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from include.local.process import free_port
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats import registry as registry_module
from spark_jobs.formats import registry_client
from spark_jobs.formats.registry import (
    VARIABLE,
    RegisteredSchema,
    Registry,
    RegistryProblem,
    registry_settings,
)
from tests.helpers.secured_broker import make_certificates
from tests.helpers.timeline import ROOT

TYPES, ID, GUID = "/schemas/types", "/schemas/ids/7", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
UNKNOWN = (404, {"error_code": 40403, "message": "Schema 7 not found"})
NO_SUCH_PATH = (404, {"error_code": 404, "message": "HTTP 404 Not Found"})
SCHEMA = (200, {"schema": '"string"'})
STRING = RegisteredSchema("AVRO", '"string"')


class Server:
    """Answers by `answers`: path -> (status, body), with headers behind them, or a function that gets the handler; anything else is UNKNOWN."""

    def __init__(self):
        self.answers = {TYPES: (200, ["AVRO", "JSON", "PROTOBUF"])}
        self.asked, self.headers = [], []
        told = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                path = self.path.partition("?")[0]
                told.asked.append(self.path)
                told.headers.append(dict(self.headers))
                answer = told.answers.get(path, UNKNOWN)
                if callable(answer):
                    self.close_connection = True
                    answer(self)
                    return
                status, body, *headers = answer
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in [("Content-Length", str(len(content))), *headers]:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @contextmanager
    def running(self):
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()


class Kept(dict):
    """A cache in memory."""

    read = dict.get
    write = dict.__setitem__


@pytest.fixture
def server():
    with Server().running() as running:
        yield running


@pytest.fixture
def impatient(monkeypatch):
    """A try or two."""
    monkeypatch.setattr(registry_client, "PATIENCE_S", 0.4)
    monkeypatch.setattr(registry_client, "_FIRST_PAUSE_S", 0.3)


def registry_of(url, cache=None, **settings):
    return Registry({"url": url} | settings, Kept() if cache is None else cache)


def problem_of(registry, kind, key=7):
    """The line of what asking for a schema raises; it is one line and tells no secret."""
    with pytest.raises(kind) as raised:
        registry.schema(key)
    line = str(raised.value)
    assert type(raised.value) is kind and "\n" not in line and line.isprintable() and "p4ss" not in line and len(line) < 600
    return line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "PAIRING_SCHEMA_REGISTRY is not set: create the connection schema_registry_default, or give"),
        ("{p4ss", "PAIRING_SCHEMA_REGISTRY is not JSON: "),
        ('["p4ss"]', "PAIRING_SCHEMA_REGISTRY has no url; "),
        ("{}", "PAIRING_SCHEMA_REGISTRY has no url; "),
        ('{"url": 1}', "PAIRING_SCHEMA_REGISTRY has no url; "),
        *(
            (json.dumps({"url": url}), "the url in PAIRING_SCHEMA_REGISTRY is refused: give http:// or https://")
            for url in ["", "mock://p4ss", "r:8081", "http://u:p4ss@r", "http://r:8081,", "http://r?p4ss", "http://r:x", "http://r\nq", "http:///p4ss"]
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used(text, line, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(NeedsOperator) as refused:
        registry_settings()
    assert str(refused.value).startswith(line) and "p4ss" not in str(refused.value) and "\n" not in str(refused.value)


def test_settings(monkeypatch):
    given = {"url": "https://one:8081, http://[::1]:2/apis/ccompat/v7", "basic.auth.user.info": "u:p"}
    monkeypatch.setenv(VARIABLE, json.dumps(given))
    assert registry_settings() == given


@pytest.mark.parametrize(
    "settings",
    [
        {"user": "p4ss"},
        {"basic.auth.user.info": "p4ss"},
        {"ssl.key.location": "/p4ss"},
        {"ssl.ca.location": "/nowhere"},
        {"proxy": "p4ss"},
        {"bearer.auth.credentials.source": "p4ss"},
        {"max.retries": "p4ss"},
    ],
)
def test_settings_that_the_client_refuses(settings, server):
    line = problem_of(registry_of(server.url, **settings), NeedsOperator)
    assert line.startswith("a setting of schema_registry_default is refused by the client: ")
    assert server.asked == []


def test_a_schema_is_asked_for_once(server):
    server.answers[ID] = SCHEMA
    cache = Kept()
    registry = registry_of(server.url, cache)
    assert server.asked == [], "nothing is asked before it is needed"
    assert [registry.schema(7) for _ in range(3)] == [STRING] * 3
    assert server.asked == [ID]
    # A job later.
    assert registry_of(server.url + "/", cache).schema(7) == STRING and server.asked == [ID]
    # Another registry's 7 is not this one's.
    server.answers["/other" + ID] = (200, {"schema": '"int"'})
    assert registry_of(server.url + "/other", cache).schema(7) == RegisteredSchema("AVRO", '"int"')
    assert len(cache) == 2 and all(name.replace("-", "").replace(".", "").isalnum() for name in cache)


def test_threads_ask_once(server):
    server.answers[ID] = lambda handler: (time.sleep(0.2), answer(handler, SCHEMA[1]))
    registry, found = registry_of(server.url), []
    threads = [threading.Thread(target=lambda: found.append(registry.schema(7))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [STRING] * 4 and server.asked == [ID]


def answer(handler, body, length=None):
    content = json.dumps(body).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(length or len(content)))
    handler.end_headers()
    handler.wfile.write(content)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"{}", b'{"kind": "AVRO", "text": "x", "references": [1]}'])
def test_a_cache_that_is_not_whole_is_written_anew(content, server):
    server.answers[ID] = SCHEMA
    cache = Kept()
    assert registry_of(server.url, cache).schema(7) == STRING
    (name, whole), cache[name] = cache.popitem(), content
    assert registry_of(server.url, cache).schema(7) == STRING and cache[name] == whole


def test_guids(server):
    server.answers[f"/schemas/guids/{GUID}"] = SCHEMA
    cache = Kept()
    assert registry_of(server.url, cache).schema(GUID) == STRING
    assert registry_of("http://127.0.0.1:9", cache).schema("../ids/7") is None
    assert registry_of(server.url, cache).schema(GUID) == STRING and len(server.asked) == 1


def references(*names):
    return [{"name": f"{name}.proto", "subject": f"{name}/x", "version": 2} for name in names]


def versions(server, **needs):
    """Subjects `<name>/x`, version 2, with what each refers to."""
    for name, others in needs.items():
        body = {"schema": f"text of {name}", "schemaType": "PROTOBUF", "references": references(*others)}
        server.answers[f"/subjects/{name}%2Fx/versions/2"] = (200, body | {"id": 1, "version": 2, "subject": name})


def test_references_come_after_what_they_refer_to(server):
    server.answers[ID] = (200, {"schema": "s", "schemaType": "PROTOBUF", "references": references("a", "b")})
    versions(server, a=["b", "c"], b=["c"], c=[])
    cache = Kept()
    expected = RegisteredSchema("PROTOBUF", "s", tuple((f"{name}.proto", f"text of {name}") for name in "cba"))
    assert registry_of(server.url, cache).schema(7) == expected
    assert len(server.asked) == 4 and all("deleted=true" in path for path in server.asked if "subjects" in path)
    # With all that it needs.
    assert registry_of(server.url, cache).schema(7) == expected and len(server.asked) == 4


def test_references_in_a_circle_and_without_an_end(server, monkeypatch):
    monkeypatch.setattr(registry_module, "_MOST_REFERENCES", 20)
    server.answers[ID] = (200, {"schema": "s", "schemaType": "PROTOBUF", "references": references("a")})
    versions(server, a=["b"], b=["a"])
    assert [name for name, _ in registry_of(server.url).schema(7).references] == ["b.proto", "a.proto"]
    versions(server, **{f"x{number}": [f"x{number + 1}"] for number in range(25)}, x25=[])
    server.answers[ID] = (200, {"schema": "s", "references": references("x0")})
    assert registry_of(server.url).schema(7) is None
    versions(server, x19=[])
    assert len(registry_of(server.url).schema(7).references) == 20


def test_a_schema_without_one_of_its_references_is_unknown(server):
    server.answers[ID] = (200, {"schema": "s", "references": references("a", "gone")})
    versions(server, a=[])
    server.answers["/subjects/gone%2Fx/versions/2"] = (404, {"error_code": 40402, "message": "Version 2 not found."})
    cache = Kept()
    assert registry_of(server.url, cache).schema(7) is None and cache == {}


@pytest.mark.parametrize(
    "said",
    [UNKNOWN, NO_SUCH_PATH, (404, b"<html>"), (400, {"error_code": 400, "message": "no int"}), (422, {"error_code": 42201, "message": "no id"})],
)  # fmt: skip
def test_an_unknown_id_is_asked_for_once_in_a_job_and_again_in_the_next(said, server):
    server.answers[ID] = said
    cache = Kept()
    registry = registry_of(server.url, cache)
    assert [registry.schema(7), registry.schema(7)] == [None, None]
    assert server.asked.count(ID) == 1 and cache == {}
    server.answers[ID] = SCHEMA
    assert registry.schema(7) is None and registry_of(server.url, cache).schema(7) == STRING


def test_what_is_no_id_is_not_asked_for(server):
    registry = registry_of(server.url)
    for key in (-1, 2**31, 2**32 - 1, "", "x", GUID.upper(), GUID.replace("-", ""), f"{{{GUID}}}", "7"):
        assert registry.schema(key) is None
    assert server.asked == []


def test_ids_that_nobody_gave_are_no_flood_of_requests(server):
    server.answers[ID] = SCHEMA
    server.answers["/schemas/ids/8"] = SCHEMA
    cache = Kept()
    assert registry_of(server.url, cache).schema(8) == STRING
    del server.asked[:]
    registry = Registry({"url": server.url}, cache, vain_requests=20)
    assert all(registry.schema(1000 + number) is None for number in range(30))
    assert len(server.asked) == 20
    assert registry.schema(7) is None and registry.schema(8) == STRING, "what is kept needs no request"
    assert len(server.asked) == 20


def test_a_registry_that_nobody_runs(impatient):
    url = f"http://127.0.0.1:{free_port()}"
    line = problem_of(registry_of(url, **{"basic.auth.user.info": "u:p4ss"}), RegistryProblem)
    assert line.startswith(f"the schema registry at {url} cannot be reached (ConnectError: ")
    assert problem_of(registry_of("http://nowhere.invalid:1"), RegistryProblem).startswith(
        "the schema registry at http://nowhere"
    )


def test_a_registry_comes_back_within_its_patience(server):
    states = [(503, b"away"), (500, {"error_code": 50001, "message": "p4ss"}), (429, b"slow down"), SCHEMA]

    def next_one(handler):
        status, body = states.pop(0)
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    server.answers[ID] = next_one
    assert registry_of(server.url).schema(7) == STRING and len(server.asked) == 4


@pytest.mark.parametrize("status", [408, 429, 500, 501, 502, 503, 504])
def test_a_registry_that_fails(status, server, impatient):
    server.answers[ID] = (status, b"p4ss\n\x1b[31m" * 1000)
    line = problem_of(registry_of(server.url), RegistryProblem)
    assert line.startswith(f"the schema registry at {server.url} fails (HTTP status {status}): ")
    server.answers[ID] = SCHEMA
    assert registry_of(server.url).schema(7) == STRING


@pytest.mark.parametrize("status", [401, 403])
def test_a_login_that_is_refused(status, server):
    server.answers[ID] = (status, {"error_code": status, "message": "p4ss"})
    line = problem_of(registry_of(server.url, **{"basic.auth.user.info": "u:p4ss"}), NeedsOperator)
    assert line.startswith(f"the schema registry at {server.url} refuses the login (HTTP status {status}): ")
    assert "connection schema_registry_default" in line and len(server.asked) == 1


def test_the_login_is_sent(server):
    server.answers[ID] = SCHEMA
    registry_of(server.url, **{"basic.auth.user.info": "u:p4ss"}).schema(7)
    token = {"credentials.source": "STATIC_TOKEN", "token": "p4ss", "logical.cluster": "lsrc-1"}
    registry_of(server.url, **{f"bearer.auth.{name}": value for name, value in token.items()}).schema(7)
    assert [headers["Authorization"] for headers in server.headers] == ["Basic dTpwNHNz", "Bearer p4ss"]


@pytest.mark.parametrize(
    "said",
    [
        (200, b"<html>p4ss"),
        (200, b""),
        (204, b""),
        (200, []),
        (200, {"id": 7}),
        (200, {"schema": 7}),
        (200, {"schema": "x", "references": 7}),
        (200, {"schema": "x", "references": [7]}),
        (200, b'{"schema": "\xff"}'),
        (200, b"[" * 100_000),
        (200, gzip.compress(b'{"schema": "x"}'), ("Content-Encoding", "gzip")),
        (301, b"", ("Location", ID)),
        (307, b"", ("Location", "http://127.0.0.1:9/")),
        (200, b" " * (registry_client.MOST_BYTES + 1)),
    ],
    ids=range(14),
)
def test_an_answer_that_is_no_schema(said, server, impatient):
    server.answers[ID] = said
    line = problem_of(registry_of(server.url), RegistryProblem)
    assert (
        line.startswith(f"the schema registry at {server.url} does not answer as one (")
        and "schema_registry_default" in line
    )


def test_a_wrong_path_is_not_taken_for_unknown_schemas(server, impatient):
    server.answers["/wrong/schemas/ids/7"] = server.answers["/wrong/schemas/types"] = NO_SUCH_PATH
    line = problem_of(registry_of(server.url + "/wrong"), RegistryProblem)
    assert "does not answer as one (HTTP status 404)" in line


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def dripping(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def silent(handler):
    time.sleep(3)


def cut(handler):
    answer(handler, SCHEMA[1], length=100)


@pytest.mark.parametrize(
    ("way", "cause"),
    [
        (endless, "does not answer as one (more than 16777216 bytes)"),
        (dripping, "does not answer as one (a body that does not end)"),
        (silent, "cannot be reached (ReadTimeout: "),
        (cut, "cannot be reached (RemoteProtocolError: "),
        (lambda handler: None, "cannot be reached (RemoteProtocolError: "),
    ],
)
def test_a_body_without_an_end(way, cause, server, impatient):
    server.answers[ID] = way
    begin = time.monotonic()
    assert cause in problem_of(registry_of(server.url), RegistryProblem)
    assert time.monotonic() - begin < 10


def test_patience_ends_within_twenty_seconds():
    # The last try begins before its end; each of connecting, waiting and reading takes its own timeout.
    for count in (1, 2, 3, 4):
        client = registry_client.RegistryClient({"url": ",".join(["http://127.0.0.1:9"] * count)})
        timeout = client._client._rest_client.timeout
        assert registry_client.PATIENCE_S + count * 3 * timeout <= 20


def test_the_next_address_answers(server, impatient):
    server.answers[ID] = SCHEMA
    down = f"http://127.0.0.1:{free_port()}"
    assert registry_of(f"{down}, {server.url}/").schema(7) == STRING
    line = problem_of(registry_of(f"{down},{down}"), RegistryProblem)
    assert line.startswith(f"the schema registry at {down},{down} cannot be reached")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@contextmanager
def by_tls(certificates, **wanted):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    for name, value in wanted.items():
        setattr(context, name, value)
    if wanted:
        context.load_verify_locations(certificates / "authority.pem")
    server = Server()
    server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
    server.url = server.url.replace("http:", "https:")
    server.answers[ID] = SCHEMA
    with server.running():
        yield server


def test_certificates(certificates, impatient):
    with by_tls(certificates) as server:
        assert registry_of(server.url, **{"ssl.ca.location": str(certificates / "authority.pem")}).schema(7) == STRING
        line = problem_of(registry_of(server.url), NeedsOperator)
        assert line.startswith(f"the schema registry at {server.url} cannot be reached by TLS (SSLCertVerificationError: ")
        assert "ssl.ca.location" in line and len(server.asked) == 1
        problem_of(registry_of(server.url.replace("https", "http")), RegistryProblem)
    with by_tls(certificates, verify_mode=ssl.CERT_REQUIRED) as server:
        trusted = {"ssl.ca.location": str(certificates / "authority.pem")}
        assert "by TLS" in problem_of(registry_of(server.url, **trusted), NeedsOperator)


def test_https_to_what_speaks_http(server):
    line = problem_of(registry_of(server.url.replace("http", "https")), NeedsOperator)
    assert "cannot be reached by TLS (SSLError: " in line


def test_a_connection_that_ends_in_the_handshake_is_tried_again(impatient):
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        stack.callback(listener.shutdown, socket.SHUT_RDWR)

        def hang_up():
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        problem_of(registry_of(f"https://127.0.0.1:{listener.getsockname()[1]}"), RegistryProblem)


def test_what_is_kept_needs_neither_registry_nor_client(server):
    server.answers[ID] = SCHEMA
    cache = Kept()
    registry_of(server.url, cache).schema(7)
    code = (
        "import sys\n"
        "from spark_jobs.formats.registry import Registry\n"
        f"class Kept(dict): read = dict.get\n"
        f"found = Registry({{'url': {server.url!r}}}, Kept({dict(cache)!r})).schema(7)\n"
        "print(found.text, [name for name in sys.modules if name.split('.')[0] in ('confluent_kafka', 'httpx', 'httpx2')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == '"string" []\n' and server.asked == [ID]
