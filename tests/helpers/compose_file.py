"""docker-compose.yaml as Compose reads it: variables filled in, services of other profiles left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import yaml

from include.local.machine import ROOT

FILE = ROOT / "docker-compose.yaml"
DOCKERFILE = ROOT / "include" / "image" / "Dockerfile"
OUR_IMAGE = "event-pairing:local"
COMPLETED = "service_completed_successfully"
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?::(?P<form>[-?])(?P<text>[^}]*))?\})")


class Service(NamedTuple):
    """What the file says of a service. `volumes`: path in the container -> name of the volume; `waits`: service -> condition."""

    name: str
    image: str
    command: list[str]
    environment: dict[str, str]
    volumes: dict[str, str]
    waits: dict[str, str]
    healthcheck: list[str]

    @property
    def is_ours(self) -> bool:
        return self.image == OUR_IMAGE


def services(variables: Mapping[str, str], profiles: Collection[str] = ()) -> dict[str, Service]:
    """The services that `docker compose up` would start with these variables and profiles."""
    document = _filled_in(yaml.safe_load(FILE.read_text(encoding="utf-8")), variables)
    wanted = {name: text for name, text in document["services"].items() if _starts(text, profiles)}
    return {name: _service(name, text) for name, text in wanted.items()}


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets, less the PATH."""
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text(encoding="utf-8")).splitlines()
    (text,) = [line for line in lines if line.startswith("ENV ")]
    return {name: value for name, value in re.findall(r"(\w+)=(\S+)", text) if name != "PATH"}


def copied_into_image() -> list[tuple[list[str], str]]:
    """Sources and target of each COPY of the Dockerfile, in their order."""
    copies = [line.split()[1:] for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if line.startswith("COPY ")]
    return [(sources, target) for *sources, target in copies]


def _starts(service: Mapping[str, Any], profiles: Collection[str]) -> bool:
    return not service.get("profiles") or bool(set(service["profiles"]) & set(profiles))


def _service(name: str, text: Mapping[str, Any]) -> Service:
    mounts = [mount.split(":") for mount in text.get("volumes", [])]
    check = text.get("healthcheck", {}).get("test", ["CMD"])
    assert check[0] == "CMD", "other forms are not read"
    return Service(
        name,
        text["image"],
        text.get("command", []),
        text.get("environment", {}),
        {target: volume for volume, target, *_ in mounts},
        {other: wait["condition"] for other, wait in text.get("depends_on", {}).items()},
        check[1:],
    )


def _filled_in(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled_in(part, variables) for name, part in value.items()}
    if isinstance(value, list):
        return [_filled_in(part, variables) for part in value]
    return _VARIABLE.sub(lambda found: _value(found, variables), value) if isinstance(value, str) else value


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    if found["dollar"]:
        return "$"
    if value := variables.get(found["name"]):
        return value
    assert found["form"] == "-", f"required variable {found['name']} is missing a value: {found['text']}"
    return found["text"]
