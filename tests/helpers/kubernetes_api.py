"""As much of Kubernetes' API as Spark asks, on loopback: pods become processes of this machine, without a container around them.

It is no Kubernetes: nothing is scheduled, isolated or checked. What Spark asks, what it puts into a pod and what runs there is Spark's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from include.local.machine import ROOT, VENV

# Where the project is in the image.
IN_IMAGE = "/opt/event-pairing/"
ADDRESS = "127.0.0.1"


class KubernetesApi:
    """`pods`: name -> what was posted. `asked`: (verb, resource) as rules of a Role name them. Logs of the pods are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: dict[str, dict[str, Any]] = {}
        self.asked: set[tuple[str, str]] = set()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(handler) -> None:
                length = int(handler.headers.get("Content-Length") or 0)
                body = json.loads(handler.rfile.read(length)) if length else None
                status, found = self.handle(handler.command, handler.path, body)
                text = json.dumps(found).encode()
                handler.send_response(status)
                handler.send_header("Content-Type", "application/json")
                handler.send_header("Content-Length", str(len(text)))
                handler.end_headers()
                handler.wfile.write(text)

            do_GET = do_POST = do_DELETE = do_PATCH = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer((ADDRESS, 0), Handler)

    @property
    def master(self) -> str:
        """The value of Spark's `--master`."""
        return f"k8s://http://{ADDRESS}:{self.server.server_port}"

    def handle(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Status and answer of one request: /api/v1/namespaces/NAMESPACE/RESOURCE[/NAME]."""
        parts = urlsplit(path)
        resource, *rest = parts.path.removeprefix("/api/v1/namespaces/").split("/")[1:]
        name = rest[0] if rest else None
        verbs = {
            "GET": "get" if name else "list",
            "POST": "create",
            "PATCH": "patch",
            "DELETE": "delete" if name else "deletecollection",
        }
        self.asked.add((verbs[method], resource))
        if method == "POST":
            body["metadata"].setdefault("name", "unnamed")
            body["metadata"] |= {"uid": f"uid-of-{body['metadata']['name']}", "resourceVersion": "1"}
            if resource == "pods":
                self._start(body)
            return 201, body
        if method == "GET" and name:
            return 200, self.pods.get(name) or {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "uid": f"uid-of-{name}"},
                "status": {},
            }
        wanted = dict(
            each.split("=", 1)
            for each in parse_qs(parts.query).get("labelSelector", [""])[0].split(",")
            if "=" in each and "!" not in each
        )
        found = {
            key: pod
            for key, pod in self.pods.items()
            if resource == "pods" and wanted.items() <= pod["metadata"]["labels"].items()
        }
        if method == "DELETE":
            for each in [name] if name else list(found):
                self._end(each)
            return 200, {"apiVersion": "v1", "kind": "Status", "status": "Success"}
        if method == "PATCH":
            return 200, self.pods[str(name)]
        return 200, {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": list(found.values())}

    def _start(self, pod: dict[str, Any]) -> None:
        name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
        work = self.folder / name
        work.mkdir(parents=True)
        fields = {"status.podIP": ADDRESS, "metadata.name": name}
        given = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        # Nothing of the caller's, and the image's Python on the PATH.
        environment = given | {
            "PATH": f"{VENV / 'bin'}{os.pathsep}{os.defpath}",
            "SPARK_LOCAL_DIRS": str(work),
            "SPARK_LOCAL_IP": ADDRESS,
        }
        program, *rest = container["command"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(ROOT / program.removeprefix(IN_IMAGE)), *rest, *container["args"]],
                cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        state = {
            "name": container["name"],
            "ready": True,
            "restartCount": 0,
            "image": "x",
            "imageID": "x",
            "state": {"running": {}},
        }
        self.pods[name] = pod | {"status": {"phase": "Running", "podIP": ADDRESS, "containerStatuses": [state]}}

    def _end(self, name: str | None) -> None:
        self.pods.pop(str(name), None)
        if process := self.processes.pop(str(name), None):
            process.terminate()
            process.wait(30)

    def __enter__(self) -> KubernetesApi:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        for name in list(self.processes):
            self._end(name)
