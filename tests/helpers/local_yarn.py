"""A real YARN on this machine, on loopback only: a ResourceManager and a NodeManager, which run what is submitted to them in containers.

The servers' jar has the version of the Hadoop client that PySpark ships. Ivy fetches it once into the user's cache, as for the other servers.
A container shares nothing with the process that submitted it: neither environment nor folder, and its Python lacks the project.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from include.local.cluster import worker_python
from include.local.machine import ROOT, VENV, SetupError, console_logging, java
from include.local.process import MARK, LocalServer, free_port, log_path, start_program
from include.local.setup import SMALL_BUFFERS
from include.local.tools import CACHE, cache_lock
from spark_jobs.spark.workers import FEW_VARIABLE
from tests.helpers.job_processes import wait_for
from tests.helpers.stores import skip_or_fail

RM, NM = "resourcemanager", "nodemanager"
_CLASSES = {
    RM: "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    NM: "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
# What that jar needs besides Spark's jars.
_BESIDE = [("org.bouncycastle", f"bc{part}-jdk18on", "1.82") for part in ("prov", "pkix", "util")]
# Of JVMs that live for seconds.
_FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SIGNS = ("ERROR", "FATAL", "Exception")
_JARS = next(VENV.glob("lib/python*/site-packages/pyspark/jars"))


def server_jars() -> Path:
    """The folder with the jars of YARN's servers; fetches them if they are not in the cache (65 MB, once). Raises SetupError."""
    version = next(_JARS.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    folder = CACHE / f"yarn-{version}"
    with cache_lock("yarn"):
        for organisation, name, revision in [("org.apache.hadoop", "hadoop-client-minicluster", version), *_BESIDE]:
            if not (folder / f"{name}-{revision}.jar").exists():
                _fetch(organisation, name, revision, folder)
    return folder


def _fetch(organisation: str, name: str, revision: str, folder: Path) -> None:
    ivy = [java(), "-jar", next(_JARS.glob("ivy-*.jar")), "-settings", ROOT / "include" / "local" / "ivysettings.xml"]
    wanted = ["-dependency", organisation, name, revision]
    places = ["-cache", folder / "ivy", "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
    done = subprocess.run([*ivy, *wanted, *places], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SetupError(f"YARN's servers cannot be fetched ({' '.join(done.stdout[-200:].split())}): check the network")


@contextmanager
def running_yarn(folder: Path) -> Iterator[LocalYarn]:
    """YARN while the block runs. Skips the test where its servers are not to be had, or fails it if REQUIRED is set."""
    try:
        server_jars()
    except SetupError as problem:
        skip_or_fail(problem)
    with LocalYarn(folder, free_port()) as running:
        yield running


class LocalYarn(LocalServer):
    """Both servers; `port` is that of the ResourceManager's pages and REST API."""

    name = RM

    @property
    def url(self) -> str:
        """Of pages and REST API."""
        return f"http://127.0.0.1:{self.port}"

    def where(self) -> str:
        return f"on {self.url}"

    @property
    def containers(self) -> Path:
        """What the NodeManager keeps of applications: their files, their working folders, the scripts that start containers."""
        return self.folder / "containers"

    @property
    def staging(self) -> Path:
        """What is submitted, for as long as its application runs."""
        return self.folder / "staging"

    @property
    def faults(self) -> Path:
        """Where a test arms the fault points of drivers."""
        return self.folder / "faults"

    @property
    def logs(self) -> Path:
        """What containers printed: <application>/<container>/stdout and stderr."""
        return self.folder / "logs"

    def environment(self) -> dict[str, str]:
        """The variables of a spark-submit that is to find this YARN, besides the project's environment."""
        folders = {"HADOOP_CONF_DIR": self.folder / "conf", "SPARK_CONF_DIR": self.folder / "spark-conf"}
        return {name: str(folder) for name, folder in folders.items()} | {"SPARK_SUBMIT_OPTS": _FAST_START}

    def start(self) -> bool:
        """Starts both servers and waits until the ResourceManager has the node. Raises SetupError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._configure(worker_python())
        self._run(RM)
        self.wait_until(self.listens, "YARN", RM, _SIGNS, "does not answer")
        self._run(NM)
        wait_for(self._has_its_node, f"YARN to have its node ({log_path(self.folder, NM)})", 300)
        return True

    def _has_its_node(self) -> bool:
        try:
            return bool(self.ask("cluster/metrics")["clusterMetrics"]["activeNodes"] == 1)
        except OSError:
            return False

    def ask(self, path: str) -> dict[str, Any]:
        """What the ResourceManager's REST API answers."""
        with urllib.request.urlopen(f"{self.url}/ws/v1/{path}", timeout=10) as answer:
            return dict(json.loads(answer.read()))

    def applications(self) -> list[dict[str, Any]]:
        """All that were submitted, the oldest first: `id`, `name`, `state`, `finalStatus`, …"""
        found = (self.ask("cluster/apps")["apps"] or {}).get("app", [])
        return sorted(found, key=lambda each: each["id"])

    def ended_as(self, application: str) -> str:
        """Its final status; UNDEFINED while it runs."""
        return str(self.ask(f"cluster/apps/{application}")["app"]["finalStatus"])

    def told(self, files_at_most: int = 4) -> str:
        """The end of what the newest containers printed."""
        files = sorted(self.logs.glob("*/*/std*"), key=lambda file: file.stat().st_mtime)
        return "\n".join(
            f"{file.parent.name}/{file.name}: {file.read_text(errors='replace')[-3000:]}" for file in files[-4:]
        )

    def _run(self, name: str) -> None:
        home = Path(os.path.realpath(java() if os.path.isabs(java()) else next(_on_the_path("java")))).parents[1]
        # Nothing of the caller's environment, so nothing that only this machine has.
        environment = {"PATH": os.defpath, "HOME": str(self.folder), "JAVA_HOME": str(home)}
        classes = os.pathsep.join([str(self.folder / "conf"), f"{server_jars()}/*", f"{_JARS}/*"])
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"]
        start_program(self.folder, name, [home / "bin" / "java", *options, "-cp", classes, _CLASSES[name]], environment)

    def _configure(self, python: Path) -> None:
        conf = self.folder / "conf"
        conf.mkdir()
        rm, nm = "yarn.resourcemanager", "yarn.nodemanager"
        ports = {f"{rm}.{kind}address" for kind in ("", "scheduler.", "resource-tracker.", "admin.")}
        ports |= {f"{nm}.address", f"{nm}.localizer.address", f"{nm}.webapp.address", f"{nm}.collector-service.address"}
        yarn: dict[str, object] = {name: f"127.0.0.1:{free_port()}" for name in sorted(ports)}
        yarn |= {
            f"{rm}.webapp.address": f"127.0.0.1:{self.port}",
            f"{nm}.hostname": "127.0.0.1",
            f"{nm}.local-dirs": self.containers,
            f"{nm}.log-dirs": self.logs,
            # Each container waits for some of these.
            f"{rm}.nodemanagers.heartbeat-interval-ms": 100,
            f"{nm}.resource.memory-mb": 12_288,
            f"{nm}.resource.cpu-vcores": 12,
            f"{nm}.pmem-check-enabled": "false",
            f"{nm}.vmem-check-enabled": "false",
            f"{nm}.disk-health-checker.enable": "false",
            # So that containers end with the servers, whatever became of these.
            f"{nm}.admin-env": f"{MARK}={self.folder.resolve()}",
            "yarn.scheduler.minimum-allocation-mb": 128,
        }
        capacity = "yarn.scheduler.capacity"
        queues = {
            f"{capacity}.root.queues": "default",
            f"{capacity}.root.default.capacity": 100,
            f"{capacity}.maximum-am-resource-percent": 1,
        }
        _write(conf / "core-site.xml", {"hadoop.tmp.dir": self.folder / "tmp"})
        _write(conf / "yarn-site.xml", yarn)
        _write(conf / "capacity-scheduler.xml", queues)
        (conf / "log4j2.properties").write_text(console_logging("info"))
        spark = self.folder / "spark-conf"
        spark.mkdir()
        # So quiet that spark-submit does not say the application's id.
        (spark / "log4j2.properties").write_text(console_logging("warn"))
        (spark / "spark-defaults.conf").write_text(self._spark_defaults(python))
        self.faults.mkdir()

    def _spark_defaults(self, python: Path) -> str:
        """As an operator of this cluster writes them: where its machines have Python and Spark, and small sizes."""
        home = next(python.parent.parent.glob("lib/python*/site-packages/pyspark"))
        start_fast = f"{_FAST_START} {SMALL_BUFFERS}"
        settings = {
            "spark.pyspark.python": python,
            "spark.yarn.jars": f"local:{home}/jars/*",
            "spark.yarn.stagingDir": f"file://{self.staging}",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.yarn.appMasterEnv.PAIRING_FAULT_DIR": self.faults,
            # Executors are to work, however few the rows.
            f"spark.yarn.appMasterEnv.{FEW_VARIABLE}": "0",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": start_fast,
            "spark.executor.memory": "1g",
            "spark.executor.extraJavaOptions": start_fast,
            "spark.executor.instances": 1,
            "spark.executor.cores": 2,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": 2,
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())


def _on_the_path(program: str) -> Iterator[Path]:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return (Path(folder, program) for folder in folders if os.access(Path(folder, program), os.X_OK))


def _write(path: Path, settings: dict[str, Any]) -> None:
    lines = [
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>" for name, value in settings.items()
    ]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>"]))
