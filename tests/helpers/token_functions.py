"""Functions that the setting `token_provider` may name: one that works, and some that do not."""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

not_a_function = "token"


def from_server(config: str) -> tuple[str, float]:
    """Asks the server that the file `config` describes."""
    known = json.loads(Path(config).read_text())
    login = base64.b64encode(f"{known['client']}:{known['secret']}".encode()).decode()
    form = urlencode({"grant_type": "client_credentials", "scope": known["scope"]}).encode()
    request = Request(known["url"], form, {"Authorization": f"Basic {login}"})
    with urlopen(request, timeout=10, context=ssl.create_default_context(cafile=known["ca"])) as answer:
        body = json.loads(answer.read())
    return body["access_token"], time.time() + body["expires_in"]


def in_milliseconds(_: str) -> tuple[str, float]:
    return "token", time.time() * 1000 + 60_000


def expired(_: str) -> tuple[str, float]:
    return "token", time.time() - 1


def only_the_token(_: str) -> str:
    return "token-that-nobody-may-see"


def empty(_: str) -> tuple[str, float]:
    return "", time.time() + 60


def swapped(_: str) -> tuple[float, str]:
    return time.time() + 60, "token-that-nobody-may-see"


def raises(config: str) -> tuple[str, float]:
    raise PermissionError(f"the server does not know {config}\nand more")
