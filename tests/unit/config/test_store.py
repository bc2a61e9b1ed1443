"""Where a warehouse may lie, with which options it is reached, and that no secret is repeated where either is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import obstore.store
import pytest

from include.config import store as stores
from include.config.store import (
    OPTIONS_VARIABLE,
    WAREHOUSE_VARIABLE,
    Store,
    StoreRefused,
    checked_root,
    etag,
    etags,
    exists,
    normal_options,
    pages_store,
    read_text,
    store_options,
    warehouse_root,
    warehouse_store,
    write_text,
)
from include.local.machine import ROOT

SECRET = "wJalrXUtnFEMI"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or name in (OPTIONS_VARIABLE, WAREHOUSE_VARIABLE):
            monkeypatch.delenv(name)


# Places


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("/tmp/warehouse", "/tmp/warehouse"),
        ("/tmp/warehouse//", "/tmp/warehouse"),
        ('/tmp/a b/ünïcode\'s "house"#1?', '/tmp/a b/ünïcode\'s "house"#1?'),
        ("relative", f"{os.getcwd()}/relative"),
        ("file:///tmp/a%20b", "/tmp/a b"),
        ("file:/tmp/a", "/tmp/a"),
        ("/a:/b", "/a:/b"),
        ("s3://lake", "s3://lake"),
        ("s3://lake/", "s3://lake"),
        ("s3a://lake/events/", "s3://lake/events"),
        ("S3://lake/events", "s3://lake/events"),
        ("s3://my.lake-2_x/a=1/b.c/d_e-f", "s3://my.lake-2_x/a=1/b.c/d_e-f"),
        ("az://container/path", "az://container/path"),
        ("gs://bucket/path", "gs://bucket/path"),
        ("abfss://box@account.dfs.core.windows.net/path", "abfss://box@account.dfs.core.windows.net/path"),
        ("abfs://box@account.dfs.core.windows.net", "abfss://box@account.dfs.core.windows.net"),
        ("abfss://container/path", "abfss://container/path"),
    ],
)
def test_a_place_is_written_in_one_way(given, root):
    assert checked_root(given) == root
    assert checked_root(root) == root


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("", "name a folder or URI"),
        ("///", "name a folder or URI"),
        ("/tmp/a\nb", "without control characters"),
        ("s3://lake/a\tb", "without control characters"),
        *((f"/tmp/a{sign}b", "name a folder without any of") for sign in "%\\[]^|"),
        ("file:///tmp/a%5Bb", "name a folder without any of"),
        ("hdfs://name/path", "hdfs://… is refused: use a folder, s3://, az://, abfss:// or gs://"),
        ("http://lake/path", "http://… is refused"),
        ("adl://lake/path", "adl://… is refused"),
        ("s3:/lake/path", "without user, password or port"),
        ("s3:///path", "without user, password or port"),
        ("s3://lake:9000/path", "without user, password or port"),
        ("s3://l ake/path", "without user, password or port"),
        ("s3://läke/path", "without user, password or port"),
        ("abfss://box@account@x/path", "abfss://container@account.dfs.core.windows.net/path"),
        ("s3://lake/a//b", "with letters, digits and"),
        *((f"s3://lake/a{sign}b", "with letters, digits and") for sign in '%\\#?*[]{}^|"<>~`'),
        ("gs://lake/path?x=1", "without ? or #; options go into the connection warehouse_default"),
    ],
)
def test_a_place_that_would_not_be_the_same_for_all_is_refused(given, line):
    with pytest.raises(StoreRefused) as refused:
        checked_root(given)
    assert line in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        f"s3://AKIA:{SECRET}@lake/path",
        f"s3://{SECRET}@lake/path",
        f"az://account:{SECRET}@container/path",
        f"gs://key:{SECRET}@bucket",
        f"abfss://box:{SECRET}@account.dfs.core.windows.net/path",
        f"s3://lake/path?aws_secret_access_key={SECRET}",
        f"s3://lake/path#{SECRET}",
        f"az://container/path?sig={SECRET}",
        f"s3a://AKIA:{SECRET}/x@lake/path",
        f"https://AKIA:{SECRET}@lake.s3.amazonaws.com/path",
        f"wasbs://box:{SECRET}@account.blob.core.windows.net",
        f"s3://AKIA:{SECRET}@lake/path\n",
        f"s3://AKIA:{SECRET}@[lake/path",
        f"s3://AKIA:{SECRET}\u2100@lake/path",
    ],
)
def test_credentials_in_a_place_are_refused_and_not_repeated(given):
    with pytest.raises(StoreRefused) as refused:
        checked_root(given)
    assert SECRET not in str(refused.value) and "AKIA" not in str(refused.value)


def test_the_place_of_the_environment(monkeypatch, tmp_path):
    assert warehouse_root() == str(ROOT / ".local" / "warehouse")
    monkeypatch.setenv(WAREHOUSE_VARIABLE, "")
    assert warehouse_root() == str(ROOT / ".local" / "warehouse")
    monkeypatch.setenv(WAREHOUSE_VARIABLE, f"{tmp_path}/")
    assert warehouse_store() == Store(str(tmp_path))
    assert warehouse_store("s3a://lake") == Store("s3://lake")
    assert pages_store("calls") == Store(f"{tmp_path}/calls/quality")


def test_places_below_a_place_have_its_options():
    store = Store("s3://lake/events", {"aws_region": "eu"})
    assert store.at("calls", "raw") == Store("s3://lake/events/calls/raw", {"aws_region": "eu"})
    assert (store.folder, store.delta_options) == (None, {"aws_region": "eu", "max_retries": "100", "retry_timeout": "60s"})
    assert Store("s3://lake", {"max_retries": "3"}).delta_options == {"max_retries": "3", "retry_timeout": "60s"}
    assert (Store("/a/b").folder, Store("/a/b").delta_options) == (Path("/a/b"), None)
    assert store.made() is store


# Options


@pytest.mark.parametrize(
    ("environment", "given", "options"),
    [
        ({}, None, {}),
        ({}, "", {}),
        ({}, {"AWS_REGION": "eu", "Aws_Endpoint_Url": "http://x"}, {"aws_region": "eu", "aws_endpoint_url": "http://x"}),
        ({"AWS_REGION": "us"}, {"aws_region": "eu"}, {"aws_region": "eu"}),
        (
            {"AWS_REGION": "us", "AWS_SESSION_TOKEN": "t"},
            {"aws_region": "eu"},
            {"aws_region": "eu", "aws_session_token": "t"},
        ),
        ({"AWS_ALLOW_HTTP": "true"}, {"allow_http": False}, {"allow_http": "false"}),
        ({"AWS_ENDPOINT_URL_S3": "s3", "AWS_ENDPOINT_URL": "all"}, None, {"aws_endpoint_url": "s3"}),
        ({"AWS_REGION": ""}, None, {}),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_CLIENT_ID": "i"},
            None,
            {"azure_storage_account_name": "a", "azure_client_id": "i"},
        ),
        ({"GOOGLE_SERVICE_ACCOUNT": "/key.json"}, None, {"google_service_account": "/key.json"}),
        # Of this machine alone, and of other programs.
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AZURE_FEDERATED_TOKEN_FILE": "/t", "AWS_PROFILE": "p"}, None, {}),
        ({"AWS_REGIONAL": "x", "MY_AWS_REGION": "x", "aws_region": "x"}, None, {}),
    ],
)
def test_options_are_those_of_the_environment_and_first_of_our_variable(environment, given, options, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if given is not None:
        monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps(given) if isinstance(given, dict) else given)
    assert store_options() == options
    assert warehouse_store("s3://lake").options == options
    assert warehouse_store("/tmp").options == {}, "a folder needs none"


def test_options_that_are_given_come_before_those_of_the_environment(monkeypatch):
    monkeypatch.setenv(OPTIONS_VARIABLE, '{"aws_region": "eu", "max_retries": 3}')
    assert warehouse_store("s3://lake", {"aws_region": "us"}).options == {"aws_region": "us", "max_retries": "3"}
    assert warehouse_store("/tmp", {"aws_region": "us"}).options == {}
    assert pages_store("calls", "s3://lake", {"aws_region": "us"}).options["aws_region"] == "us"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        ({"AWS_ALLOW_HTTP": True, "timeout": "10s"}, {"allow_http": "true", "timeout": "10s"}),
        ({"azure_storage_allow_http": "TRUE"}, {"allow_http": "TRUE"}),
        ({"azure_proxy_url": "x", "google_max_retries": 4}, {"proxy_url": "x", "max_retries": "4"}),
        ({"Aws_Region": "EU"}, {"aws_region": "EU"}),
        # Without its prefix it would be another option.
        ({"azure_storage_use_emulator": False}, {"azure_storage_use_emulator": "false"}),
    ],
)
def test_options_have_one_name_each(given, options):
    assert normal_options(given) == options


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (f'{{"aws_secret_access_key": "{SECRET}"', "cannot be read as JSON"),
        (SECRET, "cannot be read as JSON"),
        (f'["{SECRET}"]', "must be a JSON object of texts"),
        (f'{{"aws_secret_access_key": ["{SECRET}"]}}', "must be a JSON object of texts"),
        (f'{{"aws_secret_access_key": {{"{SECRET}": 1}}}}', "must be a JSON object of texts"),
        (f'{{"aws_secret_access_key": "{SECRET}", "x": null}}', "must be a JSON object of texts"),
    ],
)
def test_options_that_cannot_be_read_are_refused_and_not_repeated(given, line, monkeypatch):
    monkeypatch.setenv(OPTIONS_VARIABLE, given)
    with pytest.raises(StoreRefused, match=f"^{OPTIONS_VARIABLE} {line}") as refused:
        warehouse_store("s3://lake")
    assert SECRET not in str(refused.value)
    assert warehouse_store("/tmp") == Store("/tmp")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_client_takes_both_of_amazons_variables_of_an_endpoint(name, monkeypatch):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert warehouse_store("s3://endpoints").client.config["endpoint"] == "http://127.0.0.1:9"


def test_a_place_does_not_show_its_options():
    assert repr(Store("s3://lake", {"aws_secret_access_key": SECRET})) == "Store(uri='s3://lake')"


# The client


@pytest.mark.parametrize(
    ("uri", "options", "line"),
    [
        ("s3://lake", {"aws_sekret_access_key": SECRET}, "has an option aws_sekret_access_key that it does not know"),
        (
            "s3://lake",
            {"azure_storage_account_key": SECRET},
            "has an option azure_storage_account_key that it does not know",
        ),
        # With it a commit would not be a put of what must not exist yet.
        (
            "s3://lake",
            {"aws_s3_allow_unsafe_rename": "true"},
            "has an option aws_s3_allow_unsafe_rename that it does not know",
        ),
        ("s3://lake", {"allow_http": SECRET}, "has options that do not go together"),
        ("s3://lake", {"max_retries": SECRET}, "has options that do not go together"),
        ("s3://lake", {"retry_timeout": SECRET}, "has options that do not go together"),
        ("s3://lake", {"retry_timeout": ""}, "has options that do not go together"),
        ("s3://lake", {"retry_timeout": "10"}, "has options that do not go together"),
        (
            "az://box",
            {"azure_storage_account_name": "a", "azure_storage_account_key": f"{SECRET}!"},
            "has options that do not go together",
        ),
        ("az://box", {}, "has options that do not go together"),
        ("gs://lake", {"google_service_account_key": f"{{{SECRET}"}, "has options that do not go together"),
    ],
)
def test_an_option_that_is_not_known_is_refused_by_its_name_and_without_its_value(uri, options, line):
    with pytest.raises(StoreRefused) as refused:
        assert Store(uri, options).client
    assert (
        str(refused.value)
        == f"the store of {uri} cannot be used: it {line}: see warehouse_default, or {OPTIONS_VARIABLE} outside Airflow"
    )
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


def test_options_of_the_client_are_told_apart_from_those_of_the_store(monkeypatch):
    asked = {}
    monkeypatch.setattr(obstore.store, "from_url", lambda uri, **named: asked.update(named, uri=uri))
    options = {"aws_region": "eu", "allow_http": "true", "timeout": "10s", "max_retries": "3", "retry_timeout": "2m"}
    assert Store("s3://a-lake-of-its-own", options).client is None
    assert asked == {
        "uri": "s3://a-lake-of-its-own",
        "config": {"aws_region": "eu"},
        "client_options": {"allow_http": "true", "timeout": "10s"},
        "retry_config": {"max_retries": 3, "retry_timeout": timedelta(minutes=2)},
    }


def test_places_with_other_options_have_other_clients():
    one, two = (Store("s3://lake/events", {"aws_region": region}) for region in ("eu", "us"))
    assert one.client is Store("s3://lake/events", {"aws_region": "eu"}).client
    assert one.client is not two.client and (one.client.config["region"], two.client.config["region"]) == ("eu", "us")


def test_paths_of_the_client_begin_at_the_place():
    assert (Store("s3://lake/a/b").client.prefix, Store("gs://lake").client.prefix) == ("a/b", None)


# Texts


def test_a_text_is_there_once_it_is_written(tmp_path):
    store = Store(f"{tmp_path}/a b/quality")
    assert (read_text(store, "x.html"), exists(store, "x.html")) == (None, False)
    write_text(store, "runs/x.json", "ä\n")
    assert (read_text(store, "runs/x.json"), exists(store, "runs/x.json")) == ("ä\n", True)
    assert (tmp_path / "a b/quality/runs/x.json").read_bytes() == "ä\n".encode()
    write_text(store, "runs/x.json", "")
    assert (read_text(store, "runs/x.json"), exists(store, "runs/x.json")) == ("", True)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["x.json"]


def test_every_write_leaves_another_tag(tmp_path):
    store = Store(f"{tmp_path}/quality")
    assert (etag(store, "x"), etags(store)) == (None, {})
    seen = []
    # The same length at the same moment is another text, too.
    for text in ("a", "b", "c", ""):
        write_text(store, "x", text)
        seen.append(etag(store, "x"))
        assert etags(store) == {"x": seen[-1]}
    assert len({*seen}) == 4 and None not in seen


def test_a_folder_that_is_not_there_is_made_by_who_writes_alone(tmp_path):
    store = Store(f"{tmp_path}/quality")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/quality is not there"):
        assert store.client
    read_text(store, "x")
    assert not Path(store.uri).exists()
    write_text(store, "x", "")
    assert Path(store.uri).is_dir()


def test_a_reader_sees_the_old_text_or_the_new_one(tmp_path):
    store, texts = Store(str(tmp_path)), [letter * 300_000 for letter in "ab"]
    write_text(store, "x", texts[0])
    code = "import sys; from include.config.store import *\nfor n in range(300): write_text(Store(sys.argv[1]), 'x', 'ab'[n % 2] * 300_000)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as writer:
        seen = set()
        while writer.poll() is None:
            seen.add(read_text(store, "x"))
    assert writer.returncode == 0 and seen <= set(texts)


def test_whoever_only_names_a_place_does_not_load_the_client():
    """DAG files do, and are parsed again and again."""
    code = "import sys; from include.config.store import warehouse_store; warehouse_store('s3://a'); print('obstore' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "False\n"


def test_every_scheme_has_a_client_of_its_kind():
    options = {"az": {"azure_storage_account_name": "a"}}
    kinds = {
        scheme: type(Store(f"{scheme}://lake/x", options.get(scheme, {})).client).__name__ for scheme in ("s3", "az", "gs")
    }
    assert kinds == {"s3": "S3Store", "az": "AzureStore", "gs": "GCSStore"}
    assert set(stores._SCHEMES.values()) == {*kinds, "abfss"}
    azure = Store("abfss://box@account.dfs.core.windows.net/x", {"azure_storage_account_key": "c2VjcmV0"}).client
    assert (type(azure).__name__, azure.config["container_name"], azure.prefix) == ("AzureStore", "box", "x")
