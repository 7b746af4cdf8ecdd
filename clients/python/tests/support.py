"""A real server behind the proxy of the conformance script."""

import os
import pathlib
import sys

import pytest
import redis

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "conformance"))

from resp import ask, lock_info, section  # noqa: E402
from servers import Standalone, until  # noqa: E402


class Server(Standalone):
    def client(self, kind=redis.Redis, **options):
        host, port = self.proxy.address.split(":")
        return kind(host=host, port=int(port), **options)

    def ask(self, *words):
        return ask(self.one.address, *words)

    def holders(self, key):
        return [(holder["owner"], holder["token"]) for holder in lock_info(self.one.address, key)["holders"]]

    def waiting(self, key):
        return lock_info(self.one.address, key)["queue-length"]

    def connections(self):
        """How many were ever accepted, but for the one that asks."""
        self.asked = getattr(self, "asked", 0) + 1
        return int(section(self.one.address, "stats")["total_connections_received"]) - self.asked


@pytest.fixture
def one_server(tmp_path):
    server = Server(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    yield server
    server.close()
