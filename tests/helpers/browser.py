"""A headless Chromium and one page in it, driven over the DevTools protocol: what a person sees and types, without a driver to install."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

NEEDED = "no chromium on PATH: install it (Debian: apt-get install chromium)"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "PageUp": 33, "Tab": 9, "Enter": 13, " ": 32}


def chromium() -> str | None:
    """The program, None if there is none."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Gone(Exception):
    """The page went elsewhere before it had answered."""


class Page:
    """A page in a browser of its own, which ends with the block. Times in seconds, sizes in CSS pixels."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 800, dark: bool = False, phone: bool = False) -> None:
        program = chromium()
        assert program, NEEDED
        self._process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
             f"--user-data-dir={folder}", "--disable-background-networking", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port = self._port(folder / "DevToolsActivePort")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=20) as answer:
            page = next(each for each in json.load(answer) if each["type"] == "page")
        self._stack = ExitStack()
        # Without pings: on a busy machine a page that nobody looks at just now may answer late.
        self._socket = self._stack.enter_context(
            connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=20, ping_interval=None)
        )
        self._asked = 0
        self.errors: list[str] = []
        # What a page's policy has stopped: directive and what it was.
        self.stopped: list[str] = []
        self.send("Page.enable")
        self.send("Runtime.enable")
        self.send("Network.enable")
        self.send("Audits.enable")
        self.requests: list[str] = []
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def _port(self, file: Path) -> int:
        deadline = time.monotonic() + 30
        while not (file.exists() and file.read_text().count("\n")):
            assert time.monotonic() < deadline and self._process.poll() is None, "chromium did not start"
            time.sleep(0.05)
        return int(file.read_text().split("\n")[0])

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._asked += 1
        self._socket.send(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv(timeout=30))
            if told.get("method") == "Runtime.exceptionThrown":
                self.errors.append(told["params"]["exceptionDetails"].get("exception", {}).get("description", "an error"))
            elif told.get("method") == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            elif told.get("method") == "Audits.issueAdded":
                issue = told["params"]["issue"]["details"].get("contentSecurityPolicyIssueDetails")
                self.stopped += [f"{issue['violatedDirective']} {issue.get('blockedURL', 'inline')}"] if issue else []
            elif told.get("id") == self._asked:
                if "navigated" in told.get("error", {}).get("message", ""):
                    raise Gone
                assert "error" not in told, told
                return dict(told["result"])

    def ask(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str, within: float = 15) -> None:
        """Until the expression is true, whatever pages come and go meanwhile."""
        deadline = time.monotonic() + within
        while not self._is(script):
            assert time.monotonic() < deadline, f"{script} did not come true; errors: {self.errors}"
            time.sleep(0.02)

    def _is(self, script: str) -> bool:
        try:
            # An element would come here as an empty object.
            return bool(self.ask(f"!!({script})"))
        except Gone:
            return False

    def open(self, address: str, ready: str = "document.readyState == 'complete'", within: float = 15) -> None:
        """Goes there and waits until it is loaded and `ready` is true."""
        self.send("Page.navigate", url=address)
        self.wait_for(f"location.href.startsWith({json.dumps(address.partition('#')[0])}) && ({ready})", within)

    def press(self, *keys: str) -> None:
        """Types keys, one after the other."""
        for key in keys:
            code = {"key": key, "windowsVirtualKeyCode": _KEYS[key]} | ({"text": "\r"} if key == "Enter" else {})
            self.send("Input.dispatchKeyEvent", type="keyDown", **code)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=_KEYS[key])

    def click(self, x: float, y: float) -> None:
        """Moves the mouse there and clicks."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_on(self, element: str, within: float = 15) -> None:
        """Clicks in the middle of what the expression finds, once it is there and stands still."""
        middle = (
            f"(() => {{ const found = {element}; if (!found || found.disabled) return null; found.scrollIntoView({{block: 'center'}});"
            "const at = found.getBoundingClientRect(); return [at.left + at.width / 2, at.top + at.height / 2]; })()"
        )
        deadline, before = time.monotonic() + within, None
        while (at := self.ask(middle)) is None or at != before:
            assert time.monotonic() < deadline, f"{element} is not there to be clicked on; errors: {self.errors}"
            before = at
            time.sleep(0.15)
        self.click(*at)

    def type(self, text: str) -> None:
        """Types the text where the focus is."""
        self.send("Input.insertText", text=text)

    def screenshot(self, file: Path, whole: bool = False) -> None:
        """What is seen, or the whole page, as PNG."""
        png = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(png))

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
        self._process.terminate()
        self._process.wait(timeout=20)
