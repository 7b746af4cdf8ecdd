"""What looks after the holds of a process: one thread for deadlines and sessions, others for renewals."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import selectors
import socket
import sys
import threading
from typing import Any, Callable, Optional

from ._core import Tenure, log, ms, now
from ._drive import HoldRenewal, Steps
from ._io import run
from ._pool import Link

Queue = queue.SimpleQueue[Callable[[], Any]]


class Workers:
    """Separate threads for each kind of work that may be slow: a silent server delays no work for other servers. They
    end when idle."""

    MOST, IDLE = 2, 10.0

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Any, tuple[Queue, list[int]]] = {}

    #: A user's function that blocks occupies its thread. This many may block before others have to wait.
    CALLS = 256

    def call(self, call: Callable[[], Any]) -> None:
        """Runs a user's function, which may block."""
        self.do("calls", call, self.CALLS)

    def do(self, name: Any, work: Callable[[], Any], most: int = MOST) -> None:
        """Does the work in a thread; at most this many threads do work of that name."""
        with self.lock:
            todo, counts = self.queues.setdefault(name, (queue.SimpleQueue(), [0, 0]))  # threads, and work for them
            counts[1] += 1
            todo.put(work)
            if counts[0] < min(most, counts[1]):
                threading.Thread(target=self._work, args=(name, todo, counts), name="rlock-worker", daemon=True).start()
                counts[0] += 1

    def _work(self, name: Any, todo: Queue, counts: list[int]) -> None:
        while True:
            try:
                work = todo.get(timeout=self.IDLE)
            except queue.Empty:
                with self.lock:
                    if not todo.empty():
                        continue
                    counts[0] -= 1
                    if counts[0] == 0:
                        del self.queues[name]
                    return
            try:
                work()
            except BaseException:  # SystemExit too ends nothing here
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            with self.lock:
                counts[1] -= 1


class Renewals:
    """Renewals that come due while the threads are busy are sent together: otherwise, a distant server would delay the
    last ones."""

    def __init__(self, workers: Workers):
        self.workers, self.lock = workers, threading.Lock()
        self.waiting: dict[Any, list[tuple[HoldRenewal, Steps]]] = {}

    def add(self, name: Any, renewal: HoldRenewal, steps: Steps) -> None:
        with self.lock:
            waiting = self.waiting.setdefault(name, [])
            waiting.append((renewal, steps))
            is_first = len(waiting) == 1
        if is_first:  # the first that sends it takes the others along
            self.workers.do(name, lambda: self._renew(name))

    def _renew(self, name: Any) -> None:
        with self.lock:
            taken = self.waiting.pop(name)
        asked = [next(steps) for _, steps in taken]
        try:
            replies = taken[0][0].tenure.io.send_all(asked)
        except Exception as error:
            replies = [error] * len(taken)
        for (renewal, steps), reply in zip(taken, replies):
            try:
                steps.throw(reply.with_traceback(None)) if isinstance(reply, Exception) else steps.send(reply)
            except StopIteration as stop:
                renewal.tell(*stop.value)


class Clock:
    """One thread for the deadlines of all holds, and for the connections of sessions."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.heap: list[tuple[float, int, Tenure]] = []
        self.number, self.stale = itertools.count(), 0
        self.selector = selectors.DefaultSelector()
        self.bell, hearer = socket.socketpair()
        hearer.setblocking(False)
        self.selector.register(hearer, selectors.EVENT_READ, None)
        self.hearer = hearer
        self.workers = Workers()
        self.renewals = Renewals(self.workers)
        threading.Thread(target=self._watch, name="rlock-clock", daemon=True).start()

    def add(self, tenure: Tenure) -> None:
        self.wake_at(tenure, tenure.due)
        if tenure.link is not None:
            self.watch(tenure)

    def renew(self, tenure: Tenure) -> None:
        """Renews it in a different way from now on."""
        self.wake_at(tenure, tenure.due)
        if tenure.is_doubted:
            self.tell(tenure, "untied")

    def wake_at(self, tenure: Tenure, at: float) -> None:
        with self.lock:
            is_first = not self.heap or at < self.heap[0][0]
            tenure.wakes = at
            heapq.heappush(self.heap, (at, next(self.number), tenure))
        if is_first:
            self.bell.send(b"!")

    def watch(self, tenure: Tenure) -> None:
        """For a session: reports the end of its connection at once."""
        link = tenure.link
        link.watched = link.conn._sock
        try:
            self.selector.register(link.watched, selectors.EVENT_READ, (tenure, link))
        except KeyError:  # another `Locks` is being closed, and its socket had the same number
            with contextlib.suppress(KeyError):
                self.selector.unregister(link.watched)
            self.selector.register(link.watched, selectors.EVENT_READ, (tenure, link))
        self.bell.send(b"!")

    def forget(self, tenure: Tenure) -> None:
        """Its entry remains until its time, or until there are too many such entries."""
        self.untie(tenure.link)
        if tenure.renewal is not None:
            tenure.renewal.tell("released")
        self.stale += 1
        if self.stale > 1000 and self.stale > len(self.heap) // 2:
            with self.lock:
                self.heap = [entry for entry in self.heap if entry[2].state == "held"]
                heapq.heapify(self.heap)
                self.stale = 0

    def forget_all(self, io: Any) -> None:
        """Holds are no longer renewed; those with sessions end now."""
        with self.lock:
            tenures = {tenure for _, _, tenure in self.heap if tenure.io is io and tenure.state == "held"}
        for tenure in tenures:
            # The link does not decide: this thread may know already that the connection is closed.
            if tenure.options.session:
                self.lose(tenure)
            else:
                self.tell(tenure, "close")

    def untie(self, link: Optional[Link]) -> None:
        if link is not None and link.watched is not None:
            try:
                self.selector.unregister(link.watched)
            except (KeyError, ValueError):
                pass
            link.watched = None

    def _watch(self) -> None:
        while True:
            with self.lock:
                pause = max(0.0, self.heap[0][0] / 1000 - now()) if self.heap else 60.0
            try:
                for key, _ in self.selector.select(pause):
                    if key.data is None:
                        self.hearer.recv(4096)
                    else:
                        self._session_spoke(*key.data)
                self._due()
            except Exception:  # the deadlines of others depend on this thread
                log.exception("while looking after holds")

    def _due(self) -> None:
        while True:
            with self.lock:
                if not self.heap or self.heap[0][0] > ms():
                    return
                at, _, tenure = heapq.heappop(self.heap)
                if tenure.state != "held":
                    self.stale = max(0, self.stale - 1)
            if tenure.state != "held" or tenure.wakes != at:
                continue
            if tenure.is_orphaned:
                log.warning("%s: nobody can release it anymore, because %s has ended", tenure.seat.key, tenure.seat.owner)
                self.lose(tenure)
            elif ms() >= tenure.deadline:
                self.lose(tenure)
            else:
                self.tell(tenure, "time" if tenure.renewal else "call")

    def _session_spoke(self, tenure: Tenure, link: Link) -> None:
        if tenure.state == "held" and tenure.io._is_quiet(link):
            return  # nothing for us: TLS has messages of its own
        self.untie(link)
        tenure.link = None
        tenure.io.drop(link)
        if tenure.state == "held":
            self.tell(tenure, "untied")

    def tell(self, tenure: Tenure, *told: Any) -> None:
        """Passes an input to the hold's machine; from now on, the hold is looked after."""
        with self.lock:
            if tenure.renewal is None:
                tenure.renewal = ByThreads(self, tenure)
                if tenure.state == "releasing":
                    tenure.renewal.tell("releasing")
                if told == ("call",):  # with which it has begun
                    return
            tenure.renewal.tell(*told)

    def lose(self, tenure: Tenure) -> None:
        if tenure.renewal is not None:
            tenure.renewal.tell("gone")
        for call in tenure.lose():
            self.workers.call(call)
        if tenure.link is not None:
            self.untie(tenure.link)
            tenure.io.drop(tenure.link)


class ByThreads(HoldRenewal):
    """Work that takes time is done by worker threads."""

    def __init__(self, clock: Clock, tenure: Tenure):
        self.clock = clock
        super().__init__(tenure)

    def tell(self, *told: Any) -> None:
        with self.clock.lock:
            super().tell(*told)

    def wake_at(self, at: float) -> None:
        self.clock.wake_at(self.tenure, at)

    def begin(self, steps: Steps) -> None:
        # Whatever the machine waits for, it gets the deadline in time; the work ends by itself.
        self.clock.wake_at(self.tenure, self.tenure.deadline)
        io = self.tenure.io
        address = io.route.of(self.tenure.seat.key)
        if self.machine.at != "send":
            self.clock.workers.do((io, address), lambda: self.tell(*run(steps)))
        else:
            # Batched with renewals that may take about as long: they fail together.
            self.job.is_batched = True
            self.clock.renewals.add((io, address, self.machine.lease.bit_length()), self, steps)

    def watch(self) -> None:
        self.clock.watch(self.tenure)

    def lost(self) -> None:
        self.tenure.renewal = None
        self.clock.lose(self.tenure)
