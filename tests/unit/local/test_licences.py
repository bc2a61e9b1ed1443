"""The licences: the page is current, and nothing is shipped whose licence is not known or not allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from include.local import licences
from include.local.machine import JARS, VENV
from include.local.sbom import locked_hashes
from include.local.setup import LOCK

KNOWN = licences.known_licences()


def on_the_page() -> dict[str, dict[str, str]]:
    """Heading -> component with version -> licence."""
    sections = licences.PAGE.read_text().split("\n## ")[1:]
    return {
        section.partition("\n")[0]: {
            component: row[1]
            for row in re.finditer(r"^\| (.+) \| (.+) \|$", section, re.M)
            if row[1] != "Licence"
            for component in row[2].split(", ")
        }
        for section in sections
    }


def as_listed(components: Iterable[licences.Component]) -> dict[str, str]:
    return {f"{each.name} {each.version}".strip(): licences.licence(each, KNOWN) for each in components}


def test_the_page_has_the_installed_packages_and_scripts():
    page = on_the_page()
    assert page["Packages of requirements.lock"] == as_listed(licences.packages(LOCK)), "make licences"
    assert page["Scripts of the quality pages"] == as_listed(licences.scripts()) != {}


def test_the_page_has_every_package_of_the_locks_that_is_for_this_system():
    for heading, lock in (
        ("Packages of requirements.lock", LOCK),
        ("Packages of requirements-celery.lock", licences.ROOT / "requirements-celery.lock"),
    ):
        elsewhere = set(re.findall(r"^([a-z0-9.-]+)==\S+ ;", lock.read_text(), re.M))
        listed = dict(each.split(" ") for each in on_the_page()[heading])
        assert set(locked_hashes(lock)) - elsewhere <= set(listed) <= set(locked_hashes(lock)), "make licences"
        assert {name: version for name, version in listed.items() if f"\n{name}=={version} " not in lock.read_text()} == {}


def test_the_page_has_every_jar():
    spark = next(VENV.glob("lib/python*/site-packages/pyspark/jars"))
    for heading, files in (
        ("Jars inside PySpark", spark.glob("*.jar")),
        ("Jars of the local broker, and of Delta for the tests", JARS.glob("*/*.jar")),
    ):
        names = {" ".join(licences.name_and_version(jar.stem)).strip() for jar in files}
        assert set(on_the_page()[heading]) == names, "make licences"


def test_every_licence_on_the_page_may_be_shipped():
    found = {licence for components in on_the_page().values() for licence in components.values()}
    assert len(found) > 20 and [each for each in found if not licences.may_be_shipped(each, KNOWN["allowed"])] == []


@pytest.mark.parametrize(
    ("said", "meant"),
    [("", "not named in its files"), ("GPL-3.0-only", "GPL-3.0-only"), ("MIT AND SSPL-1.0", "MIT AND SSPL-1.0")],
)
def test_what_may_not_be_shipped_is_one_line_with_the_remedy(said, meant, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(licences, "parts", lambda _: {"Packages": [licences.Component("new", "1.0", said)]})
    monkeypatch.setattr(licences.packages_beside, "packages_beside", lambda _: tmp_path)
    assert licences.main(tmp_path / "page.md") == 1 and not (tmp_path / "page.md").exists()
    assert capsys.readouterr().err == (
        f"new 1.0: licence {meant}: add it to include/local/licences.toml, or replace the component\n"
    )


@pytest.mark.long
def test_made_anew_it_is_the_same(tmp_path):
    assert licences.main(tmp_path / "page.md") == 0
    assert (tmp_path / "page.md").read_text() == licences.PAGE.read_text(), "make licences"
