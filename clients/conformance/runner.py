"""A runner: the process of one package, which does what it is asked for."""

import concurrent.futures
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future


def unix_ms():
    return time.time() * 1000


class Runner:
    """One runner's process, and its replies as futures."""

    def __init__(self, name, command, world=None, environment=None):
        self.name = name
        self.errors = tempfile.TemporaryFile()
        self.world = world
        pipe, words = subprocess.PIPE, shlex.split(command)
        if world is not None:
            words = world.around(words)
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=os.environ | (environment or {}))
        self.futures, self.last_id = {}, 0
        self.hello = Future()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.features = set(self.hello.result(60)["features"]) | {"standalone", "replicated"}
        except (concurrent.futures.TimeoutError, ConnectionError):
            raise SystemExit(f"the runner {name} does not start: {self.said()}") from None

    def _read(self):
        for line in self.process.stdout:
            try:
                reply = json.loads(line)
            except ValueError:
                print(f"{self.name} wrote no JSON: {line!r}", file=sys.stderr)
                continue
            future = self.hello if "hello" in reply else self.futures.pop(reply.pop("id"), None)
            if future:
                future.at = unix_ms()
                future.set_result(reply)
        for future in (self.hello, *self.futures.values()):
            if not future.done():
                future.set_exception(ConnectionError("the runner has ended"))

    def ask(self, request):
        self.last_id += 1
        future = Future()
        future.id, future.began = self.last_id, time.monotonic()
        self.futures[self.last_id] = future
        try:
            self.process.stdin.write(json.dumps({"id": self.last_id, **request}) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise AssertionError(f"the runner has ended: {error}") from None
        return future

    def complaints(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def said(self):
        return self.complaints()[-3000:]

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        if self.world is not None:
            self.world.close()
