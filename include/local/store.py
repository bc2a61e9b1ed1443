"""One object store on this machine, on loopback only: `STORE=s3|azure python -m include.local.store start|stop|status`.

Both are real servers that refuse the second of two racing puts: versitygw, an S3 server over a folder, which Go builds from source, and Azurite,
Microsoft's server of Azure blobs, which npm installs. Both are made once and kept in the user's cache, outside any checkout.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

from include.local.machine import STORES, SetupError, demo_folder, demo_store, project_environment, say
from include.local.process import LocalServer, check_port, command_line, last_lines, running_program, start_program
from include.local.tools import CACHE, cache_lock

DEFAULT_PORT = 9100
BUCKET = "warehouse"
_S3, _S3_VERSION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
_AZURITE_VERSION = "3.37.0"
_READY_WITHIN_S = 30.0


class LocalStore(LocalServer):
    """A store with its data in `folder`, listening on 127.0.0.1:`port`, with one bucket."""

    # Not secret: the store holds samples and listens on loopback.
    user, secret = "event-pairing", "a-secret-of-this-machine-only"

    @property
    @abstractmethod
    def warehouse(self) -> str:
        """The value of PAIRING_WAREHOUSE."""

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """The value of PAIRING_STORE, before it is JSON."""

    @property
    @abstractmethod
    def connection(self) -> dict[str, object]:
        """The connection warehouse_default of an Airflow that uses this store."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts it. Raises SetupError if the server cannot be made."""

    def make_bucket(self, bucket: str = BUCKET) -> None:
        """Creates the bucket, or container, if it does not exist."""

    @property
    def address(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def where(self) -> str:
        """Its address."""
        return f"on {self.address}"

    def check(self) -> None:
        """Raises SetupError if `start` would fail: another program has the port."""
        if not self.is_running():
            check_port(self.port, "STORE_PORT")

    def start(self) -> bool:
        """Starts the store, waits until it answers, and creates the bucket; False if it ran already. Raises SetupError."""
        if self.is_running():
            self.make_bucket()
            return False
        self.check()
        command = self.command()
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        start_program(self.folder, self.name, command, project_environment() | self.environment())
        self._wait_until_it_listens()
        self.make_bucket()
        return True

    def environment(self) -> dict[str, str]:
        """The server's variables besides the project's environment."""
        return {}

    def kill(self) -> None:
        """Ends the server without warning, like a power cut (for tests)."""
        process = running_program(self.folder, self.name)
        if process is not None:
            process.kill()
            process.wait(5)

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline:
            if not self.is_running():
                cause = " / ".join(last_lines(self.folder, self.name, 2))
                raise SetupError(f"the {self.name} server ended while it started ({cause[:300]})")
            if self.listens():
                return
            time.sleep(0.02)
        raise SetupError(f"the {self.name} server does not listen {self.where()} after {_READY_WITHIN_S:.0f} s")


class LocalS3(LocalStore):
    """versitygw over a folder; its log of requests is `access.log`."""

    name = "s3"

    @property
    def warehouse(self) -> str:
        return f"s3://{BUCKET}/demo"

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": self.user,
            "aws_secret_access_key": self.secret,
            "aws_region": "us-east-1",
            "aws_endpoint_url": self.address,
            "allow_http": "true",
        }

    @property
    def connection(self) -> dict[str, object]:
        extra = {"region_name": "us-east-1", "endpoint_url": self.address, "allow_http": True}
        return {"conn_type": "aws", "login": self.user, "password": self.secret, "extra": extra}

    @property
    def access_log(self) -> Path:
        """The log with one line a request, in the format of S3's server access logs."""
        return self.folder / "access.log"

    def environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": self.user, "ROOT_SECRET_KEY": self.secret}

    def command(self) -> list[str]:
        # In files of their own: not every file system has extended attributes.
        side = self.folder / "attributes"
        side.mkdir(parents=True, exist_ok=True)
        options = ["--port", f"127.0.0.1:{self.port}", "--quiet", "--access-log", str(self.access_log)]
        return [str(s3_server()), *options, "posix", "--sidecar", str(side), str(self.folder / "data")]

    def make_bucket(self, bucket: str = BUCKET) -> None:
        (self.folder / "data" / bucket).mkdir(parents=True, exist_ok=True)


class LocalAzure(LocalStore):
    """Azurite's server of blobs."""

    name = "azure"
    # Azurite's only account; Microsoft's documentation has its key.
    user = "devstoreaccount1"
    secret = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @property
    def warehouse(self) -> str:
        return f"az://{BUCKET}/demo"

    @property
    def options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": self.user,
            "azure_storage_account_key": self.secret,
            "azure_storage_endpoint": f"{self.address}/{self.user}",
            "allow_http": "true",
        }

    @property
    def connection(self) -> dict[str, object]:
        extra = {"endpoint_url": f"{self.address}/{self.user}", "allow_http": True}
        return {"conn_type": "wasb", "login": self.user, "password": self.secret, "extra": extra}

    def command(self) -> list[str]:
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"]
        return [*azure_server(), *options, "--blobPort", str(self.port), "--location", str(self.folder / "data")]

    def make_bucket(self, bucket: str = BUCKET) -> None:
        date = formatdate(usegmt=True)
        path = f"/{self.user}/{bucket}"
        headers = {"x-ms-date": date, "x-ms-version": "2023-11-03", "Content-Length": "0"}
        # The verb, eleven headers that are not set, Azure's own headers, and the resource.
        signed = "\n".join(
            ["PUT", *[""] * 11, f"x-ms-date:{date}", "x-ms-version:2023-11-03", f"/{self.user}{path}", "restype:container"]
        )
        digest = hmac.new(base64.b64decode(self.secret), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {self.user}:{base64.b64encode(digest).decode()}"
        wanted = urllib.request.Request(f"{self.address}{path}?restype=container", method="PUT", headers=headers)
        try:
            urllib.request.urlopen(wanted, timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise SetupError(f"the container {bucket} could not be made: HTTP status {error.code}") from None


KINDS: dict[str, type[LocalStore]] = {"s3": LocalS3, "azure": LocalAzure}


def missing_for(kind: str) -> str | None:
    """What this machine lacks for a server of this kind, for people; None if nothing."""
    made, tool = (_s3_program(), "go") if kind == "s3" else (_azurite_program(), "npm")
    if made.exists() or shutil.which(tool):
        return None
    return f"{'Go' if tool == 'go' else 'npm'} is needed once, to make the {kind} server: install it"


def s3_server() -> Path:
    """The S3 server; builds it if it does not exist (two minutes, once). Raises SetupError."""
    program = _s3_program()
    folder = program.parent

    def build() -> None:
        say(f"building the S3 server {_S3_VERSION} (two minutes, once) ...")
        environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-mod=mod"}
        _run(["go", "install", f"{_S3}@{_S3_VERSION}"], environment, folder)

    _once(program, build, "s3")
    return program


def azure_server() -> list[str]:
    """The command of Azurite; installs it if it does not exist (half a minute, once). Raises SetupError."""
    program = _azurite_program()
    folder = CACHE / f"azurite-{_AZURITE_VERSION}"

    def install() -> None:
        say(f"installing Azurite {_AZURITE_VERSION} (half a minute, once) ...")
        options = ["--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
        _run(["npm", "install", *options, f"azurite@{_AZURITE_VERSION}"], dict(os.environ), folder)

    _once(program, install, "azure")
    return ["node", str(program)]


def _s3_program() -> Path:
    return CACHE / f"versitygw-{_S3_VERSION}" / "versitygw"


def _azurite_program() -> Path:
    return CACHE / f"azurite-{_AZURITE_VERSION}" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _once(program: Path, make: Callable[[], None], kind: str) -> None:
    if program.exists():
        return
    if problem := missing_for(kind):
        raise SetupError(problem)
    with cache_lock(kind):
        if not program.exists():
            make()


def _run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "make.log"
    with log.open("w") as output:
        status = subprocess.call(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    if status:
        raise SetupError(f"{command[0]} {command[1]} failed, see {log}: check the network, then try again")


def local_store(port: int) -> LocalStore | None:
    """The store that STORE names; None if STORE is empty. Raises SetupError."""
    kind = demo_store()
    return KINDS[kind](demo_folder("store"), port) if kind else None


def _default(port: int) -> LocalStore:
    found = local_store(port)
    if found is None:
        raise SetupError(f"which store? set STORE to one of {', '.join(kind for kind in STORES if kind)}")
    return found


if __name__ == "__main__":
    sys.exit(command_line("the store", "STORE_PORT", DEFAULT_PORT, _default))
