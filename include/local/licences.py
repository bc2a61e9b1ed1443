"""The licences of all that is shipped: `python -m include.local.licences [FILE]`, default docs/licences.md.

They are those that the packages and jars of this machine say themselves; include/local/licences.toml says which may be shipped, and what is meant where
they say it in other words. Exit status 1, with a line for each, if a licence is not known or not allowed.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, NamedTuple

from include.local import packages_beside
from include.local.machine import JARS, ROOT, VENV, SetupError
from include.local.sbom import jar_licence, locked_hashes, name_and_version, normal
from include.local.setup import LOCK

PAGE = ROOT / "docs" / "licences.md"
_KNOWN = ROOT / "include" / "local" / "licences.toml"
_SCRIPTS = ROOT / "spark_jobs" / "quality" / "vendored"
# A licence field longer than this is the text of the licence.
_MAX_NAME = 60
_HEAD = """# Licences of what is shipped

Made by `make licences` from what the packages and jars say themselves; a test holds it against the locks. Every licence here
may be shipped with unchanged components ([include/local/licences.toml](../include/local/licences.toml)).

The wheel ([package.md](package.md)) holds the project's own code, and the scripts of the quality pages. The container image
holds everything here but for the jars of the local broker, and Debian's packages with Java and Python, whose licences are in
the image (`/usr/share/doc/*/copyright`).
"""


class Component(NamedTuple):
    """Something that is shipped, and the licence that its files name; empty if they name none."""

    name: str
    version: str
    said: str


def packages(lock: Path, place: Path | None = None) -> list[Component]:
    """Those of a lock that are installed in this folder; by default in .venv. The others are for other systems."""
    found, locked = distributions(path=[str(place or _site())]), locked_hashes(lock)
    return [Component(normal(each.name), each.version, _said_by(each)) for each in found if normal(each.name) in locked]


def jars(files: Iterable[Path]) -> list[Component]:
    """The jars, by their file names."""
    return [
        Component(*name_and_version(jar.stem), next(iter((jar_licence(jar) or {}).values()), "")) for jar in sorted(files)
    ]


def scripts() -> list[Component]:
    """What the quality pages load: each folder's README.md has its name and version as heading."""
    headings = [each.read_text(encoding="utf-8").partition("\n")[0].split() for each in sorted(_SCRIPTS.glob("*/README.md"))]
    return [Component(name, version, "") for _, name, version in headings]


def parts(celery: Path) -> dict[str, list[Component]]:
    """Heading -> what it is made of. `celery`: the folder with the packages of requirements-celery.lock."""
    return {
        "Packages of requirements.lock": packages(LOCK),
        "Packages of requirements-celery.lock": packages(ROOT / "requirements-celery.lock", celery),
        "Jars inside PySpark": jars((_site() / "pyspark" / "jars").glob("*.jar")),
        "Jars of the local broker, and of Delta for the tests": jars(JARS.glob("*/*.jar")),
        "Scripts of the quality pages": scripts(),
    }


def licence(component: Component, known: Mapping[str, Any]) -> str:
    """Its licence as an SPDX expression, or what it says of it if that is not known."""
    looked_up: str | None = known["looked_up"].get(component.name)
    return looked_up or known["spellings"].get(component.said, component.said)


def may_be_shipped(expression: str, allowed: Iterable[str]) -> bool:
    """Whether every part of one of the alternatives is allowed.

    >>> [may_be_shipped(each, ["MIT", "ISC"]) for each in ("MIT AND ISC", "MIT OR GPL-2.0-only", "MIT AND GPL-2.0-only", "")]
    [True, True, False, False]
    """
    return any(all(part in allowed for part in each.split(" AND ")) for each in expression.split(" OR "))


def page(found: Mapping[str, list[Component]], known: Mapping[str, Any]) -> str:
    """The page: for each part a table of licences, with the components that have them."""
    text = _HEAD
    for heading, components in found.items():
        by_licence: dict[str, list[str]] = {}
        for each in sorted(components, key=lambda each: (each.name.lower(), each.version)):
            by_licence.setdefault(licence(each, known), []).append(f"{each.name} {each.version}".strip())
        rows = "".join(f"| {name} | {', '.join(dict.fromkeys(by_licence[name]))} |\n" for name in sorted(by_licence))
        text += f"\n## {heading}\n\n| Licence | Components |\n|---|---|\n{rows}"
    return text


def known_licences() -> dict[str, Any]:
    """The content of licences.toml."""
    return tomllib.loads(_KNOWN.read_text(encoding="utf-8"))


def problems(components: Iterable[Component], known: Mapping[str, Any]) -> list[str]:
    """A line for each component that may not be shipped."""
    return [
        f"{each.name} {each.version}: licence {name or 'not named in its files'}: add it to include/local/licences.toml, or replace the component"
        for each in components
        if not may_be_shipped(name := licence(each, known), known["allowed"])
    ]


def _site() -> Path:
    return next(VENV.glob("lib/python*/site-packages"))


def _said_by(package: Distribution) -> str:
    """In its metadata: an expression, the name of a licence, or classifiers."""
    said = package.metadata
    (name,) = said.get_all("License") or [""]
    (expression,) = said.get_all("License-Expression") or [""]
    if expression := expression or (name if len(name) <= _MAX_NAME and name != "UNKNOWN" else ""):
        return expression if "\n" not in expression else ""
    classes = [each for each in said.get_all("Classifier") or [] if each.startswith("License :: ")]
    return " OR ".join(each.rpartition(" :: ")[2] for each in classes)


def main(file: Path) -> int:
    """Writes the page. Returns the exit status."""
    try:
        found, known = parts(packages_beside.packages_beside("celery")), known_licences()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    every = [each for components in found.values() for each in components]
    if lines := problems(every, known):
        print("\n".join(lines), file=sys.stderr)
        return 1
    file.write_text(page(found, known), encoding="utf-8")
    print(
        f"{file}: {len(every)} components, {len({licence(each, known) for each in every})} licences, all of which may be shipped"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE))
