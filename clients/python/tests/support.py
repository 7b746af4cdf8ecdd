"""A real server behind the proxy of the conformance script."""

import contextlib
import os
import pathlib
import signal
import sys

import pytest
import redis

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "conformance"))

from resp import ask, lock_info, section  # noqa: E402
from servers import Standalone, until  # noqa: E402


class Interrupt(BaseException):
    """As a signal's handler may raise."""


@contextlib.contextmanager
def interrupted_after(seconds):
    """What is done meanwhile takes longer, and a signal's handler ends it."""

    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(Interrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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

    def deliver(self):
        """What the proxy kept is executed, when this returns; from now on it keeps nothing."""
        self.proxy.fault({"proxy": "heal"})
        self.proxy.fault({"proxy": "kept"})
        before, kept = self.calls(), len(self.proxy.kept)
        self.proxy.fault({"proxy": "deliver"})
        until("what was kept is executed", lambda: self.calls() >= before + kept)

    def calls(self):
        """How many requests that can be kept were executed."""
        stats = section(self.one.address, "commandstats")
        wanted = (stats.get(f"cmdstat_{name}", "calls=0") for name in ("rlock.release", "rlock.info"))
        return sum(int(each.split(",")[0].split("=")[1]) for each in wanted)

    def called(self, name):
        """How often that command was executed."""
        return int(section(self.one.address, "commandstats").get(f"cmdstat_{name}", "calls=0").split(",")[0].split("=")[1])

    def info(self, name):
        return int(section(self.one.address, "rlock")[name])

    def renewals(self):
        return self.called("rlock.renew")

    def connections(self):
        """How many were ever accepted, but for the one that asks."""
        self.asked = getattr(self, "asked", 0) + 1
        return int(section(self.one.address, "stats")["total_connections_received"]) - self.asked


def connected(server):
    """But for the connection that asks."""
    return len(server.ask("CLIENT", "LIST", "TYPE", "normal").splitlines()) - 1


def subscriptions(server):
    """Connections that get the replies that a server could not give at once."""
    return len(server.ask("CLIENT", "LIST", "TYPE", "pubsub").splitlines())


@pytest.fixture
def one_server(tmp_path):
    server = Server(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    yield server
    server.close()
