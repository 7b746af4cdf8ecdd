"""What looks after the holds of a process: one thread for deadlines and sessions, a few others that renew."""

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

from . import _core as core
from ._core import Tenure, now
from ._io import Link, run

Queue = queue.SimpleQueue[Callable[[], Any]]


class Clock:
    """One thread for the deadlines of all holds, and for the connections of sessions; a few others that renew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heap: list[tuple[float, int, Tenure]] = []
        self.number, self.stale = itertools.count(), 0
        self.selector = selectors.DefaultSelector()
        self.bell, hearer = socket.socketpair()
        hearer.setblocking(False)
        self.selector.register(hearer, selectors.EVENT_READ, None)
        self.hearer = hearer
        # Renewals that replicas are to acknowledge have threads of their own: no other one waits behind them.
        self.work: dict[bool, Queue] = {}
        self._start(self._watch)
        self._do(False)

    def _start(self, target: Callable[..., Any], *args: Any) -> None:
        threading.Thread(target=target, args=args, name="rlock-clock", daemon=True).start()

    def _do(self, has_acks: bool, *work: Callable[[], Any]) -> None:
        if has_acks not in self.work:
            self.work[has_acks] = queue.SimpleQueue()
            for _ in range(4):
                self._start(self._work, self.work[has_acks])
        for one in work:
            self.work[has_acks].put(one)

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
                core.log.exception("while looking after holds")

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
                        tenure.renews_at = now() + tenure.options.lease / 3
                        self._do(bool(tenure.options.acks), functools.partial(self._renew, tenure, core.renew))
                    when = min(tenure.renews_at, tenure.deadline)
                    heapq.heappush(self.heap, (when, next(self.number), tenure))
            if is_lost:
                self.lose(tenure)

    def _session_spoke(self, tenure: Tenure, link: Link) -> None:
        if tenure.state == "held" and tenure.io._is_quiet(link):
            return  # nothing for us: TLS has messages of its own
        self.untie(link)
        tenure.link = None
        tenure.io.drop(link)
        if tenure.state == "held":
            self._do(bool(tenure.options.acks), functools.partial(self._renew, tenure, core.tie))

    def _work(self, work: Queue) -> None:
        while True:
            work.get()()

    def _renew(self, tenure: Tenure, how: Callable[..., core.Steps]) -> None:
        try:
            if run(how(tenure.io, tenure)):
                self.lose(tenure)
            elif how is core.tie and tenure.link is not None:
                self.watch(tenure)
        except Exception:
            pass  # the next renewal tries again, and the clock runs

    def lose(self, tenure: Tenure) -> None:
        for call in tenure.lose():
            try:
                call()
            except Exception:
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        if tenure.link is not None:
            self.untie(tenure.link)
            tenure.io.drop(tenure.link)
