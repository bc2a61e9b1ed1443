"""The image of include/image/Dockerfile, built by buildah: each step in a chroot, without a container engine.

The base image alone is another one, since no registry of images can be reached here: Debian 12 with its own Python 3.11, which trusts whom this
machine trusts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from include.local.machine import ROOT

NEEDED = ("buildah", "mmdebstrap")
_BASE, _IMAGE = "localhost/base", "localhost/event-pairing"
_APT_SETTINGS = Path("/etc/apt/apt.conf.d")


def missing() -> str | None:
    """What this machine lacks to build it, for people; None if nothing."""
    if lacking := [name for name in NEEDED if not shutil.which(name)]:
        return f"{' and '.join(lacking)} not found: install them (Debian: apt-get install {' '.join(lacking)})"
    return "only root can make root's files: run this test as root" if os.geteuid() else None


class BuiltImage:
    """The image, and a container of it, in a folder of its own; leaving the block deletes both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._container = ""

    def __enter__(self) -> BuiltImage:
        self._make_base()
        dockerfile = ROOT / "include" / "image" / "Dockerfile"
        options = ["--isolation", "chroot", "--layers", "--from", _BASE, "--file", str(dockerfile), "--tag", _IMAGE]
        self._buildah("build", *options, str(ROOT))
        self._container = self._buildah("from", _IMAGE).strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._buildah("rm", "--all")
        self._buildah("rmi", "--all", "--force")

    def description(self) -> dict[str, Any]:
        """The image as the OCI describes it: `config`, `rootfs`, `history`."""
        return dict(json.loads(self._buildah("inspect", "--type", "image", _IMAGE))["OCIv1"])

    def layers(self) -> list[tuple[str, int]]:
        """The bytes of each layer, with the command that made it, in their order."""
        made = [each for each in self.description()["history"] if not each.get("empty_layer")]
        self._buildah("push", "--disable-compression", _IMAGE, f"oci:{self._folder / 'oci'}")
        blobs, index = self._folder / "oci" / "blobs" / "sha256", json.loads((self._folder / "oci/index.json").read_text())
        manifest = json.loads((blobs / index["manifests"][0]["digest"].partition(":")[2]).read_text())
        shutil.rmtree(self._folder / "oci")
        return [(step["created_by"], layer["size"]) for step, layer in zip(made, manifest["layers"], strict=True)]

    def root(self) -> Path:
        """The files of the container, to be read."""
        return Path(self._buildah("mount", self._container).strip())

    def run(self, *command: str) -> str:
        """Runs the command in the container, as the image's user and with its environment; returns its output."""
        return self._buildah("run", "--isolation", "chroot", self._container, "--", *command)

    def _make_base(self) -> None:
        tar = self._folder / "base.tar"
        wanted = "python3.11,python3.11-venv,ca-certificates"
        settings = [f"--aptopt={file}" for file in sorted(_APT_SETTINGS.glob("*")) if "Check-" in file.read_text()]
        sources = "/etc/apt/sources.list.d/debian.sources"
        self._run("mmdebstrap", "--variant=minbase", f"--include={wanted}", *settings, "bookworm", str(tar), sources)
        container = self._buildah("from", "scratch").strip()
        self._buildah("add", container, str(tar), "/")
        tar.unlink()
        for place in ("/etc/ssl/certs", "/etc/pip.conf", *(option.removeprefix("--aptopt=") for option in settings)):
            if os.path.exists(place):
                self._buildah("copy", container, place, place)
        link = ("ln", "-s", "/usr/bin/python3.11", "/usr/local/bin/python")
        self._buildah("run", "--isolation", "chroot", container, "--", *link)
        self._buildah("config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin", container)
        self._buildah("commit", "--rm", container, _BASE)

    def _buildah(self, *command: str) -> str:
        places = ["--root", str(self._folder / "images"), "--runroot", str(self._folder / "run")]
        return self._run("buildah", *places, "--storage-driver", "overlay", *command)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2_000:]}"
        return done.stdout
