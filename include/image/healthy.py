"""Healthcheck of a container: fetches local pages and compares fields of their JSON, or connects to a port.

    python -m include.image.healthy http://127.0.0.1:8080/health scheduler.status=healthy
    python -m include.image.healthy tcp://127.0.0.1:15002

Dots lead into nested objects. Without fields any answer will do. A second address with its fields may follow. Exit status 0 if each page
answers with a status below 400 and all fields agree, or somebody listens on the port; else 1 with one line for the first that does not. The
image has no curl, which could not compare fields either.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from typing import Any
from urllib.parse import urlsplit

# Shorter than the timeout of the healthchecks, so that the line below reaches `docker inspect`.
TIMEOUT_SECONDS = 5.0


def disagreement(page: Any, expected: list[str]) -> str | None:
    """The first `field=value` that differs, with the value of the page; None if all agree.

    >>> disagreement({"scheduler": {"status": "healthy"}}, ["scheduler.status=healthy"])
    >>> disagreement({"scheduler": {"status": "unhealthy"}}, ["scheduler.status=healthy"])
    "scheduler.status is 'unhealthy', not 'healthy'"
    >>> disagreement({}, ["scheduler.status=healthy"])
    "scheduler.status is None, not 'healthy'"
    """
    for field, value in (text.split("=", 1) for text in expected):
        found = page
        for name in field.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if found != value:
            return f"{field} is {found!r}, not {value!r}"
    return None


def main(arguments: list[str]) -> int:
    """`arguments`: addresses, each with any number of `field=value` behind it. Returns the exit status."""
    asked: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if "://" in argument:
            asked.append((argument, []))
        else:
            asked[-1][1].append(argument)
    for url, expected in asked:
        if problem := problem_of(url, expected):
            print(f"{url}: {problem}")
            return 1
    return 0


def problem_of(url: str, expected: list[str]) -> str | None:
    """What is wrong with one address; None if nothing is."""
    place = urlsplit(url)
    try:
        if place.scheme == "tcp":
            socket.create_connection((place.hostname, place.port), timeout=TIMEOUT_SECONDS).close()
        else:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
                return disagreement(json.load(answer), expected) if expected else None
    except (OSError, ValueError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
