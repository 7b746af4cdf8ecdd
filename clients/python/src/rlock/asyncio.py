"""Locks of a Redis or Valkey server with the RLOCK module, for the asyncio client of redis-py.

    import redis.asyncio, rlock.asyncio

    client = redis.asyncio.Redis()
    async with rlock.asyncio.Lock(client, "order:42", wait=10) as hold:
        await store(..., hold.token)
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from typing import Any, Callable, Optional, TypeVar, Union

from . import _core as core
from ._core import (
    Attempt, Broken, Deadlock, LockError, LockLost, NoAcks, NoPermission, NotAcquired, NotHeld, Options, Refused, Seat,
    Space, Tenure, TooMany, Unavailable, now,
)
from ._links import Address, Route, translated

__all__ = [
    "Deadlock", "Hold", "Lock", "LockError", "LockLost", "Locks", "NoAcks", "NoPermission", "NotAcquired", "NotHeld",
    "Permit", "ReadLock", "Refused", "TooMany", "Unavailable",
]

F = TypeVar("F", bound=Callable[..., Any])
UNSET: Any = object()


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
        self.route, self.waiting, self.slots = route, waiting, waiting
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
            raise Broken(f"no reply within {timeout:.1f} s") from None
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
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def clean_up(self, attempt: Attempt) -> None:
        """Goes on in the background when the task is cancelled again, or a server does not answer."""
        attempt.cleans_up = True

        async def work() -> None:
            try:
                await run(attempt.clean_up())
            finally:
                attempt.seat.mutex.release()

        await asyncio.wait({self.background(work())}, timeout=1.0)

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


_spaces: dict[Any, Space] = {}
_locks_of: "weakref.WeakKeyDictionary[Any, Locks]" = weakref.WeakKeyDictionary()
_names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    """A child is somebody else: it holds nothing, and its tasks have other names. It needs a loop of its own anyway."""
    _names.clear()
    _locks_of.clear()
    for space in _spaces.values():
        for seat in space.seats.values():
            if seat.tenure is not None:
                seat.tenure.state = "released"
        space.seats = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Hold:
    """What one acquisition got: one level of a lock. Any task may release it, once."""

    __slots__ = ("_tenure", "_locks", "_is_released")

    def __init__(self, locks: "Locks", tenure: Tenure):
        self._locks, self._tenure, self._is_released = locks, tenure, False

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every hold before."""
        return self._tenure.token

    @property
    def key(self) -> str:
        return self._tenure.seat.key

    @property
    def owner(self) -> str:
        return self._tenure.seat.owner

    @property
    def held(self) -> bool:
        """Whether the hold is sure: not released, not known to be lost, and before its deadline."""
        return not self._is_released and self._tenure.held

    @property
    def left(self) -> float:
        """Seconds until the deadline, counted from when the last request was sent; 0 when it is not held."""
        return max(0.0, self._tenure.deadline - now()) if self.held else 0.0

    @property
    def lost(self) -> asyncio.Event:
        """Set when the hold is lost, at its deadline at the latest."""
        return self._tenure.signal  # type: ignore[no-any-return]

    def on_lost(self, call: Callable[[], Any]) -> None:
        """Has `call` called when the hold is lost, by the loop; at once if it is."""
        self._tenure.calls.append(call)
        if self._tenure.state == "lost":
            call()

    def check(self) -> None:
        """Raises LockLost unless the hold is sure. For the step that cannot be undone, use the token."""
        if not self.held:
            raise LockLost(f"{self.key} is no longer held by {self.owner}")

    async def release(self) -> None:
        """One level less. Raises LockLost when the hold was over before."""
        if self._is_released or self._tenure.state == "released":
            raise NotHeld(f"{self.key} was released before, or before this process was forked")
        self._is_released = True
        await self._locks._release(self._tenure.seat, self._tenure)

    async def __aenter__(self) -> "Hold":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.release()


class Locks:
    """The locks of one client in one loop: its settings, and a set of `waiting` connections for those who wait.

    A client has one `Locks`, made when the first `Lock(client, …)` is; make it yourself, first, to choose `waiting`
    and `patience` (seconds for which a request that does not wait is repeated while connections break or a failover
    is under way).
    """

    def __init__(self, client: Any, *, waiting: int = 8, patience: float = 3.0):
        self.patience = patience
        self.io = IO(Route(client, is_async=True), waiting)
        self.space = _spaces.setdefault(self.io.route.identity, Space(len(_spaces)))
        _locks_of[client] = self

    @classmethod
    def of(cls, client: Any) -> "Locks":
        if isinstance(client, Locks):
            return client
        return _locks_of.get(client) or cls(client)

    def owner(self) -> str:
        """The name of this task, the same for all of its locks."""
        task = asyncio.current_task()
        name = _names.get(task)
        if name is None:
            name = _names[task] = core.NAMES.new()
        return name + self.space.suffix

    async def aclose(self) -> None:
        """Closes the connections. What is held ends with its lease."""
        await self.io.close()

    async def _acquire(self, key: str, options: Options, wait: Optional[float]) -> Optional[Hold]:
        owner = options.owner or self.owner()
        seat = self.space.seat(key, owner, options.kind, asyncio.Lock)
        attempt = None
        try:
            start = now()
            # Taken only by another who says the same owner, or while an abandoned wait is being undone.
            try:
                async with asyncio.timeout(None if wait is None else max(wait, 0.25)):
                    await seat.mutex.acquire()
            except TimeoutError:
                return None
            try:
                tenure = seat.tenure
                if tenure is not None and not tenure.held:
                    self._lose(tenure)
                    raise LockLost(f"{key} was lost by {owner}: release it first")
                if wait is not None and wait > 0:
                    wait = max(0.001, wait - (now() - start))
                attempt = Attempt(self.io, seat, options, tenure.depth + 1 if tenure else 1, wait, self.patience)
                try:
                    answer = await run(attempt.steps())
                except LockLost:
                    if tenure is not None:
                        self._lose(tenure)
                    raise
                return self._granted(seat, options, *answer) if answer is not None else None
            finally:
                if attempt is None or not attempt.cleans_up:
                    seat.mutex.release()
        finally:
            self.space.leave(seat)

    def _granted(self, seat: Seat, options: Options, token: int, sent: float, link: Optional[Link]) -> Hold:
        tenure = seat.tenure
        if tenure is None:
            tenure = Tenure(seat, options, token, sent, asyncio.Event(), self.io)
            seat.tenure = tenure
            self._watch(tenure, link)
            self._tick(tenure)
        else:
            tenure.deadline = max(tenure.deadline, sent + options.lease)
        tenure.depth += 1
        return Hold(self, tenure)

    def _tick(self, tenure: Tenure) -> None:
        """Looks after a hold: at its deadline, and when it is to be renewed."""
        if tenure.state != "held":
            return
        if now() >= tenure.deadline:
            return self._lose(tenure)
        if now() >= tenure.renews_at:
            tenure.renews_at = now() + tenure.options.lease / 3
            self.io.background(self._renew(tenure, core.renew))
        pause = min(tenure.renews_at, tenure.deadline) - now()
        tenure.timer = asyncio.get_running_loop().call_later(pause, self._tick, tenure)

    async def _renew(self, tenure: Tenure, how: Callable[..., core.Steps]) -> None:
        if await run(how(self.io, tenure)):
            self._lose(tenure)
        elif how is core.tie and tenure.link is not None:
            self._watch(tenure, tenure.link)

    def _watch(self, tenure: Tenure, link: Optional[Link]) -> None:
        """A session: the end of its connection is heard of at once."""

        async def watch(link: Link) -> None:
            while link.is_open:
                try:
                    await self.io.read(link, 3600.0)
                except (Broken, Refused):
                    continue
            if tenure.state == "held" and tenure.link is link:
                tenure.link = None
                self.io.background(self._renew(tenure, core.tie))

        tenure.link = link
        if link is not None:
            link.watcher = asyncio.ensure_future(watch(link))

    def _lose(self, tenure: Tenure) -> None:
        for call in tenure.lose():
            try:
                call()
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler({"message": "on_lost", "exception": error})
        self._forget(tenure)

    def _forget(self, tenure: Tenure) -> None:
        if tenure.timer is not None:
            tenure.timer.cancel()
        if tenure.link is not None:
            self.io.drop(tenure.link)
            tenure.link = None

    async def _release(self, seat: Seat, tenure: Tenure) -> None:
        # A task that is cancelled while it releases has released all the same.
        await asyncio.shield(self.io.background(self._released(seat, tenure)))

    async def _released(self, seat: Seat, tenure: Tenure) -> None:
        async with seat.mutex:
            try:
                await run(core.release(self.io, seat, tenure, self.patience))
            except LockLost:
                self._lose(tenure)
                raise
            finally:
                tenure.depth -= 1
                if tenure.depth == 0:
                    if seat.tenure is tenure:
                        seat.tenure = None
                    if tenure.state == "held":
                        tenure.state = "released"
                    self._forget(tenure)
        if seat.users == 0 and seat.tenure is None:
            self.space.seats.pop((seat.key, seat.owner, seat.mode), None)


class Lock:
    """A write lock: one holder at a time. May be shared by tasks.

    `client` is a `redis.asyncio.Redis` (also one of Sentinel's `master_for`) or a `RedisCluster`. The owner is the
    task, or `owner`; an owner that holds may acquire again, and releases as often. `lease` is how long the lock
    outlives a process that dies; it is renewed every third of it. `wait`: seconds, None = for ever, 0 = do not wait.
    With `cancel`, `async with` cancels its task when the hold is lost, and makes a LockLost of that.
    """

    mode = "WRITE"

    def __init__(
        self,
        client: Any,
        key: Union[str, bytes],
        *,
        wait: Optional[float] = None,
        lease: float = 30.0,
        owner: Optional[str] = None,
        maxqueue: Optional[int] = None,
        acks: Optional[int] = None,
        session: bool = False,
        upgrade: bool = False,
        limit: Optional[int] = None,
        cancel: bool = False,
    ):
        self._locks = Locks.of(client)
        self.key = key.decode() if isinstance(key, bytes) else key
        self.wait, self.cancel = wait, cancel
        mode = "READ" if limit is not None else self.mode
        self._options = Options(mode, lease, owner, limit, maxqueue, acks, session, upgrade)
        self._entered: dict[Any, list[_Entry]] = {}

    async def acquire(self, wait: Optional[float] = UNSET) -> Optional[Hold]:
        """A hold, or None: not free in time. Cancelled, it leaves nothing behind."""
        return await self._locks._acquire(self.key, self._options, self.wait if wait is UNSET else wait)

    @property
    def _tenure(self) -> Optional[Tenure]:
        owner = self._options.owner or self._locks.owner()
        seat = self._locks.space.seats.get((self.key, owner, self._options.kind))
        return seat.tenure if seat else None

    @property
    def held(self) -> bool:
        """Whether this task (or `owner`) holds it, for sure."""
        tenure = self._tenure
        return tenure is not None and tenure.held

    async def release(self) -> None:
        """One level less, of what this task (or `owner`) holds."""
        tenure = self._tenure
        if tenure is None:
            raise NotHeld(f"{self.key} is not held by this task")
        await self._locks._release(tenure.seat, tenure)

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        if hold is None:
            raise NotAcquired(f"{self.key} was not free within {self.wait} s")
        self._entered.setdefault(asyncio.current_task(), []).append(_Entry(hold, self.cancel))
        return hold

    async def __aexit__(self, _kind: Any, error: Any, _trace: Any) -> None:
        entries = self._entered[asyncio.current_task()]
        entry = entries.pop()
        if not entries:
            del self._entered[asyncio.current_task()]
        await entry.leave(error)

    def __call__(self, function: F) -> F:
        """As a decorator of an `async def`: it runs while the lock is held."""

        @functools.wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return guarded  # type: ignore[return-value]


class _Entry:
    """One `async with`."""

    def __init__(self, hold: Hold, cancel: bool):
        self.hold, self.has_cancelled = hold, False
        self.task: Any = asyncio.current_task()
        self.cancels = self.task.cancelling()
        self.is_inside = True
        if cancel:
            hold.on_lost(self.cancel)

    def cancel(self) -> None:
        if self.is_inside:
            self.has_cancelled = True
            self.task.cancel()

    async def leave(self, error: Any) -> None:
        self.is_inside = False
        try:
            await self.hold.release()
        except LockLost:
            # Only our own cancellation becomes a LockLost; one from outside stays what it is.
            if self.has_cancelled and self.task.uncancel() > self.cancels:
                return
            raise


class ReadLock(Lock):
    """A read lock: any number of readers at a time, and no writer."""

    mode = "READ"


class Permit(ReadLock):
    """One of `limit` permits: at most so many holders at a time."""

    def __init__(self, client: Any, key: Union[str, bytes], limit: int, **options: Any):
        super().__init__(client, key, limit=limit, **options)
