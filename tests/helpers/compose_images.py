"""What the images of docker-compose.yaml bring besides the file: environment, and the program where the file names none.

Other people's images are played by the same programs of this machine: Kafka from the project's jars, PostgreSQL and Redis of its
distribution, whatever release these are. The paths by which an image's documentation names a program are translated.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from include.local.broker import LOGGING
from include.local.machine import JARS, VENV, java
from include.local.packages_beside import packages_beside
from tests.helpers import local_postgres
from tests.helpers.compose_file import Service, image_environment
from tests.helpers.compose_places import Places
from tests.helpers.stores import skip_or_fail

_NEEDED = "no PostgreSQL or Redis server is installed (apt-get install postgresql redis-server)"
Environment = dict[str, str]
# Asks a broker what its script asks, which is in none of the project's jars.
_ASK_BROKER = (
    "import sys; from confluent_kafka.admin import AdminClient; "
    "AdminClient({'bootstrap.servers': sys.argv[2], 'log_level': 0}).list_topics(timeout=5)"
)


def require_servers() -> None:
    """Skips the test where this machine lacks PostgreSQL or Redis, or fails it where nothing may be skipped."""
    if local_postgres.programs() is None or shutil.which("redis-server") is None:
        skip_or_fail(_NEEDED)


def environment(service: Service, places: Places) -> Environment:
    """All that the service's processes find in their environment: of the image, of the file, and what keeps their servers on loopback."""
    own = places.own(service.name) / "files"
    found = {"HOME": str(own), "TMPDIR": places.paths(service, "/tmp"), "LANG": "C.UTF-8", "SPARK_LOCAL_IP": "127.0.0.1"}
    path = [VENV / "bin", Path(shutil.which(java()) or "").parent, *map(Path, os.defpath.split(os.pathsep))]
    if service.is_ours:
        packages = packages_beside("celery")
        path.insert(1, packages / "bin")
        found |= {name: places.text(service, value) for name, value in image_environment().items()}
        found["PYTHONPATH"] += f"{os.pathsep}{packages}"
    found |= {name: places.text(service, value) for name, value in service.environment.items()}
    return found | _ports(service, places) | {"PATH": os.pathsep.join(map(str, path))}


def _ports(service: Service, places: Places) -> Environment:
    """Ports that the file leaves to the programs: in containers they cannot collide."""
    if service.name == "airflow-api-server":
        return {"AIRFLOW__API__HOST": "127.0.0.1", "AIRFLOW__API__PORT": str(places.port(service.name, 8080))}
    if service.name.startswith("airflow-scheduler"):
        prefix = "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_"
        return {f"{prefix}HOST": "127.0.0.1", f"{prefix}PORT": str(places.port(service.name, 8974))}
    return {"PGPORT": str(places.port(service.name, 5432))} if service.name == "postgres" else {}


def command(service: Service, places: Places, settings: Environment) -> list[str]:
    """What the container runs; prepares the files of Kafka and PostgreSQL as their images do."""
    if service.command:
        # Redis writes its title over its environment, and with it over the mark by which it is found and ended.
        return [
            word.replace("requirepass", "set-proc-title no\nrequirepass") for word in places.words(service, service.command)
        ]
    return _SERVERS[service.image.split(":")[0]](service, places, settings)


def program(name: str) -> list[str]:
    """The program of this machine for one that the file names: its first words."""
    if name == "/opt/kafka/bin/kafka-broker-api-versions.sh":
        return [sys.executable, "-c", _ASK_BROKER]
    if name == "pg_isready":
        return [str(_postgres(name))]
    return [name]


def _kafka(service: Service, places: Places, _: Environment) -> list[str]:
    # KAFKA_LOG_DIRS is log.dirs; a listener without a host is on all interfaces.
    texts = {name: re.sub(r"://:(?=\d)", "://127.0.0.1:", text) for name, text in service.environment.items()}
    heap = texts.pop("KAFKA_HEAP_OPTS")
    settings = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): places.text(service, text) for name, text in texts.items()
    }
    folder = places.own(service.name) / "files"
    (folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "log4j2.properties").write_text(LOGGING)
    start = [java(), heap, f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", "-cp", str(JARS / "broker" / "*")]
    cluster = ["--ignore-formatted", "--cluster-id=bm9ib2R5IGVsc2UgaA", f"--config={folder / 'server.properties'}"]
    subprocess.run([*start, "kafka.tools.StorageTool", "format", *cluster], check=True, capture_output=True)
    return [*start, "kafka.Kafka", str(folder / "server.properties")]


def _postgres_server(service: Service, places: Places, settings: Environment) -> list[str]:
    folder = places.volume(service.volumes["/var/lib/postgresql/data"])
    secret, data = folder / "password", folder / "data"
    secret.write_text(settings["POSTGRES_PASSWORD"])
    if os.geteuid() == 0:
        for each in (folder, secret):
            shutil.chown(each, "postgres", pwd.getpwnam("postgres").pw_gid)
    if not data.is_dir():
        user = settings["POSTGRES_USER"]
        options = ["-U", user, "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--locale=C"]
        _run([*_as_owner("initdb"), "-D", str(data), *options], folder)
        _run(
            [*_as_owner("postgres"), "--single", "-D", str(data), "postgres"],
            folder,
            f"CREATE DATABASE {settings['POSTGRES_DB']};\n",
        )
    options = [f"port={settings['PGPORT']}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
    return [*_as_owner("postgres"), "-D", str(data), *(word for option in options for word in ("-c", option))]


def _as_owner(name: str) -> list[str]:
    # It refuses to run as root.
    other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    return [*other, str(_postgres(name))]


def _postgres(name: str) -> Path:
    folder = local_postgres.programs()
    assert folder is not None, local_postgres.NEEDED
    return folder / name


def _run(words: list[str], folder: Path, text: str = "") -> None:
    done = subprocess.run(words, cwd=folder, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


_SERVERS: dict[str, Callable[[Service, Places, Environment], list[str]]] = {
    "apache/kafka": _kafka,
    "postgres": _postgres_server,
}
