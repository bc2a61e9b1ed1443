"""Uploads that were begun in an S3 store and never completed: no listing of objects shows their parts, and they are paid for."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import obstore
from obstore.exceptions import BaseError

from include.config.store import Store, StoreRefused

_S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_VALID_FOR = timedelta(minutes=5)
_WITHIN_S = 20.0
_AT_MOST = 1000
# Of the store's options these say where it is; the signed URL says it instead.
_WHERE = ("endpoint", "endpoint_url", "virtual_hosted_style_request")


class UnfinishedUploads(NamedTuple):
    """How many uploads are unfinished, and when the oldest of them was begun (UTC). A store counts up to 1,000; then there may be `more`."""

    number: int
    oldest: datetime
    more: bool

    def __str__(self) -> str:
        number = f"{self.number}{' or more' if self.more else ''}"
        return f"unfinished uploads {number}, oldest {self.oldest:%Y-%m-%d %H:%M:%S}"


def unfinished_uploads(store: Store) -> UnfinishedUploads | None:
    """The unfinished uploads below the place; None if there are none, if the store is none of S3, or if it does not say."""
    if not store.uri.startswith("s3://"):
        return None
    parts = urlsplit(store.uri)
    prefix = parts.path.lstrip("/")
    asked = {"uploads": "", "prefix": f"{prefix}/" if prefix else "", "max-uploads": str(_AT_MOST)}
    try:
        url = _signed(Store(f"s3://{parts.netloc}", store.options), asked)
        with urllib.request.urlopen(url, timeout=_WITHIN_S) as answer:
            page = ElementTree.fromstring(answer.read())
        moments = (found.text or "" for found in page.iterfind(f"{_S3}Upload/{_S3}Initiated"))
        begun = [datetime.fromisoformat(moment).astimezone(UTC) for moment in moments]
    except (BaseError, OSError, StoreRefused, ValueError, ElementTree.ParseError):
        # The right to list uploads is one that jobs do not need.
        return None
    return UnfinishedUploads(len(begun), min(begun), page.findtext(f"{_S3}IsTruncated") == "true") if begun else None


def _signed(bucket: Store, asked: dict[str, str]) -> str:
    """A URL that asks the bucket for what has no call in the client, signed by the client: its credentials may be a role's, which no option has.

    The client signs URLs of objects only, endpoint/object. So its endpoint is made to end in a query whose last value the object becomes;
    stores pass over x-id, in which Amazon's own clients name the operation.
    """
    plain = obstore.sign(bucket.client, "GET", "ListMultipartUploads", _VALID_FOR)  # type: ignore[call-overload]
    address = plain.partition("?")[0].removesuffix("/ListMultipartUploads")
    others = {name: value for name, value in bucket.options.items() if name.removeprefix("aws_") not in _WHERE}
    endpoint = f"{address}?{urlencode(asked, quote_via=quote)}&x-id="
    options = others | {"aws_endpoint": endpoint, "aws_virtual_hosted_style_request": "true"}
    return obstore.sign(Store(bucket.uri, options).client, "GET", "ListMultipartUploads", _VALID_FOR)  # type: ignore[call-overload]
