"""The idle connections to one server, and the callers that wait for one, or for other work that one of them does."""

from __future__ import annotations

import heapq
import random
import threading
import time
from typing import Any, Callable, Optional

from . import _core as core
from ._core import now
from ._errors import Broken, Unsent
from ._hands import acquires
from ._links import Address, translated


class Link:
    """A connection of this package."""

    __slots__ = ("conn", "address", "is_open", "used", "watched", "is_brief")

    def __init__(self, conn: Any, address: Optional[Address]):
        self.conn, self.address, self.is_open, self.used = conn, address, True, now()
        self.watched: Any = None  # while it is a session's: its socket, or the task that hears of its end
        self.is_brief = False  # lent to a request that is answered at once


class Queued:
    """A caller that waits for a connection. Callers are ordered by deadline, so renewals come first; but no caller
    waits forever.
    """

    __slots__ = ("until", "is_brief", "since", "order")

    def __init__(self, until: float, is_brief: bool):
        self.until, self.is_brief, self.since = until, is_brief, now()
        self.order = min(until, self.since + core.REPLY), self.since

    def __lt__(self, other: "Queued") -> bool:
        return self.order < other.order


class Waiter(Queued):
    """A thread that waits: its lock is released when there is a link or an error."""

    __slots__ = ("came", "link", "error")

    def __init__(self, until: float, is_brief: bool):
        super().__init__(until, is_brief)
        self.link: Optional[Link] = None
        self.error: Optional[Exception] = None
        self.came = threading.Lock()
        self.came.acquire()


class IdleConnections:
    """The connections, for threads or tasks, and when another one is opened.

    Requests that do not wait use up to BRIEF connections. If one of them has waited for LATE, another connection is
    opened, at most one every DIALS: when there are many callers, they wait for a processor, and connecting would
    take even more of its time.
    """

    BRIEF = 16

    def __init__(self) -> None:
        self.idle: list[Any] = []
        self.brief = 0  # lent to requests that are answered at once
        self.dialed = 0.0

    def lend(self, link: Any, is_brief: bool) -> Any:
        link.is_brief = is_brief
        self.brief += is_brief
        return link

    def returned(self, link: Any) -> None:
        self.brief -= link.is_brief
        link.is_brief = False

    def silent_since(self, since: float) -> list[Any]:
        """Takes the connections that have received nothing since then."""
        silent = [link for link in self.idle if link.used < since]
        self.idle = [link for link in self.idle if link.used >= since]
        return silent

    def is_due(self, first: Any) -> bool:
        """Whether another connection is to be opened for the caller that is next."""
        if not first.is_brief or self.brief < self.BRIEF:
            return True
        return now() >= first.since + core.LATE and now() >= self.dialed + core.DIALS


def rests_until() -> float:
    """Until when a server that could not be reached is left alone."""
    return now() + core.DIALS * (0.5 + random.random())


class OnceBase:
    """Work that may take long, and that one thread or task does for all callers that need it."""

    def __init__(self) -> None:
        self.running: dict[Any, Any] = {}
        self.failed: dict[Any, tuple[float, str]] = {}

    def _raise_recent_failure(self, name: Any) -> None:
        """Raises Unsent if the work failed a moment ago for other callers."""
        again_at, error = self.failed.get(name, (0.0, ""))
        if now() < again_at:
            raise Unsent(error)

    def _record_failure(self, name: Any, error: Exception) -> Exception:
        """Returns the error for the callers."""
        problem = translated(error)
        if not isinstance(problem, Broken):
            return problem
        self.failed[name] = rests_until(), str(problem)
        return Unsent(str(problem))


class Pool(IdleConnections):
    """Each connection that is returned or opened wakes one of the waiting callers."""

    def __init__(self, dial: Callable[[], Link], keep: Callable[[Link], None]):
        super().__init__()
        self.dial, self.keep = dial, keep
        self.lock = threading.Lock()
        self.waiters: list[Waiter] = []  # a heap
        self.is_dialing = False
        self.rests_until = 0.0
        self.error = ""

    def take(self, is_brief: bool, until: float) -> Link:
        """An idle connection. Raises Unsent if connecting takes too long, fails, or failed for another caller a moment
        ago."""
        with self.lock:
            if self.idle and not self.waiters:
                return self.lend(self.idle.pop(), is_brief)  # type: ignore[no-any-return]
        waiter = Waiter(until, is_brief)
        try:
            self._wait(waiter)
        except BaseException:
            self._withdraw(waiter)
            raise
        if waiter.link is not None:
            return waiter.link
        if waiter.error is None:
            raise Unsent("not connected in time")
        raise Unsent(str(waiter.error)) if isinstance(waiter.error, Broken) else waiter.error.with_traceback(None)

    def _wait(self, waiter: Waiter) -> None:
        with self.lock:
            if not self.is_dialing and now() < self.rests_until:
                raise Unsent(self.error)
            if self.idle:
                waiter.link = self.lend(self.idle.pop(), waiter.is_brief)
                return
            heapq.heappush(self.waiters, waiter)
            if not self.is_dialing:
                # Started first: after an interrupt, there must be no server that nobody connects to.
                threading.Thread(target=self._connect, name="rlock-dial", daemon=True).start()
                self.is_dialing = True
        if not acquires(waiter.came, waiter.until - now()):
            self._leave(waiter)

    def _leave(self, waiter: Waiter) -> None:
        with self.lock:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
                heapq.heapify(self.waiters)

    def _withdraw(self, waiter: Waiter) -> None:
        """Withdraws a waiter that was interrupted."""
        self._leave(waiter)
        if waiter.link is not None:
            self.keep(waiter.link)

    def give(self, link: Link) -> bool:
        """Returns whether the link can be reused."""
        with self.lock:
            self.returned(link)
            if self.waiters:
                waiter = heapq.heappop(self.waiters)
                waiter.link = self.lend(link, waiter.is_brief)
                waiter.came.release()
            elif len(self.idle) < self.BRIEF:
                self.idle.append(link)
            else:
                return False
        return True

    def lost(self, link: Link) -> None:
        """Forgets a link that is closed."""
        with self.lock:
            self.returned(link)

    def silent_since(self, since: float) -> list[Any]:
        with self.lock:
            return super().silent_since(since)

    def fail(self, problem: Exception) -> None:
        """A server that could not be reached is left alone for a moment."""
        with self.lock:
            if isinstance(problem, Broken):
                self.rests_until, self.error = rests_until(), str(problem)
            self.is_dialing = False
            while self.waiters:
                waiter = self.waiters.pop()
                waiter.error = problem
                waiter.came.release()

    def close(self) -> None:
        with self.lock:
            self.idle.clear()
        self.fail(Broken("the connections are closed"))

    def _connect(self) -> None:
        """Opens one connection after another while somebody waits for them."""
        while True:
            with self.lock:
                if not self.waiters:
                    self.is_dialing = False
                    return
                is_due = self.is_due(self.waiters[0])
            if not is_due:
                time.sleep(core.LATE)
                continue
            try:
                link = self.dial()
            except BaseException as error:  # whatever it is, somebody waits
                return self.fail(translated(error) if isinstance(error, Exception) else Broken(repr(error)))
            self.dialed, self.rests_until = now(), 0.0
            self.keep(link)
