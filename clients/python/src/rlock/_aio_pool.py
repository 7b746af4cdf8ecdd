"""The connections to one server that no task uses, and the tasks that wait for one."""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Optional

from ._core import now
from ._links import Address
from ._pool import Queued, Shelf


class Link:
    """A connection of our own."""

    __slots__ = ("conn", "address", "is_open", "used", "watcher", "is_brief")

    def __init__(self, conn: Any, address: Optional[Address]):
        self.conn, self.address, self.is_open, self.used = conn, address, True, now()
        self.watcher: Optional[asyncio.Task[None]] = None  # that hears of the end of a session
        self.is_brief = False  # lent to a request that is answered at once


class Waiter(Queued):
    """A task that waits: its turn brings a link, or None."""

    __slots__ = ("turn",)

    def __init__(self, until: float, is_brief: bool):
        super().__init__(until, is_brief)
        self.turn: asyncio.Future[Optional[Link]] = asyncio.get_running_loop().create_future()


class Pool(Shelf):
    """Each connection that comes back, or is made, wakes one task. Were all of them told of each, a thousand tasks would
    wake up a thousand times.
    """

    def __init__(self, waiting: int):
        super().__init__(waiting)
        self.waiters: list[Waiter] = []  # a heap

    def wait(self, is_brief: bool, until: float) -> asyncio.Future[Optional[Link]]:
        waiter = Waiter(until, is_brief)
        heapq.heappush(self.waiters, waiter)
        return waiter.turn

    def first(self) -> Optional[Waiter]:
        """The next one to get a connection. Those whose time is over, or who were canceled, are left out."""
        while self.waiters and self.waiters[0].turn.done():
            heapq.heappop(self.waiters)
        return self.waiters[0] if self.waiters else None

    def give(self, link: Link) -> bool:
        """Whether it is of use."""
        self.returned(link)
        if (first := self.first()) is not None:
            first.turn.set_result(self.lend(link, first.is_brief))
        elif len(self.idle) < self.most:
            self.idle.append(link)
        else:
            return False
        return True

    def none_comes(self) -> None:
        for waiter in self.waiters:
            if not waiter.turn.done():
                waiter.turn.set_result(None)
        self.waiters.clear()
