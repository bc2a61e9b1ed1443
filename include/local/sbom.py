"""The bill of materials, CycloneDX 1.6 as JSON: `python -m include.local.sbom [FILE]`, default .local/sbom.cdx.json.

Packages and licences are those of .venv, their hashes those of the lock. Jars are those of include/local/ivy.xml, and those inside PySpark, with
the hashes of the files. CycloneDX's own tools list the packages and check the result.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from include.local.machine import JARS, LOCAL, ROOT, VENV, SetupError
from include.local.setup import IVY_FILES, LOCK
from include.local.tools import tool_python

TOOL = ("cyclonedx-bom==7.5.0", "cyclonedx-python-lib[json-validation]==11.12.0")
_SCHEMA = (
    "import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import JsonStrictValidator;"
    "error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1], encoding='utf-8').read()); sys.exit(error and str(error)[:500])"
)


def bill(python: Path) -> dict[str, Any]:
    """The document; `python` has TOOL. Raises SetupError."""
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--sv", "1.6"]
    made = json.loads(_run(python, "-m", "cyclonedx_py", "environment", str(VENV / "bin" / "python"), *options))
    hashes = locked_hashes()
    # What only tests need is no part of the product; pip is the virtual environment's own.
    made["components"] = [each for each in made["components"] if normal(each["name"]) in {*hashes, "pip"}]
    for package in made["components"]:
        files = hashes.get(normal(package["name"]), [])
        reference = {
            "type": "distribution",
            "url": package["purl"],
            "comment": "one of these files",
            "hashes": _sha256(*files),
        }
        package["externalReferences"] = [*package.get("externalReferences", []), *([reference] if files else [])]
        if package["name"] == "pyspark":
            jars = sorted(next(VENV.glob("lib/python*/site-packages/pyspark/jars")).glob("*.jar"))
            package["components"] = [_jar(jar, *name_and_version(jar.stem)) for jar in jars]
    made["components"] += ivy_jars()
    return dict(made)


def locked_hashes(lock: Path = LOCK) -> dict[str, list[str]]:
    """Package -> SHA-256 of each of its files, of the lock."""
    blocks = re.split(r"^(?=[a-z0-9])", lock.read_text(encoding="utf-8"), flags=re.M)
    return {
        block.partition("==")[0].partition("[")[0]: re.findall(r"sha256:([0-9a-f]{64})", block)
        for block in blocks
        if "==" in block
    }


def ivy_jars() -> list[dict[str, Any]]:
    """The jars that the set-up fetches. No job needs them: they are the local broker, and a reader of the tables for tests."""
    found = []
    for each in ElementTree.parse(IVY_FILES[0]).iter("dependency"):
        group, name, version = (each.attrib[key] for key in ("org", "name", "rev"))
        jar = JARS / each.attrib["conf"].partition("->")[0] / f"{name}-{version}.jar"
        purl = f"pkg:maven/{group}/{name}@{version}"
        found.append(_jar(jar, name, version) | {"group": group, "purl": purl, "bom-ref": purl, "scope": "optional"})
    return found


def _jar(file: Path, name: str, version: str) -> dict[str, Any]:
    found = {
        "type": "library",
        "name": name,
        "version": version,
        "hashes": _sha256(hashlib.sha256(file.read_bytes()).hexdigest()),
    }
    return found | ({"licenses": [{"license": licence}]} if (licence := jar_licence(file)) else {})


def jar_licence(jar: Path) -> dict[str, str] | None:
    """What the jar itself says of its licence: in the POM of its build, its manifest, or the text beside it."""
    with zipfile.ZipFile(jar) as files:
        names = files.namelist()
        poms = [name for name in names if re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom\.xml", name)]
        if (
            len(poms) == 1
            and (said := ElementTree.fromstring(files.read(poms[0])).find("{*}licenses/{*}license/{*}name")) is not None
        ):
            return {"name": " ".join((said.text or "").split())}
        manifest = (
            files.read("META-INF/MANIFEST.MF").decode().replace("\r\n ", "") if "META-INF/MANIFEST.MF" in names else ""
        )
        if said_there := re.search(r"^Bundle-License: ([^\r\n;]+)", manifest, re.M):
            return {"name": said_there[1].strip()}
        texts = (
            files.read(name)[:1_000].decode(errors="replace")
            for name in names
            if re.fullmatch(r"(META-INF/)?LICENSE(\.txt)?", name)
        )
        return {"id": "Apache-2.0"} if any("Apache License" in text and "Version 2.0" in text for text in texts) else None


def name_and_version(stem: str) -> tuple[str, str]:
    """Of a jar's file name: the version begins at the first hyphen before a digit."""
    name, version = re.split(r"-(?=\d)", stem, maxsplit=1) if re.search(r"-\d", stem) else (stem, "")
    return name, version


def normal(name: str) -> str:
    """A package's name as the lock has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _sha256(*digests: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest} for digest in digests]


def _run(python: Path, *arguments: str) -> str:
    done = subprocess.run([python, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"the bill of materials is not valid or could not be made: {done.stderr.strip()[-300:]}")
    return done.stdout


def main(file: Path) -> int:
    """Writes the file if it is valid by CycloneDX's schema. Returns the exit status: 1 with one line if it could not."""
    half = file.with_name(f"{file.name}.half")
    try:
        python = tool_python(*TOOL)
        made = bill(python)
        half.write_text(json.dumps(made, indent=1), encoding="utf-8")
        _run(python, "-c", _SCHEMA, str(half))
    except (SetupError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    half.replace(file)
    parts = [*made["components"], *(jar for package in made["components"] for jar in package.get("components", []))]
    print(
        f"{file}: {len(parts)} components, {sum('licenses' not in part for part in parts)} of them without a licence in their files"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else LOCAL / "sbom.cdx.json"))
