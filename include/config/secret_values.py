"""Removes the values of secrets from texts that others wrote, such as an exception's.

A value is a secret by the name of its setting in PAIRING_KAFKA, PAIRING_STORE or PAIRING_SCHEMA_REGISTRY, or of its environment variable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping

HIDDEN = "…"
_SETTING = re.compile(
    r"password|secret|passphrase|jaas|credential|assertion|oauthbearer\.config|user\.info$|^proxy$|\.pem$|[._]token$|sas_key$|account_key$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"PASSWORD|SECRET|TOKEN|(ACCESS|ACCOUNT|FERNET|API)_KEY$|SQL_ALCHEMY_CONN$|PAIRING_ALERT_URL$")
# Variables that hold a client's settings as JSON.
_SETTINGS_IN = ("PAIRING_KAFKA", "PAIRING_STORE", "PAIRING_SCHEMA_REGISTRY")
_TOKEN = re.compile(r"(?<=[;&?/]token=)[^;&\s]+")
# A shorter line of a secret of several lines may be an ordinary text.
_SHORTEST_LINE = 16


def secret_settings(settings: Mapping[str, object]) -> set[str]:
    """The values of the secrets among a client's settings.

    >>> secret_settings({"bootstrap.servers": "b:1", "sasl.password": "p", "ssl.key.password": None})
    {'p'}
    >>> sorted(secret_settings({"url": "http://r:1", "basic.auth.user.info": "somebody:p"}))
    ['p', 'somebody:p']
    """
    found = {str(value) for name, value in settings.items() if _SETTING.search(name) and value not in (None, "")}
    # A login with its password: a text may have the password alone.
    pairs = {str(value).partition(":")[2] for name, value in settings.items() if name.endswith("user.info")}
    return found | pairs - {""}


def without_values(settings: Mapping[str, object], text: str) -> str:
    """A client's message about its settings without their values: a password may be in a setting where it does not belong.

    >>> without_values({"debug": "pa$$"}, 'Invalid value "pa$$" for configuration property "debug"')
    'Invalid value "…" for configuration property "debug"'
    """
    for value in {str(value) for value in settings.values() if value not in (None, "")}:
        text = re.sub(rf"(?<![\w.-]){re.escape(value)}(?![\w.-])", HIDDEN, text)
    return text


def without_secrets(text: str) -> str:
    """The text with an ellipsis in the place of every secret of this process."""
    for secret in sorted(set(_spellings()), key=len, reverse=True):
        # A short one may be part of an ordinary word.
        whole = len(secret) < 8
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text) if whole else text.replace(secret, HIDDEN)
    return text


def _spellings() -> Iterator[str]:
    """Every secret in the forms in which a text may contain it."""
    for secret in _secrets():
        yield secret
        yield " ".join(secret.split())
        yield json.dumps(secret)[1:-1]
        yield repr(secret)[1:-1]
        yield from (line for line in secret.splitlines() if len(line) >= _SHORTEST_LINE)


def _all_secrets(settings: Mapping[str, object]) -> set[str]:
    """Of one client, or of several by their connections."""
    of_others = [inner for inner in settings.values() if isinstance(inner, dict)]
    return secret_settings(settings).union(*map(secret_settings, of_others))


def _secrets() -> set[str]:
    found = {value for name, value in os.environ.items() if value and _VARIABLE.search(name)}
    found |= {match[0] for value in os.environ.values() for match in _TOKEN.finditer(value)}
    for variable in _SETTINGS_IN:
        try:
            settings = json.loads(os.environ.get(variable) or "{}")
        except ValueError:
            continue
        found |= _all_secrets(settings) if isinstance(settings, dict) else set()
    return found
