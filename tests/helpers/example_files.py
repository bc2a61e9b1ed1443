"""The files of docs/examples, as tests read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.timeline import ROOT

EXAMPLES = ROOT / "docs" / "examples"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))


def objects(*files: Path) -> list[dict[str, Any]]:
    """All objects of Kubernetes in the files (default: all of the folder)."""
    return [each for file in files or MANIFESTS for each in yaml.safe_load_all(file.read_text())]


def the(kind: str, name: str) -> dict[str, Any]:
    """The object of this kind and name."""
    (found,) = [each for each in objects() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def connection(name: str) -> dict[str, Any]:
    """A connection of Airflow, without its description."""
    return {
        key: value
        for key, value in json.loads((EXAMPLES / "connections" / f"{name}.json").read_text()).items()
        if key != "description"
    }


def helm_values(name: str = "values") -> dict[str, Any]:
    """A values file of the Helm chart."""
    return dict(yaml.safe_load((EXAMPLES / "helm" / f"{name}.yaml").read_text()))


def settings(text: str) -> dict[str, str]:
    """What a spark-defaults.conf says."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name: value.strip() for name, value in (line.split(maxsplit=1) for line in lines)}


def spark_settings() -> dict[str, dict[str, str]]:
    """Where -> Spark settings: of the ConfigMap, of the Spark Connect server's command, of YARN."""
    arguments = the("Deployment", "spark-connect")["spec"]["template"]["spec"]["containers"][0]["args"]
    return {
        "kubernetes": settings(the("ConfigMap", "spark-conf")["data"]["spark-defaults.conf"]),
        "connect": dict(each.removeprefix("--conf=").split("=", 1) for each in arguments if each.startswith("--conf=")),
        "yarn": settings((EXAMPLES / "yarn" / "spark-defaults.conf").read_text()),
    }
