"""A headless Chromium, driven by its DevTools protocol over a pipe: https://chromedevtools.github.io/devtools-protocol."""

import base64
import contextlib
import json
import os
import select
import subprocess
import tempfile
import time


class ScriptFailed(Exception):
    """What the page threw."""


class Browser:
    """One page. `complaints` has the errors and warnings that it logged, `requests` the requests that it sent."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory()
        (from_us, self.to), (self.back, from_it) = os.pipe(), os.pipe()

        def as_3_and_4():
            # Both descriptors may be 3 or 4 already.
            read, write = os.dup(from_us), os.dup(from_it)
            os.dup2(read, 3)
            os.dup2(write, 4)

        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-dev-shm-usage", "--force-color-profile=srgb",
                 f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(words, preexec_fn=as_3_and_4, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(from_us)
        os.close(from_it)
        self.rest, self.number, self.session = b"", 0, None
        self.complaints, self.requests, self.dialogs = [], [], []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.profile.cleanup()

    def ask(self, method, **params):
        self.number += 1
        number = self.number
        told = {"id": number, "method": method, "params": params}
        if self.session:
            told["sessionId"] = self.session
        os.write(self.to, json.dumps(told).encode() + b"\0")
        while True:
            said = self.read(300)
            if said.get("id") == number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]

    def read(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], max(0, end - time.monotonic()))
            assert ready, f"the browser said nothing for {seconds} s"
            some = os.read(self.back, 1 << 20)
            assert some, "the browser ended"
            self.rest += some
        line, self.rest = self.rest.split(b"\0", 1)
        said = json.loads(line)
        self.note(said.get("method"), said.get("params", {}))
        return said

    def note(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(" ".join(str(arg.get("value")) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def run(self, script):
        """The value of an expression on the page."""
        said = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise ScriptFailed(said["exceptionDetails"])
        return said["result"].get("value")

    def text(self, id):
        return self.run(f"document.getElementById({json.dumps(id)}).innerText")

    def until(self, what, script, seconds=180):
        end = time.monotonic() + seconds
        while True:
            # While the browser navigates from one page to the next, there is no document.
            with contextlib.suppress(ScriptFailed):
                if value := self.run(script):
                    return value
            assert time.monotonic() < end, f"not within {seconds} s: {what}; the page says:\n{self.run('document.body?.innerText')}"
            time.sleep(0.05)

    def size(self, width, height, is_phone=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if is_phone else 1, mobile=is_phone)

    def see(self, **features):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def picture(self, file, is_whole=True):
        taken = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        file.write_bytes(base64.b64decode(taken["data"]))
