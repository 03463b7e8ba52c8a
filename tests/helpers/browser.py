"""A real Chromium, driven over the pipe that it offers to debuggers: no driver, no library, no network."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60.0


class Browser:
    """One page of a headless Chromium; ``errors`` and ``requests`` are what it complained of and asked for so far."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        (theirs, self._out), (self._in, answers) = os.pipe(), os.pipe()
        # Chromium reads from 3 and writes to 4, whatever our numbers are.
        script = f'exec 3<&{theirs} 4>&{answers}; exec "$@"'
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", *command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)
        self._ids, self._rest, self._session = itertools.count(1), b"", None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(PATIENCE)

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the debugger and return its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 16)
            assert more, "Chromium has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        facts = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(facts["exceptionDetails"]))
            case "Log.entryAdded":
                self.errors.append(facts["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.errors.append(json.dumps(facts["args"]))
        return message

    def open(
        self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False, script: bool = True
    ) -> None:
        """Load a page in a window of this size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.errors, self.requests = [], []
        self.send("Page.navigate", url=page.as_uri())
        self.wait(lambda: self.run("document.readyState") == "complete" and self.run("location.href") == page.as_uri())

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end, "the page is not there yet"
            time.sleep(0.02)

    def point_at(self, selector: str) -> None:
        """Move the pointer over the middle of an element, which is scrolled into view first."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.run(f"(() => {{const b = {place}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]}})()")
        x, y = box[0] + box[2] / 2, box[1] + box[3] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        self.point_at(selector)
        place = self.run(
            f"(() => {{const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        for what in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=what, x=place[0], y=place[1], button="left", clickCount=1)

    def key(self, name: str) -> None:
        """Press a key."""
        text = {"Enter": "\r", "Space": " "}.get(name)
        code = {"Tab": 9, "Enter": 13, "Space": 32, "Escape": 27}[name]
        facts = {"key": name, "code": name, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.send("Input.dispatchKeyEvent", type="keyDown", **facts)
        self.send("Input.dispatchKeyEvent", type="keyUp", **facts)

    def screenshot(self, file: Path, *, whole: bool = True) -> Path:
        image = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(image["data"]))
        return file
