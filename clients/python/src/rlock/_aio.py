"""The input and output of the steps for asyncio: the package's own connections, and late replies."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import random
import socket
import threading
from typing import Any, Callable, Optional

from . import _core as core
from ._core import Seat, Space, Spaces, Steps, now
from ._drive import Job, redirected
from ._errors import Broken, Refused, Silent, Unsent
from ._inbox import Inbox, Inboxes, Post
from ._links import Address, Route, packed, translated
from ._machine.words import FOREVER, Words
from ._pool import IdleConnections, Link, Queued
from ._telemetry import Telemetry


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


class Once:
    """Work that may take long, and that one task does for all callers that need it."""

    def __init__(self) -> None:
        self.running: dict[Any, asyncio.Task[Any]] = {}
        self.failed: dict[Any, tuple[float, str]] = {}

    def begin(self, name: Any, work: Callable[[], Any]) -> asyncio.Task[Any]:
        """The task that does the work. Raises Unsent if the work failed a moment ago for other callers."""
        task = self.running.get(name)
        if task is None:
            again_at, error = self.failed.get(name, (0.0, ""))
            if now() < again_at:
                raise Unsent(error)
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
            problem = translated(error)
            if not isinstance(problem, Broken):
                return problem
            self.failed[name] = (now() + core.DIALS * (0.5 + random.random()), str(problem))
            return Unsent(str(problem))
        finally:
            del self.running[name]


class IO(Inboxes):
    """The input and output of the steps, for any number of tasks of one loop."""

    def __init__(self, route: Route, spaces: Spaces, telemetry: Telemetry, outage: float):
        self.telemetry, self.outage = telemetry, outage
        self.route, self.spaces, self.rtt = route, spaces, 0.0
        self.is_draining = self.is_closing = self.is_closed = False
        self.crowd = self.worried = 0
        self.worries_at = 0.0
        self.space: Optional[Space] = None
        self.reset()

    def reset(self) -> None:
        self.begin()
        self.pools: dict[Any, Pool] = {}
        self.links: set[Link] = set()
        self.once = Once()
        self.jobs: set[Job] = set()  # of calls under way
        self.tasks: set[asyncio.Task[Any]] = set()

    def left_behind(self) -> None:
        """The loop is closed: closes the sockets without it."""
        for link in self.links:
            with contextlib.suppress(AttributeError, OSError):
                link.conn._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self.reset()

    def forked(self) -> None:
        """The connections belong to the parent alone: holds that are tied to them end with it."""
        null = os.open(os.devnull, os.O_RDWR)
        for link in self.links:
            try:
                os.dup2(null, link.conn._writer.get_extra_info("socket").fileno(), inheritable=False)
            except (AttributeError, OSError, ValueError):
                pass
        os.close(null)
        self.telemetry.forked()

    sleep = staticmethod(asyncio.sleep)

    async def locate(self, key: str, until: float) -> Optional[Address]:
        if self.route.is_cluster and not self.route.seeds:
            await self.once.do("cluster", self._learn_cluster, until)
        if self.route.sentinel is not None and self.route.master is None:
            await self.once.do("sentinel", self._ask_sentinel, until)
        return self.route.of(key)

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

    async def open(
        self, key: str, until: float, where: Optional[Address] = None, is_brief: bool = False, at: Optional[Address] = None
    ) -> Link:
        """A connection: to the target of -ASK, to that address, or to the server of the key. `is_brief`: for a request
        that does not wait."""
        address = where or at or (await self.locate(key, until) if self.route.moves else None)
        pool = self._pool(address)
        while True:
            try:
                link = pool.lend(pool.idle.pop(), is_brief) if pool.idle else await self._next(address, is_brief, until)
            except Broken:
                self.route.forget(address)
                raise
            if link.is_open and not link.conn._reader.at_eof():  # else the server has closed it
                return link if where is None else await self._asking(link, until)
            self.drop(link)

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
                    await self._dial(address)
                    pool.dialed = now()
                else:
                    await asyncio.sleep(core.LATE)
        finally:
            pool.none_comes()

    async def _dial(self, address: Optional[Address]) -> None:
        if self.is_closed:
            raise Broken("the connections are closed")
        link, forks = Link(self.route.connection(address), address), core.forks
        self.links.add(link)
        try:
            async with asyncio.timeout(core.REPLY):
                await link.conn.connect()
            if core.forks != forks:
                # A child process has its socket as well: without this, the connection would not end with this process.
                link.conn._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                raise Broken("this process was forked meanwhile")
            if address not in self.route.told:
                await self._ask_what_it_is(link)
        except BaseException as error:
            self.drop(link)
            if not isinstance(error, Exception):
                raise
            raise translated(error, address) from error
        self.keep(link)

    async def _ask_what_it_is(self, link: Link) -> None:
        said, sent = None, now()
        try:
            await self.write(link, self.route.question)
            said = await self.read(link, core.REPLY)
        except Refused as refused:
            if refused.code == "NOAUTH":  # to longer requests the server then answers something else
                raise
        self.rtt = now() - sent
        self.route.told[link.address] = identities = self.route.identities(said)
        if self.space is not None:
            self.spaces.join(identities, self.space)

    async def identify(self, key: str, until: float) -> list[str]:
        link = await self.open(key, until)
        self.keep(link)
        return self.route.told.get(link.address, [])

    async def _asking(self, link: Link, until: float) -> Link:
        await self.write(link, ["ASKING"])
        await self.read(link, until - now())
        return link

    async def write(self, link: Link, words: list[Any]) -> None:
        try:
            await link.conn.send_packed_command([packed(words)], check_health=False)
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
            if isinstance(problem, Broken):
                self.drop(link)
                self.route.forget(link.address)
            raise problem from error
        link.used = now()
        return reply

    async def send(self, key: str, words: list[Any], until: float, inbox: Optional[Inbox] = None) -> Any:
        """Returns the reply. If the late reply comes to that inbox, the request goes to the inbox's server."""
        at = inbox.link.address if inbox is not None else None
        where, hops = at if inbox is not None and inbox.asks else None, 0
        while True:
            link = await self.open(key, until, where, is_brief=True, at=at)
            sent = now()
            try:
                await self.write(link, words)
                left = until - now()
                # An event loop that was blocked may write only after the time limit.
                reply = await self.read(link, left if left > 0 else core.LATE)
            except Refused as refused:
                where = refused.where = redirected(self, refused, link)
                self.keep(link)
                hops += 1
                if where is None or hops > 5 or inbox is not None:
                    raise
                continue
            except BaseException as error:
                self.drop(link)
                if isinstance(error, Broken):
                    self.route.forget(link.address)
                if isinstance(error, Silent):
                    self.distrust(link.address, sent)
                raise
            self.keep(link)
            self.rtt = core.round_trip(self.rtt, now() - sent)
            return reply

    def keep(self, link: Link) -> None:
        if self.is_closed or not link.is_open or not self._pool(link.address).give(link):
            self.drop(link)

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

    async def opens_inbox(self, key: str, where: Optional[Address], name: Any) -> None:
        if self.is_new(name):
            self.inboxes[name] = TaskInbox(self, await self.open(key, now() + core.REPLY, where, at=name[0]), bool(where))

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

    async def close(self) -> None:
        """Ends the waits, gives what they left a moment to be undone, and closes all connections."""
        self.is_draining = self.is_closing = True
        for link in list(self.links):
            if link not in self._pool(link.address).idle:
                self.drop(link)
        await asyncio.sleep(0)
        end = now() + 1.0
        while self.jobs and now() < end:  # they have something to undo, or not
            await asyncio.sleep(0.005)
        if self.tasks:
            await asyncio.wait(set(self.tasks), timeout=max(0.0, end - now()))
        self.is_closed = True
        for pool in self.pools.values():
            pool.none_comes()
        for task in [*self.tasks, *self.once.running.values(), *(inbox.task for inbox in self.inboxes.values())]:
            task.cancel()
        for link in list(self.links):
            self.drop(link)
        self.pools.clear()


class TaskInbox(Inbox):
    """A task reads it."""

    def __init__(self, io: IO, link: Link, asks: bool):
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
