"""Each Spark setting of the examples, asked of the classes of the Spark in the lock: there is such a setting, and the value is one of its values."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from include.local.machine import project_environment
from tests.helpers.example_files import spark_settings
from tests.helpers.timeline import ROOT

# Every setting that these objects declare is known to ConfigEntry once they are loaded.
DECLARED_IN = [
    *(f"org.apache.spark.internal.config.{name}$" for name in ("package", "Network", "Python", "UI", "Deploy", "Worker")),
    "org.apache.spark.deploy.k8s.Config$",
    "org.apache.spark.deploy.yarn.config.package$",
    "org.apache.spark.sql.connect.config.Connect$",
    *(f"org.apache.spark.sql.internal.{name}$" for name in ("SQLConf", "StaticSQLConf")),
]
# Written by an option of spark-submit, and declared nowhere.
UNDECLARED = {"spark.app.name"}
ASK = """
import json, sys
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import launch_gateway
given, declared_in = json.load(sys.stdin)
jvm = launch_gateway().jvm
for name in declared_in:
    jvm.java.lang.Class.forName(name)
config = jvm.java.lang.Class.forName("org.apache.spark.deploy.k8s.Config$")
constants = [each for each in config.getMethods() if each.getReturnType().getName() == "java.lang.String" and each.getParameterCount() == 0]
module = config.getField("MODULE$").get(None)
# Settings whose name ends as one likes: labels, volumes, secrets.
prefixes = [each.invoke(module, None) for each in constants if each.getName().endswith("_PREFIX")]
wrong = {}
for where, settings in given.items():
    conf = jvm.org.apache.spark.SparkConf(False)
    for name, value in settings.items():
        conf.set(name, value)
    for name, value in settings.items():
        entry = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name)
        try:
            if entry is not None:
                conf.get(entry)
            elif not any(name.startswith(prefix) for prefix in prefixes if prefix.endswith(".")):
                wrong[f"{where}: {name}"] = "there is no such setting"
        except Py4JJavaError as error:
            wrong[f"{where}: {name}"] = error.java_exception.getMessage()
    try:
        jvm.org.apache.spark.deploy.k8s.KubernetesVolumeUtils.parseVolumesWithPrefix(conf, "spark.kubernetes.executor.volumes.")
    except Py4JJavaError as error:
        wrong[f"{where}: volumes"] = error.java_exception.getMessage()
print(json.dumps(wrong))
"""


def wrong(settings: dict[str, dict[str, str]]) -> dict[str, str]:
    """What Spark's classes refuse, with their reason."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([settings, DECLARED_IN]),
        env=project_environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_each_setting_exists_and_has_a_value_that_spark_takes() -> None:
    given = {
        where: {name: value for name, value in each.items() if name not in UNDECLARED}
        for where, each in spark_settings().items()
    }
    assert min(map(len, given.values())) >= 8
    broken = {
        "spark.executor.memory": "2 litres",
        "spark.kubernetes.container.imag": "x",
        "spark.authenticate": "perhaps",
        "spark.kubernetes.executor.label.anything": "is a prefix",
        "spark.kubernetes.executor.volumes.emptyDisk.a.mount.path": "/a",
    }
    # Asked at once: a JVM takes seconds.
    found = wrong(given | {"broken": broken})
    assert {name for name in found if not name.startswith("broken: ")} == set(), found
    assert set(found) == {
        "broken: spark.executor.memory",
        "broken: spark.kubernetes.container.imag",
        "broken: spark.authenticate",
        "broken: volumes",
    }, "what is wrong is seen"


@pytest.mark.parametrize("where", ["kubernetes", "yarn"])
def test_what_the_project_asks_of_a_cluster_is_there(where: str) -> None:
    found = spark_settings()[where]
    assert found["spark.authenticate"] == found["spark.network.crypto.enabled"] == "true", "logins travel to the executors"
    for process in ("driver", "executor"):
        assert found[f"spark.{process}.extraJavaOptions"] == "-Djdk.nio.maxCachedBufferSize=1048576"
    assert "python" in found["spark.pyspark.python"] and not found["spark.pyspark.python"].startswith("/"), (
        "by the executor's PATH"
    )
