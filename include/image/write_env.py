"""Writes `.env` with fresh secrets, once, for `docker compose`.

    python3 include/image/write_env.py

`docker compose` reads `.env` beside docker-compose.yaml by itself. Only the owner can read the file; git ignores it and the image leaves it out.
An existing file is never overwritten: the database keeps the password it was created with, and nothing that was encrypted with the old key
could be read again. It needs only Python, because it runs before anything is installed.
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


SECRETS: dict[str, Callable[[], str]] = {
    "POSTGRES_PASSWORD": password,
    "AIRFLOW_FERNET_KEY": fernet_key,
    "AIRFLOW_JWT_SECRET": password,
    "AIRFLOW_SECRET_KEY": password,
}


def write_env(path: Path) -> None:
    """Creates the file with one `NAME=secret` a line; raises FileExistsError."""
    # One call creates the file with its mode, so that others cannot read the secrets even for a moment.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{name}={make()}\n" for name, make in SECRETS.items())


def main() -> int:
    """Returns the exit status: 1 with one line if `.env` exists or cannot be written."""
    try:
        write_env(ENV_FILE)
    except FileExistsError:
        print(f"{ENV_FILE} exists and is kept; remove it, and the volumes (docker compose down -v), to start anew")
        return 1
    except OSError as error:
        print(f"{ENV_FILE} cannot be written: {error.strerror}")
        return 1
    print(f"Wrote {ENV_FILE}. Next: docker compose up --wait")
    return 0


if __name__ == "__main__":
    sys.exit(main())
