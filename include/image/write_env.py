"""Writes `.env` with fresh secrets for `docker compose`.

    python3 include/image/write_env.py

`docker compose` reads `.env` beside docker-compose.yaml by itself. Only the owner can read the file; git ignores it and the image leaves it out.
Of an existing file every line stays, and secrets that it lacks are added: the database keeps the password it was created with, and nothing that
was encrypted with another key could be read again. It needs only Python, because it runs before anything is installed.
"""

from __future__ import annotations

import base64
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

ENV_FILE = Path(__file__).resolve().parents[2] / ".env"


def fernet_key() -> str:
    """32 random bytes in URL-safe base64, as Airflow's encryption of connections requires."""
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


def password() -> str:
    """A random text of letters, digits, `-` and `_`: it becomes part of a database URL."""
    return secrets.token_urlsafe(24)


def signing_key() -> str:
    """A random text of more than the 64 bytes that the signature of Airflow's tokens (HS512) wants."""
    return secrets.token_urlsafe(64)


SECRETS: dict[str, Callable[[], str]] = {
    "POSTGRES_PASSWORD": password,
    "REDIS_PASSWORD": password,
    "AIRFLOW_FERNET_KEY": fernet_key,
    "AIRFLOW_JWT_SECRET": signing_key,
    "AIRFLOW_SECRET_KEY": password,
}


def write_env(path: Path) -> list[str]:
    """Adds the secrets that the file lacks, one `NAME=secret` a line, and returns their names; raises OSError."""
    # One call creates the file with its mode, so that others cannot read the secrets even for a moment.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "r+", encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
        known = {line.partition("=")[0].strip() for line in lines}
        missing = [name for name in SECRETS if name not in known]
        if missing and lines and not lines[-1].endswith("\n"):
            file.write("\n")
        file.writelines(f"{name}={SECRETS[name]()}\n" for name in missing)
    return missing


def main() -> int:
    """Returns the exit status: 1 with one line if `.env` cannot be read or written."""
    try:
        added = write_env(ENV_FILE)
    except OSError as error:
        print(f"{ENV_FILE} cannot be written: {error.strerror}")
        return 1
    if added:
        print(f"Wrote {', '.join(added)} to {ENV_FILE}. Next: docker compose up --wait")
    else:
        print(f"{ENV_FILE} has all secrets and is kept; remove it, and the volumes (docker compose down -v), to start anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
