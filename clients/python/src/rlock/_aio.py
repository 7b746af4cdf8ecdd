"""The input and output of the steps for asyncio: the package's own connections, and late replies."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import socket
import threading
from typing import Any, Callable, Optional

from . import _core as core
from ._core import Seat, Steps, now
from ._errors import Broken, Refused, Silent, Unsent
from ._inbox import Inbox, Post
from ._links import Address, packed, translated
from ._machine.words import FOREVER, Words
from ._pool import IdleConnections, Link, OnceBase, Queued
from ._wire import Wire


async def run(steps: Steps) -> Any:
    """Runs steps in which a call of `io` returns either an awaitable or the value itself."""
    try:
        value = next(steps)
        while True:
            if hasattr(value, "__await__"):
                try:
                    value = await value
                except BaseException as error:
                    value = steps.throw(error)
                    continue
            value = steps.send(value)
    except StopIteration as stop:
        return stop.value


async def _stays_closed(*_: Any, **__: Any) -> None:
    raise ConnectionError("the connection was closed")


class Waiter(Queued):
    """A task that waits: when its turn comes, it gets a link, or None."""

    __slots__ = ("turn",)

    def __init__(self, until: float, is_brief: bool):
        super().__init__(until, is_brief)
        self.turn: asyncio.Future[Optional[Link]] = asyncio.get_running_loop().create_future()


class Pool(IdleConnections):
    """Each connection that is returned or opened wakes one task. If it woke all of them, a thousand tasks would wake up
    a thousand times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[Waiter] = []  # a heap

    def wait(self, is_brief: bool, until: float) -> asyncio.Future[Optional[Link]]:
        waiter = Waiter(until, is_brief)
        heapq.heappush(self.waiters, waiter)
        return waiter.turn

    def first(self) -> Optional[Waiter]:
        """The next task to get a connection. Tasks that have timed out or were canceled are skipped."""
        while self.waiters and self.waiters[0].turn.done():
            heapq.heappop(self.waiters)
        return self.waiters[0] if self.waiters else None

    def give(self, link: Link) -> bool:
        """Returns whether the link can be reused."""
        self.returned(link)
        if (first := self.first()) is not None:
            first.turn.set_result(self.lend(link, first.is_brief))
        elif len(self.idle) < self.BRIEF:
            self.idle.append(link)
        else:
            return False
        return True

    def none_comes(self) -> None:
        for waiter in self.waiters:
            if not waiter.turn.done():
                waiter.turn.set_result(None)
        self.waiters.clear()


class Once(OnceBase):
    """A task does it."""

    def begin(self, name: Any, work: Callable[[], Any]) -> asyncio.Task[Any]:
        """The task that does the work. Raises Unsent if the work failed a moment ago for other callers."""
        task: Optional[asyncio.Task[Any]] = self.running.get(name)
        if task is None:
            self._raise_recent_failure(name)
            task = self.running[name] = asyncio.ensure_future(self._work(name, work))
        return task

    async def do(self, name: Any, work: Callable[[], Any], until: float) -> None:
        """Waits for the work. Raises Unsent if it failed, or is not done in time; then the work continues."""
        task = self.begin(name, work)
        await self.wait(task, until)
        self.check(task)

    @staticmethod
    async def wait(for_it: asyncio.Future[Any], until: float) -> None:
        """Raises Unsent if it is not done in time."""
        done, _ = await asyncio.wait({for_it}, timeout=None if until == float("inf") else max(until - now(), 0.0))
        if not done:
            raise Unsent("not connected in time")

    @staticmethod
    def check(task: asyncio.Task[Any]) -> None:
        """Raises the error of a task that has ended with one."""
        if task.cancelled():
            raise Unsent("the connections are closed")
        if (problem := task.result()) is not None:
            raise problem

    async def _work(self, name: Any, work: Callable[[], Any]) -> Optional[Exception]:
        try:
            await work()
            self.failed.pop(name, None)
            return None
        except Exception as error:
            return self._record_failure(name, error)
        finally:
            del self.running[name]


class TaskInbox(Inbox):
    """A task reads it."""

    def __init__(self, io: "IO", link: Link, asks: bool):
        super().__init__(io, link, asks)
        self.task = asyncio.ensure_future(self._read())

    @staticmethod
    def close(link: Link) -> None:
        link.is_open = False
        with contextlib.suppress(AttributeError, RuntimeError):  # its loop is closed
            link.conn._writer.transport.abort()

    def write(self, words: list[str]) -> None:
        with contextlib.suppress(AttributeError, OSError):  # the connection was closed, which the task notices
            self.link.conn._writer.write(packed(words))

    async def _read(self) -> None:
        try:
            while self.link.is_open:
                try:
                    message = await self.link.conn.read_response(disconnect_on_error=False)
                except Exception as error:
                    message = translated(error)
                    if not isinstance(message, Refused):
                        raise
                self.link.used = now()
                self.hear(message)
        except Exception as error:
            core.log.debug("the subscription has ended: %s", error)
        finally:
            self.over()


class IO(Wire):
    """The input and output of the steps, for any number of tasks of one loop."""

    run, _once, _reader = staticmethod(run), Once, TaskInbox

    def reset(self) -> None:
        super().reset()
        self.tasks: set[asyncio.Task[Any]] = set()

    @staticmethod
    def socket(link: Link) -> Any:
        return link.conn._writer.get_extra_info("socket")

    def left_behind(self) -> None:
        """The loop is closed: closes the sockets without it."""
        for link in self.links:
            with contextlib.suppress(AttributeError, OSError):
                self.socket(link).shutdown(socket.SHUT_RDWR)
        self.reset()

    sleep = staticmethod(asyncio.sleep)

    async def _learn_cluster(self) -> None:
        await self.route.client.initialize()
        self.route.take_cluster()

    async def _ask_sentinel(self) -> None:
        sentinel: Any = self.route.sentinel
        self.route.master = await sentinel.get_master_address()

    def _pool(self, address: Optional[Address]) -> Pool:
        pool = self.pools.get(address)
        if pool is None:
            pool = self.pools[address] = Pool()
        return pool

    async def open(self, key: str, until: float, where: Optional[Address] = None) -> Link:
        return await run(self._opening(key, until, where))  # type: ignore[no-any-return]

    def _lend(self, address: Optional[Address], is_brief: bool, until: float) -> Any:
        pool = self._pool(address)
        return pool.lend(pool.idle.pop(), is_brief) if pool.idle else self._next(address, is_brief, until)

    def _is_usable(self, link: Link) -> bool:
        return link.is_open and not link.conn._reader.at_eof()

    async def _next(self, address: Optional[Address], is_brief: bool, until: float) -> Link:
        """A connection that was dialed, or that another task no longer needs."""
        if self.is_closed:
            raise Unsent("the connections are closed")
        dials = self.once.begin(address, lambda: self._dials(address))
        turn = self._pool(address).wait(is_brief, until)
        try:
            await self.once.wait(turn, until)
        except BaseException:
            if not turn.cancel() and (link := turn.result()) is not None:
                self.keep(link)
            raise
        if (link := turn.result()) is None:
            await asyncio.wait({dials})
            self.once.check(dials)
            raise Unsent("not connected")
        return link

    async def _dials(self, address: Optional[Address]) -> None:
        """Opens one connection after another while somebody waits for them."""
        pool = self._pool(address)
        try:
            while (first := pool.first()) is not None:
                if pool.is_due(first):
                    self.keep(await run(self._dialing(address)))
                    pool.dialed = now()
                else:
                    await asyncio.sleep(core.LATE)
        finally:
            pool.none_comes()

    @staticmethod
    async def _connect(link: Link) -> None:
        async with asyncio.timeout(core.REPLY):
            await link.conn.connect()

    async def write(self, link: Link, *requests: list[Any]) -> None:
        try:
            await link.conn.send_packed_command([b"".join(map(packed, requests))], check_health=False)
        except Exception as error:
            self.drop(link)
            self.route.forget(link.address)
            raise translated(error, link.address) from error

    async def read(self, link: Link, timeout: float) -> Any:
        """Raises Silent if nothing arrives in time; the link is still open then."""
        try:
            async with asyncio.timeout(max(timeout, 0.0)):
                reply = await link.conn.read_response(disconnect_on_error=False)
        except TimeoutError:
            reader = link.conn._reader
            if reader is not None and reader._buffer:
                return await self.read(link, core.REPLY)  # it came while the loop was blocked
            raise Silent(f"no reply within {timeout:.1f} s") from None
        except Exception as error:
            problem = translated(error, link.address)
            if isinstance(error, AttributeError):
                problem = Broken("the connection was closed")  # by another task meanwhile
            raise self.unread(link, problem) from error
        link.used = now()
        return reply

    async def send(self, key: str, words: list[Any], until: float, inbox: Optional[Inbox] = None) -> Any:
        """Returns the reply. If the late reply comes to that inbox, the request goes to the inbox's server."""
        return await run(self._sending(key, words, until, inbox))

    def drop(self, link: Link) -> None:
        link.is_open = False
        self.links.discard(link)
        self._pool(link.address).returned(link)
        link.conn.connect = link.conn.connect_check_health = _stays_closed  # redis-py connects again to write
        if link.watched is not None:
            link.watched.cancel()
        writer = getattr(link.conn, "_writer", None)
        if writer is not None:
            writer.transport.abort()  # at once, also where the other end is silent
            link.conn._reader = link.conn._writer = None

    def background(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    @staticmethod
    async def takes(mutex: asyncio.Lock, timeout: float) -> bool:
        """Whether it is free in time."""
        try:
            # A free mutex may be promised to another task already, which would have to be waited for.
            async with asyncio.timeout(None if timeout == FOREVER else timeout):
                return await mutex.acquire()
        except TimeoutError:
            return False

    async def take_seat(self, seat: Seat) -> Any:
        return await run(self._takes(seat))

    def later(self, steps: Steps) -> asyncio.Task[Any]:
        """Begins work that nobody waits for."""
        return self.background(run(steps))

    @staticmethod
    async def lasts(task: asyncio.Task[Any], timeout: float) -> None:
        """Waits for its end, but no longer than this."""
        await asyncio.wait({task}, timeout=timeout)

    @staticmethod
    async def waits(event: threading.Event, timeout: float) -> None:
        if not event.is_set():
            await asyncio.to_thread(event.wait, timeout)

    # --- late replies ----------------------------------------------------------------------------

    async def told(self, post: Post, timeout: float) -> Words:
        came = asyncio.Event()
        post.then(came.set)
        until = now() + timeout
        try:
            async with asyncio.timeout(timeout):
                await came.wait()
        except TimeoutError:
            if now() > until + core.LATE:
                await asyncio.sleep(0.001)  # the loop was blocked: what has come meanwhile is yet to be read
        return post.take()

    # --- the end ---------------------------------------------------------------------------------

    async def _wait_for_cleanup(self, until: float) -> None:
        if self.tasks:
            await asyncio.wait(set(self.tasks), timeout=max(0.0, until - now()))

    def _stop_waiters(self) -> None:
        for pool in self.pools.values():
            pool.none_comes()
        for task in [*self.tasks, *self.once.running.values(), *(inbox.task for inbox in self.inboxes.values())]:
            task.cancel()
