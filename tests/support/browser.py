"""Chromium without a window, driven through a pipe (the DevTools protocol): nothing has to be installed but itself."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A page in a browser. `faults` lists uncaught errors, console errors and refused or failed requests."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers = to, os.fdopen(answers, "rb", buffering=1 << 16)
        self._number, self._session = 0, ""
        self.faults: list[str] = []
        self.origins: tuple[str, ...] = ("file:", "data:")  # where requests may go
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser, and read what it says up to the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (one := self._answers.read(1)) != b"\0":
            assert one, "the browser has ended"
            text += one
        answer: dict[str, Any] = json.loads(text)
        method, said = answer.get("method"), answer.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(said["exceptionDetails"]["exception"]["description"])
        elif method == "Log.entryAdded" or (method == "Runtime.consoleAPICalled" and said["type"] == "error"):
            self.faults.append(json.dumps(said))
        elif method == "Network.requestWillBeSent" and not said["request"]["url"].startswith(self.origins):
            self.faults.append(said["request"]["url"])
        return answer

    def open(self, page: Path | str) -> None:
        """Open a file or an address, and wait until its script has run."""
        if isinstance(page, str):
            self.origins = (*self.origins, page)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.wait("document.body && document.body.dataset.ready")

    def wait(self, condition: str) -> None:
        """Wait until an expression in the page holds."""
        look = f"const look = () => ({condition}) ? done(1) : setTimeout(look, 5)"
        self.value(f"new Promise((done) => {{ {look}; look(); }})")

    def value(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, when it is there."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.value(f"(() => {{ const b = {box}; return [b.x + b.width / 2, b.y + b.height / 2]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextmanager
def opened_browser(profile: Path, *, width: int = 1200, height: int = 900) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    assert CHROMIUM is not None
    (reads, to), (answers, writes) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    options += [f"--window-size={width},{height}", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-dev-shm-usage"]  # containers have little of it
    # The browser reads from descriptor 3 and writes to 4.
    command = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", CHROMIUM, *options]
    process = subprocess.Popen(command, pass_fds=(reads, writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(reads)
    os.close(writes)
    in_time = threading.Timer(120, process.kill)  # a browser that hangs ends the test
    in_time.start()
    try:
        try:
            browser = Browser(to, answers)
        except (AssertionError, OSError) as error:
            pytest.skip(f"{CHROMIUM} does not start here: {error}")
        yield browser
    finally:
        in_time.cancel()
        process.kill()
        process.wait()
        os.close(to)
