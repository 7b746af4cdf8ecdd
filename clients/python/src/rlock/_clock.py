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
from typing import Any, Callable

from ._core import Steps, Tenure, log, ms, now
from ._io import run
from ._keep import HoldRenewal, Keeper
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


class Clock(Keeper):
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

    def wake_at(self, tenure: Tenure, at: float) -> None:
        with self.lock:
            is_first = not self.heap or at < self.heap[0][0]
            tenure.wakes = at
            heapq.heappush(self.heap, (at, next(self.number), tenure))
        if is_first:
            self.bell.send(b"!")

    def watch(self, tenure: Tenure) -> None:
        link = tenure.link
        link.watched = link.conn._sock
        try:
            self.selector.register(link.watched, selectors.EVENT_READ, (tenure, link))
        except KeyError:  # another `Locks` is being closed, and its socket had the same number
            with contextlib.suppress(KeyError):
                self.selector.unregister(link.watched)
            self.selector.register(link.watched, selectors.EVENT_READ, (tenure, link))
        self.bell.send(b"!")

    def forget(self, tenure: Tenure, is_released: bool) -> None:
        """Its timer remains until its time, or until there are too many such timers."""
        super().forget(tenure, is_released)
        self.stale += 1
        if self.stale > 1000 and self.stale > len(self.heap) // 2:
            with self.lock:
                self.heap = [entry for entry in self.heap if entry[2].state == "held"]
                heapq.heapify(self.heap)
                self.stale = 0

    def untie(self, link: Link) -> None:
        if link.watched is not None:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(link.watched)
            link.watched = None

    def call(self, call: Callable[[], Any]) -> None:
        self.workers.call(call)

    def begin(self, io: Any, steps: Steps) -> None:
        self.workers.do((io, "observers"), lambda: run(steps))

    def renew(self, renewal: HoldRenewal, steps: Steps) -> None:
        tenure = renewal.tenure
        # Whatever the machine waits for, it gets the deadline in time; the work ends by itself.
        self.wake_at(tenure, tenure.deadline)
        address = tenure.io.route.of(tenure.seat.key)
        if renewal.machine.at != "send":
            self.workers.do((tenure.io, address), lambda: renewal.tell(*run(steps)))
        else:
            # Batched with renewals that may take about as long: they fail together.
            renewal.job.is_batched = True
            self.renewals.add((tenure.io, address, renewal.machine.lease.bit_length()), renewal, steps)

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
            if tenure.state == "held" and tenure.wakes == at:
                self.wake(tenure)

    def _session_spoke(self, tenure: Tenure, link: Link) -> None:
        if tenure.state == "held" and tenure.io._is_quiet(link):
            return  # nothing for us: TLS has messages of its own
        self.untie(link)
        tenure.link = None
        tenure.io.drop(link)
        if tenure.state == "held":
            self.tell(tenure, "untied")
