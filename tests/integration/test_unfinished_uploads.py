"""Uploads that were begun and never completed are counted on an S3 store, and no store is an error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import obstore
import pytest

from include.config.store import Store
from include.local.process import free_port
from include.local.store import BUCKET
from spark_jobs.maintenance import uploads
from spark_jobs.maintenance.uploads import unfinished_uploads

pytestmark = pytest.mark.integration

PART = 5 * 1024 * 1024


@pytest.fixture
def place(s3):
    return Store(f"s3://{BUCKET}/unfinished/lake/calls", s3.options)


@pytest.fixture
def begun(place):
    """Three uploads at the place, and one of its neighbour `calls2`."""
    places = [place, place, place.at("raw"), Store(f"{place.uri}2", place.options)]
    writers = [obstore.open_writer(each.client, f"{number}.parquet", buffer_size=PART) for number, each in enumerate(places)]
    for writer in writers:
        for _ in range(3):
            writer.write(bytes(PART))
    yield writers
    for writer in writers:
        writer.close()


def test_what_was_begun_below_the_place_is_counted(place, begun, monkeypatch):
    found = unfinished_uploads(place)
    assert found is not None and (found.number, found.more) == (3, False)
    assert timedelta(seconds=-2) <= datetime.now(UTC) - found.oldest < timedelta(minutes=1)
    assert str(found) == f"unfinished uploads 3, oldest {found.oldest:%Y-%m-%d %H:%M:%S}"
    assert obstore.list(place.client).collect() == [], "no listing of objects shows them"
    monkeypatch.setattr(uploads, "_AT_MOST", 2)
    assert str(unfinished_uploads(place)).startswith("unfinished uploads 2 or more, oldest ")


def test_what_was_completed_is_not_counted(place, begun):
    for writer in begun:
        writer.close()
    begun.clear()
    assert unfinished_uploads(place) is None


def test_a_store_that_does_not_say_is_no_error(place, begun, tmp_path):
    wrong = place.options | {"aws_secret_access_key": "wrong"}
    away = place.options | {"aws_endpoint_url": f"http://127.0.0.1:{free_port()}"}
    assert unfinished_uploads(Store(place.uri, wrong)) is None
    assert unfinished_uploads(Store(place.uri, away)) is None
    assert unfinished_uploads(Store(f"s3://no-such-bucket/{BUCKET}", place.options)) is None
    assert unfinished_uploads(Store(str(tmp_path))) is None
    assert unfinished_uploads(Store("az://box/calls", {"azure_storage_account_name": "a"})) is None
    assert unfinished_uploads(Store("gs://lake/calls")) is None


def test_where_the_store_is_may_be_said_by_other_options(place, begun):
    endpoint = place.options["aws_endpoint_url"]
    options = place.options | {"aws_virtual_hosted_style_request": "false", "aws_endpoint": endpoint}
    del options["aws_endpoint_url"]
    assert unfinished_uploads(Store(place.uri, options)).number == 3
