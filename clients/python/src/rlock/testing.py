"""A real server with the module, for tests: on a free port, and without data. Nothing here imitates a lock.

    pytest_plugins = ["rlock.testing"]    # in conftest.py

    def test_that_it_locks(rlock_server):
        client = redis.Redis.from_url(rlock_server.url)

`rlock_server` is one server for the whole run, emptied for each test. The environment says which one: RLOCK_MODULE is the
path of librlock.so, and RLOCK_SERVER that of redis-server or valkey-server, unless one of these is on the PATH.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Any, Iterator, Optional

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Seconds for which a server may start.
STARTS = 20.0
#: How often it is started anew because somebody else has taken its port.
TRIES = 5


class Server:
    """A server of its own, with further words of its command line. Use it in a `with`, or call `stop`."""

    def __init__(self, *words: str, server: Optional[str] = None, module: Optional[str] = None):
        found = server or os.environ.get("RLOCK_SERVER") or shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError("there is no server: set RLOCK_SERVER to the path of redis-server or valkey-server")
        library = module or os.environ.get("RLOCK_MODULE")
        if library is None or not pathlib.Path(library).is_file():
            raise RuntimeError(f"there is no module: set RLOCK_MODULE to the path of librlock.so (it is {library})")
        self.folder = tempfile.mkdtemp(prefix="rlock-testing-")
        self._words = [found, "--bind", "127.0.0.1", "--dir", self.folder, "--save", "", "--loadmodule", str(pathlib.Path(library).resolve()), *words]
        self.port = 0
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> redis.Redis:
        """A new client."""
        return redis.Redis(port=self.port, **options)

    def start(self) -> None:
        """Starts it, or starts it again after `kill`, at the same port."""
        for tries in range(TRIES):
            port = self.port or free_port()
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen([*self._words, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            if self._answers(port):
                self.port = port
                return
        raise RuntimeError(f"the server did not start:\n{pathlib.Path(self.log).read_text()[-2000:]}")

    @property
    def log(self) -> str:
        """The path of what it has written."""
        return os.path.join(self.folder, "log")

    def _answers(self, port: int) -> bool:
        end = time.monotonic() + STARTS
        with redis.Redis(port=port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as client:
            while time.monotonic() < end and self.process.poll() is None:
                try:
                    if client.info("server")["process_id"] == self.process.pid:
                        return True
                except redis.AuthenticationError:
                    return True
                except redis.RedisError:
                    pass
                time.sleep(0.01)
        self.kill()
        return False

    def kill(self) -> None:
        """Ends it, as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends it, and removes its folder."""
        if hasattr(self, "process"):
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture(scope="session")
    def rlock_started() -> Iterator[Server]:
        """The server of `rlock_server`, as the last test has left it."""
        with Server() as server:
            yield server

    @pytest.fixture
    def rlock_server(rlock_started: Server) -> Server:
        """A server with the module, without any data."""
        with rlock_started.client() as client:
            client.flushall()
        return rlock_started
