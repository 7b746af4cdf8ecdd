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
    """An exception as a signal's handler may raise it."""


@contextlib.contextmanager
def interrupted_after(seconds):
    """Ends the body after this time by an exception of a signal's handler; the body must take longer."""

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
        """Delivers what the proxy kept; it has been executed when this returns. From now on, the proxy keeps nothing."""
        self.proxy.fault({"proxy": "heal"})
        self.proxy.fault({"proxy": "kept"})
        before, kept = self.calls(), len(self.proxy.kept)
        self.proxy.fault({"proxy": "deliver"})
        until("what was kept is executed", lambda: self.calls() >= before + kept)

    def calls(self):
        """How many of the requests that can be kept were executed."""
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
        """How many connections were ever accepted, without the one that asks."""
        self.asked = getattr(self, "asked", 0) + 1
        return int(section(self.one.address, "stats")["total_connections_received"]) - self.asked


def connected(server):
    """The current connections, without the one that asks."""
    return len(server.ask("CLIENT", "LIST", "TYPE", "normal").splitlines()) - 1


def subscriptions(server):
    """Connections that receive late replies."""
    return len(server.ask("CLIENT", "LIST", "TYPE", "pubsub").splitlines())


@pytest.fixture
def one_server(tmp_path):
    server = Server(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    yield server
    server.close()
