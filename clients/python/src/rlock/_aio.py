"""What the steps are told of the outside, for asyncio: connections of our own, and the turns of tickets."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

from . import _core as core
from ._core import Attempt, Broken, Refused, Silent, now
from ._links import Address, Route, translated


async def run(steps: core.Steps) -> Any:
    """The steps, whose calls of `io` return what is to be awaited, or the value itself."""
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


class Link:
    """A connection of our own."""

    __slots__ = ("conn", "address", "is_open", "used", "watcher")

    def __init__(self, conn: Any, address: Optional[Address]):
        self.conn, self.address, self.is_open, self.used = conn, address, True, now()
        self.watcher: Optional[asyncio.Task[None]] = None  # that hears of the end of a session


class IO:
    """What the steps are told of the outside, for any number of tasks of one loop."""

    def __init__(self, route: Route, waiting: int):
        self.route, self.waiting, self.slots, self.is_closed = route, waiting, waiting, False
        self.idle: dict[Any, list[Link]] = {}
        self.ears: dict[Any, Ears] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    sleep = staticmethod(asyncio.sleep)

    def take_slot(self) -> bool:
        if self.slots > 0:
            self.slots -= 1
            return True
        return False

    def give_slot(self) -> None:
        self.slots += 1

    async def locate(self, key: str) -> Optional[Address]:
        try:
            if self.route.is_cluster and not self.route.seeds:
                await self.route.client.initialize()
                self.route.take_cluster()
            if self.route.sentinel is not None and self.route.master is None:
                self.route.master = await self.route.sentinel.get_master_address()
        except Exception as error:
            raise translated(error) from error
        return self.route.of(key)

    async def open(self, key: str, where: Optional[Address] = None) -> Link:
        address = where or await self.locate(key)
        while idle := self.idle.get(address):
            link = idle.pop()
            if not link.conn._reader.at_eof():  # the server has closed it
                return await self._asking(link, where)
            self.drop(link)
        conn = self.route.connection(address)
        try:
            async with asyncio.timeout(core.REPLY):
                await conn.connect()
        except BaseException as error:
            self.drop(Link(conn, address))
            if not isinstance(error, Exception):
                raise
            self.route.forget(address)
            raise translated(error, address) from error
        return await self._asking(Link(conn, address), where)

    async def _asking(self, link: Link, where: Optional[Address]) -> Link:
        if where is not None:
            await self.write(link, ["ASKING"])
            await self.read(link, core.REPLY)
        return link

    async def write(self, link: Link, words: list[Any]) -> None:
        try:
            await link.conn.send_command(*words, check_health=False)
        except Exception as error:
            self.drop(link)
            self.route.forget(link.address)
            raise translated(error, link.address) from error

    async def read(self, link: Link, timeout: float) -> Any:
        """Broken when nothing comes in time; then the link is still open."""
        try:
            async with asyncio.timeout(max(timeout, 0.0)):
                reply = await link.conn.read_response(disconnect_on_error=False)
        except TimeoutError:
            raise Silent(f"no reply within {timeout:.1f} s") from None
        except Exception as error:
            problem = translated(error, link.address)
            if isinstance(problem, Broken):
                self.drop(link)
                self.route.forget(link.address)
            raise problem from error
        link.used = now()
        return reply

    async def send(self, key: str, words: list[Any], timeout: float) -> Any:
        where, hops = None, 0
        while True:
            link = await self.open(key, where)
            try:
                await self.write(link, words)
                reply = await self.read(link, timeout)
            except Refused as refused:
                self.keep(link)
                where = self.route.redirected(refused, link.address)
                hops += 1
                if where is None or hops > 5:
                    raise
                continue
            except BaseException as error:
                self.drop(link)
                if isinstance(error, Broken):
                    self.route.forget(link.address)
                raise
            self.keep(link)
            return reply

    def redirected(self, refused: Refused, address: Optional[Address]) -> Optional[Address]:
        return self.route.redirected(refused, address)

    async def is_at_home(self, link: Link, key: str) -> bool:
        return await self.locate(key) == link.address

    def keep(self, link: Link) -> None:
        idle = self.idle.setdefault(link.address, [])
        if link.is_open and len(idle) < 16 + self.waiting:
            idle.append(link)
        else:
            self.drop(link)

    def drop(self, link: Link) -> None:
        link.is_open = False
        if link.watcher is not None:
            link.watcher.cancel()
        writer = getattr(link.conn, "_writer", None)
        if writer is not None:
            writer.transport.abort()  # at once, also where the other end is silent
            link.conn._reader = link.conn._writer = None

    def background(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def clean_up(self, attempt: Attempt) -> None:
        """Goes on in the background when the task is cancelled again, or a server does not answer."""
        attempt.cleans_up = attempt.seat.is_undone = True

        async def work() -> None:
            try:
                await run(attempt.clean_up())
            finally:
                attempt.leave()

        await asyncio.wait({self.background(work())}, timeout=core.SOON)

    # --- turns -----------------------------------------------------------------------------------

    async def listen(self, key: str, owner: str) -> "Turn":
        address = await self.locate(key)
        ears = self.ears.get(address)
        if ears is None or ears.is_over:
            link = await self.open(key)
            ears = self.ears[link.address] = Ears(self, link)
        return await ears.add(f"__keyevent@{self.route.db}__:rlock.turn:{owner}")

    async def await_turn(self, turn: "Turn", timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await turn.event.wait()
        except TimeoutError:
            pass

    def unlisten(self, turn: "Turn") -> None:
        turn.ears.remove(turn)

    async def close(self) -> None:
        self.is_closed = True
        for ears in self.ears.values():
            ears.task.cancel()
        for idle in self.idle.values():
            while idle:
                self.drop(idle.pop())
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=1.0)


class Turn:
    __slots__ = ("ears", "channel", "event")

    def __init__(self, ears: "Ears", channel: str):
        self.ears, self.channel, self.event = ears, channel, asyncio.Event()


class Ears:
    """One subscription at one server for all who wait by ticket there. Messages are hints: a broken one wakes all."""

    def __init__(self, io: IO, link: Link):
        self.io, self.link, self.is_over = io, link, False
        self.turns: dict[str, set[Turn]] = {}
        self.task = asyncio.ensure_future(self._hear())

    async def add(self, channel: str) -> Turn:
        turn = Turn(self, channel)
        self.turns.setdefault(channel, set()).add(turn)
        if len(self.turns[channel]) == 1:
            await self._write("SUBSCRIBE", channel)
        return turn

    def remove(self, turn: Turn) -> None:
        turns = self.turns.get(turn.channel, set())
        turns.discard(turn)
        if not turns and self.turns.pop(turn.channel, None) is not None and not self.is_over:
            self.io.background(self._forget(turn.channel))

    async def _forget(self, channel: str) -> None:
        if channel not in self.turns:
            await self._write("UNSUBSCRIBE", channel)

    async def _write(self, *words: str) -> None:
        try:
            await self.link.conn.send_command(*words, check_health=False)
        except Exception:
            self.is_over = True  # who waits asks again by itself

    async def _hear(self) -> None:
        quiet_since = now()
        try:
            while not self.is_over and self.link.is_open:
                try:
                    message = await self.io.read(self.link, 1.0)
                except (Broken, Refused):
                    self.is_over = self.is_over or (not self.turns and now() - quiet_since > 10)
                    continue
                quiet_since = now()
                if isinstance(message, list) and message[0] == "message":
                    self._wake(self.turns.get(message[1], ()))
        finally:
            self.is_over = True
            self.io.drop(self.link)
            self._wake(turn for turns in self.turns.values() for turn in turns)

    def _wake(self, turns: Any) -> None:
        for turn in list(turns):
            turn.event.set()
