"""What looks after the holds of a process: one thread for deadlines and sessions, others that renew."""

from __future__ import annotations

import functools
import heapq
import itertools
import queue
import selectors
import socket
import sys
import threading
from typing import Any, Callable, Optional

from ._attempt import Steps, renew, tie
from ._core import Tenure, log, now
from ._io import Link, run

Queue = queue.SimpleQueue[Callable[[], Any]]


class Workers:
    """Threads for each of what may be slow: a silent server delays the work for no other one. They end when idle."""

    MOST, IDLE = 2, 10.0

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Any, tuple[Queue, list[int]]] = {}

    def do(self, name: Any, work: Callable[[], Any]) -> None:
        with self.lock:
            todo, counts = self.queues.setdefault(name, (queue.SimpleQueue(), [0, 0]))  # threads, and work for them
            counts[1] += 1
            todo.put(work)
            if counts[0] < min(self.MOST, counts[1]):
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


class Clock:
    """One thread for the deadlines of all holds, and for the connections of sessions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heap: list[tuple[float, int, Tenure]] = []
        self.number, self.stale = itertools.count(), 0
        self.selector = selectors.DefaultSelector()
        self.bell, hearer = socket.socketpair()
        hearer.setblocking(False)
        self.selector.register(hearer, selectors.EVENT_READ, None)
        self.hearer = hearer
        self.workers = Workers()
        threading.Thread(target=self._watch, name="rlock-clock", daemon=True).start()

    def add(self, tenure: Tenure) -> None:
        when = min(tenure.renews_at, tenure.deadline)
        with self.lock:
            is_first = not self.heap or when < self.heap[0][0]
            heapq.heappush(self.heap, (when, next(self.number), tenure))
        if tenure.link is not None:
            self.watch(tenure)
        elif is_first:
            self.bell.send(b"!")

    def watch(self, tenure: Tenure) -> None:
        """A session: the end of its connection is heard of at once."""
        link = tenure.link
        link.watched = link.conn._sock
        self.selector.register(link.watched, selectors.EVENT_READ, (tenure, link))
        self.bell.send(b"!")

    def forget(self, tenure: Tenure) -> None:
        """Its entry stays until its time, or until there are too many such."""
        self.untie(tenure.link)
        self.stale += 1
        if self.stale > 1000 and self.stale > len(self.heap) // 2:
            with self.lock:
                self.heap = [entry for entry in self.heap if entry[2].state == "held"]
                heapq.heapify(self.heap)
                self.stale = 0

    def forget_all(self, io: Any) -> None:
        """Its holds are renewed no more; those of sessions end now."""
        with self.lock:
            tenures = [tenure for _, _, tenure in self.heap if tenure.io is io and tenure.link is not None]
        for tenure in tenures:
            self.lose(tenure)

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
                pause = max(0.0, self.heap[0][0] - now()) if self.heap else 60.0
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
                if not self.heap or self.heap[0][0] > now():
                    return
                tenure = heapq.heappop(self.heap)[2]
                if tenure.state != "held":
                    self.stale = max(0, self.stale - 1)
                    continue
                is_lost = now() >= tenure.deadline
                if not is_lost:
                    if now() >= tenure.renews_at:
                        third = tenure.options.lease / 3
                        tenure.renews_at = now() + (third / 10 if tenure.is_queued else third)
                        self._renew_soon(tenure, renew)
                    when = min(tenure.renews_at, tenure.deadline)
                    heapq.heappush(self.heap, (when, next(self.number), tenure))
            if is_lost:
                self.lose(tenure)

    def _renew_soon(self, tenure: Tenure, how: Callable[..., Steps]) -> None:
        if not tenure.is_queued:
            tenure.is_queued = True
            # Renewals that replicas are to acknowledge take their time: no other one waits behind them.
            name = tenure.io, tenure.io.route.of(tenure.seat.key), bool(tenure.options.acks)
            self.workers.do(name, functools.partial(self._renew, tenure, how))

    def _session_spoke(self, tenure: Tenure, link: Link) -> None:
        if tenure.state == "held" and tenure.io._is_quiet(link):
            return  # nothing for us: TLS has messages of its own
        self.untie(link)
        tenure.link = None
        tenure.io.drop(link)
        if tenure.state == "held":
            tenure.is_queued = False  # sooner than a renewal that may be under way
            self._renew_soon(tenure, tie)

    def _renew(self, tenure: Tenure, how: Callable[..., Steps]) -> None:
        try:
            if tenure.is_orphaned:
                log.warning("%s: nobody can release it any more, because %s has ended", tenure.seat.key, tenure.seat.owner)
                self.lose(tenure)
            elif run(how(tenure.io, tenure)):
                self.lose(tenure)
            elif how is tie and tenure.link is not None:
                self.watch(tenure)
        except Exception:
            pass  # the next renewal tries again, and the clock runs
        finally:
            tenure.is_queued = False

    def lose(self, tenure: Tenure) -> None:
        for call in tenure.lose():
            self.workers.do("calls", call)
        if tenure.link is not None:
            self.untie(tenure.link)
            tenure.io.drop(tenure.link)
