"""The bill of materials: every package and jar of the project, with what the lock and the files say of them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
import zipfile

import pytest

from include.local import sbom
from include.local.machine import JARS
from tests.helpers.tools import python_with

POM = "<project xmlns='x'><licenses><license><name>MIT\n License</name></license></licenses></project>"


@pytest.mark.long
def test_it_is_valid_and_has_every_package_and_jar(tmp_path, capsys) -> None:
    python, file = python_with(*sbom.TOOL), tmp_path / "sbom.json"
    assert sbom.main(file) == 0
    assert str(file) in capsys.readouterr().out
    made = json.loads(file.read_text())
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert (made["metadata"]["component"]["name"], made["metadata"]["component"]["type"]) == ("event-pairing", "application")
    packages = {sbom.normal(each["name"]): each for each in made["components"] if each["purl"].startswith("pkg:pypi/")}
    installed = {sbom.normal(each.name): each.version for each in importlib.metadata.distributions()}
    locked = sbom.locked_hashes()
    wanted = {name: version for name, version in installed.items() if name in locked or name == "pip"}
    assert {name: each["version"] for name, each in packages.items()} == wanted
    assert "pytest" in installed and "pytest" not in packages
    for name in set(packages) & set(locked):
        (reference,) = [each for each in packages[name]["externalReferences"] if each.get("comment") == "one of these files"]
        assert [each["content"] for each in reference["hashes"]] == locked[name]
    assert set(packages) - set(locked) <= {"pip"}, "the virtual environment's own"
    assert len([name for name, each in packages.items() if not each.get("licenses")]) <= 2
    jars = {each["purl"]: each for each in made["components"] if each["purl"].startswith("pkg:maven/")}
    assert len(jars) == len(list(JARS.glob("*/*.jar"))) and all(each["scope"] == "optional" for each in jars.values())
    assert len(packages["pyspark"]["components"]) > 200
    made["components"][0]["type"] = "thing"
    file.write_text(json.dumps(made))
    assert subprocess.run([python, "-c", sbom._SCHEMA, file], capture_output=True, check=False).returncode == 1, (
        "what is invalid is refused"
    )


def test_jars_have_the_hash_of_their_file() -> None:
    found = {each["name"]: each for each in sbom.ivy_jars()}
    broker = found["kafka_2.13"]
    (file,) = JARS.glob("broker/kafka_2.13-*.jar")
    assert broker["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}]
    assert broker["purl"] == f"pkg:maven/org.apache.kafka/kafka_2.13@{broker['version']}"
    assert broker["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert len(found) == len(list(JARS.glob("*/*.jar")))


def test_hashes_are_those_of_the_lock() -> None:
    found = sbom.locked_hashes()
    assert len(found) > 150 and all(found.values()) and {len(each) for hashes in found.values() for each in hashes} == {64}
    assert len(found["pyspark"]) == 1 and len(found["psycopg2-binary"]) > 1


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"META-INF/maven/a/b/pom.xml": POM}, {"name": "MIT License"}),
        ({"META-INF/MANIFEST.MF": "Bundle-License: BSD;link=x\r\n"}, {"name": "BSD"}),
        ({"META-INF/LICENSE": "Apache License\nVersion 2.0"}, {"id": "Apache-2.0"}),
        ({"META-INF/MANIFEST.MF": "Created-By: x\n"}, None),
    ],
)  # fmt: skip
def test_a_jar_s_licence_is_what_it_says(files, licence, tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "a.jar", "w") as jar:
        for name, text in files.items():
            jar.writestr(name, text)
    assert sbom.jar_licence(tmp_path / "a.jar") == licence


def test_without_the_tool_there_is_one_line_and_no_file(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sbom, "tool_python", lambda *_: "/bin/false")
    assert sbom.main(tmp_path / "sbom.json") == 1
    assert capsys.readouterr().err.startswith("error: the bill of materials is not valid or could not be made") and not list(
        tmp_path.iterdir()
    )
