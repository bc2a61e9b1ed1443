"""The Spark Connect server of the examples, with its own settings, against what stands in for Kubernetes' API: executors really start and work.

What a cluster would add (scheduling, isolation, names, admission) is not here; docs/examples says so.
"""

from __future__ import annotations

import json
import subprocess
import time

import pytest
import yaml

from include.config.project import REMOTE_VARIABLE
from include.local.machine import ROOT, VENV, project_environment
from include.local.process import free_port
from tests.helpers.example_files import the
from tests.helpers.kubernetes_api import ADDRESS, KubernetesApi

pytestmark = [pytest.mark.integration, pytest.mark.long]
# What the workers say of themselves: the project's module comes from the job, the folder is the pod's.
ASK = """
import json, os
from spark_jobs.spark.session import end_session, spark_session

def say(batches):
    import pyarrow, sys
    from spark_jobs.rules import reasons
    for batch in batches:
        told = json.dumps([os.getcwd(), reasons.__file__, sys.executable])
        yield pyarrow.RecordBatch.from_pydict({"told": [told] * batch.num_rows})

spark = spark_session("tests", "calls")
print(spark.range(8, numPartitions=4).repartition(3).mapInArrow(say, "told STRING").toArrow().column("told")[0].as_py())
end_session(spark)
"""


def test_executors_start_by_the_examples_and_run_the_job_s_code(tmp_path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    for name, text in the("ConfigMap", "spark-conf")["data"].items():
        (conf / name).write_text(text)
    (container,) = the("Deployment", "spark-connect")["spec"]["template"]["spec"]["containers"]
    port, folder = free_port(), tmp_path / "pods"
    folder.mkdir()
    with KubernetesApi(folder) as api:
        # One machine, no names of a cluster, little memory.
        here = {
            "spark.driver.host": ADDRESS, "spark.driver.bindAddress": ADDRESS, "spark.driver.port": "0", "spark.driver.blockManager.port": "0",
            "spark.kubernetes.driver.pod.name": "spark-connect-0", "spark.connect.grpc.binding.address": ADDRESS,
            "spark.connect.grpc.binding.port": str(port), "spark.kubernetes.executor.podTemplateFile": str(conf / "executor.yaml"),
            "spark.executor.instances": "1", "spark.executor.cores": "1", "spark.executor.memory": "1g",
            # It is asked again and again; a watch needs what only Kubernetes has.
            "spark.kubernetes.executor.enableApiWatcher": "false", "spark.kubernetes.executor.apiPollingInterval": "1s",
        }  # fmt: skip
        given = [each for each in container["args"] if not each.startswith("--master=")]
        overridden = [f"--conf={name}={value}" for name, value in here.items()]
        command = [*container["command"], f"--master={api.master}", *given[:-1], *overridden, given[-1]]
        environment = project_environment() | {
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_DIRS": str(tmp_path),
            "PYSPARK_PYTHON": "python3",
        }
        with (tmp_path / "server.log").open("wb") as log:
            server = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            told = ask(f"sc://{ADDRESS}:{port}", server, tmp_path)
            (pod,) = api.pods.values()
            name = pod["metadata"]["name"]
            assert told[0].startswith(str(folder / name)) and told[2].startswith(str(VENV))
            assert not told[1].startswith(str(ROOT)) and "event_pairing_" in told[1], "the project came with the job"
            assert_it_is_the_template(pod)
        finally:
            server.terminate()
            server.wait(60)
        print(f"asked of Kubernetes: {sorted(api.asked)}")
        assert api.asked >= {("create", "pods"), ("list", "pods"), ("create", "configmaps")}
        rules = the("Role", "spark-driver")["rules"]
        allowed = {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}
        assert api.asked - allowed == set(), "each request is one that the role allows"


def ask(remote: str, server: subprocess.Popen[bytes], folder) -> list[str]:
    """What a worker says, once the server answers."""
    deadline = time.monotonic() + 300
    environment = project_environment() | {REMOTE_VARIABLE: remote}
    while True:
        assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-3000:]
        done = subprocess.run(
            [VENV / "bin/python", "-c", ASK], env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
        )  # fmt: skip
        if done.returncode == 0:
            return list(json.loads(done.stdout.splitlines()[-1]))
        assert "no Spark server answers" in done.stderr, done.stderr[-3000:] + (folder / "server.log").read_text()[-3000:]
        time.sleep(1)


def assert_it_is_the_template(pod) -> None:
    """What Spark has made of the pod template is still as narrow."""
    template = yaml.safe_load(the("ConfigMap", "spark-conf")["data"]["executor.yaml"])["spec"]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    wanted = template["containers"][0]
    assert {name: container[name] for name in ("command", "workingDir", "securityContext")} == {
        name: wanted[name] for name in ("command", "workingDir", "securityContext")
    }
    assert (
        template["securityContext"].items() <= spec["securityContext"].items()
        and spec["automountServiceAccountToken"] is False
    )
    assert spec["serviceAccountName"] == "spark-executor" and container["args"] == ["executor"]
    assert pod["metadata"]["labels"].items() >= {"spark-role": "executor", "part-of": "event-pairing"}.items()
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounts >= {"/work", "/tmp", "/var/data/spark"}
