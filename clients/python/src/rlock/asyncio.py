"""Locks of a Redis or Valkey server with the RLOCK module, for the asyncio client of redis-py.

    import redis.asyncio, rlock.asyncio

    client = redis.asyncio.Redis()
    async with rlock.asyncio.Lock(client, "order:42", wait=10) as hold:
        await store(..., hold.token)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import weakref
from typing import Any, Callable, Coroutine, Optional, TypeVar, Union

import redis.asyncio

from . import _core as core
from ._aio import IO, Link, run
from ._api import UNSET, HoldBase, LockBase, seconds
from ._attempt import Attempt, Steps, extend, pairs, question, release, renew, settle, tie
from ._core import Options, Seat, Space, Spaces, Tenure, now
from ._errors import (
    Broken, Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, Refused, TooMany,
    Unavailable,
)
from ._links import Route

__all__ = [
    "Deadlock", "Hold", "Lock", "LockError", "LockLost", "Locks", "NoAcks", "NoPermission", "NoReplicas", "NotAcquired",
    "NotHeld", "Permit", "ReadLock", "Refused", "TooMany", "Unavailable",
]

F = TypeVar("F", bound=Callable[..., Any])
Client = Union[redis.asyncio.Redis, redis.asyncio.RedisCluster, "Locks"]

_spaces = Spaces()
_locks_of: "weakref.WeakKeyDictionary[Any, Locks]" = weakref.WeakKeyDictionary()
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()
_names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    """A child is somebody else: it holds nothing, and its tasks have other names. It needs a loop of its own anyway."""
    _names.clear()
    _locks_of.clear()
    _spaces.forked()
    for locks in list(_all):
        locks.io.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Hold(HoldBase):
    """The result of one acquisition: one level of a lock. Any task may release it, once."""

    __slots__ = ()

    @property
    def lost(self) -> asyncio.Event:
        """Set when the hold is lost, at its deadline at the latest."""
        return self._tenure.signal  # type: ignore[no-any-return]

    async def release(self) -> None:
        """Releases one level. Raises LockLost if the hold ended before."""
        self._once()
        await self._locks._release(self._tenure.seat, self._tenure)

    async def extend(self, lease: float) -> None:
        """The hold lasts `lease` seconds from now, or as long as it would have lasted if that is longer. Raises LockLost if it ended."""
        await self._locks._extend(self._tenure, lease)

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

    def __init__(self, client: Client, *, waiting: int = 8, patience: float = 3.0):
        self.patience = patience
        self.io = IO(Route(client, is_async=True), waiting, _spaces)
        _all.add(self)
        _locks_of[client] = self

    @classmethod
    def of(cls, client: Client) -> "Locks":
        if isinstance(client, Locks):
            return client
        if not any(kind.__module__.startswith("redis.asyncio") for kind in type(client).__mro__):
            raise TypeError("that is a blocking client: use rlock, without asyncio")
        return _locks_of.get(client) or cls(client)

    def owner(self, task: Any = None) -> str:
        """The name of this task, the same for all of its locks."""
        task = task or asyncio.current_task()
        name = _names.get(task)
        if name is None:
            name = _names[task] = core.NAMES.new()
        return name + (self.io.space.suffix if self.io.space else "")

    @property
    def space(self) -> Optional[Space]:
        return self.io.space

    async def aclose(self) -> None:
        """Ends what waits, with Unavailable, and the connections. Holds are renewed no more; those of sessions end now."""
        await self.io.close()
        for seat in list(self.io.space.seats.values()) if self.io.space else ():
            if seat.tenure is not None and seat.tenure.io is self.io and seat.tenure.link is not None:
                self._lose(seat.tenure)

    async def _settled(self, key: str, start: float, wait: Optional[float]) -> Space:
        if self.io.space is None:
            space = _spaces.of(await run(settle(self.io, key, start, wait, self.patience)))
            self.io.space = self.io.space or space
        return self.io.space

    async def _acquire(self, key: str, options: Options, wait: Optional[float], task: Any) -> Optional[Hold]:
        start = now()
        space = await self._settled(key, start, wait)
        owner = options.owner or self.owner(task)
        seat = space.seat(key, owner, options.kind, asyncio.Lock)
        is_mine, attempt = False, None
        try:
            try:
                async with asyncio.timeout(seat.patience(wait, self.patience)):
                    is_mine = await seat.mutex.acquire()
            except TimeoutError:
                seat.is_taken()
                return None
            tenure = seat.tenure
            if tenure is not None and not tenure.held:
                self._lose(tenure)
                raise LockLost(f"{key} was lost by {owner}: release it first")
            if wait is not None and wait > 0:
                wait = max(0.001, wait - (now() - start))
            attempt = Attempt(self.io, seat, options, tenure.depth + 1 if tenure else 1, wait, self.patience)
            attempt.leave = functools.partial(space.vacate, seat)
            answer = await run(attempt.steps())
            hold = None if answer is None else self._granted(seat, options, task, *answer)
            attempt.in_doubt = False
            return hold
        except LockLost:
            if seat.tenure is not None:
                self._lose(seat.tenure)
            raise
        finally:
            if not is_mine:
                space.leave(seat)
            elif attempt is None or not attempt.cleans_up:
                space.vacate(seat)

    def _granted(self, seat: Seat, options: Options, task: Any, token: int, sent: float, link: Optional[Link]) -> Hold:
        tenure = seat.tenure
        if tenure is None:
            tenure = Tenure(seat, options, token, sent, asyncio.Event(), self.io)
            seat.tenure = tenure
            self._watch(tenure, link)
            self._tick(tenure)
        else:
            tenure.deadline = max(tenure.deadline, sent + options.lease)
        hold = Hold(self, tenure)
        tenure.handed(hold, None if options.owner else task)
        return hold

    def _tick(self, tenure: Tenure) -> None:
        """Looks after a hold: at its deadline, and when it is to be renewed."""
        if tenure.state != "held":
            return
        if now() >= tenure.deadline:
            if tenure.is_queued:
                # What answers its renewal may lie in the socket: the loop was blocked, or the machine slept.
                tenure.is_queued = False
                tenure.timer = asyncio.get_running_loop().call_later(0.01, self._tick, tenure)
                return
            return self._lose(tenure)
        if now() >= tenure.renews_at and tenure.is_orphaned:
            core.log.warning("%s: nobody can release it any more, because %s has ended", tenure.seat.key, tenure.seat.owner)
            return self._lose(tenure)
        if now() >= tenure.renews_at:
            third = tenure.options.lease / 3
            tenure.renews_at = now() + (third / 10 if tenure.is_queued else third)
            if not tenure.is_queued:
                tenure.is_queued = True
                self.io.background(self._renew(tenure, renew))
        pause = min(tenure.renews_at, tenure.deadline) - now()
        tenure.timer = asyncio.get_running_loop().call_later(pause, self._tick, tenure)

    async def _renew(self, tenure: Tenure, how: Callable[..., Steps]) -> None:
        try:
            is_lost = await run(how(self.io, tenure))
        finally:
            tenure.is_queued = False
        if is_lost:
            self._lose(tenure)
        elif how is tie and tenure.link is not None:
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
                self.io.background(self._renew(tenure, tie))

        tenure.link = link
        if link is not None:
            link.watcher = asyncio.ensure_future(watch(link))

    def _lose(self, tenure: Tenure) -> None:
        for call in tenure.lose():
            try:
                call()
            except BaseException as error:  # SystemExit too ends nothing here
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
        space, undoing = self.io.space, None
        assert space is not None
        space.use(seat)
        await seat.mutex.acquire()
        try:
            await run(release(self.io, seat, tenure, self.patience))
        except LockLost:
            self._lose(tenure)
            raise
        except BaseException:
            undoing = Attempt.to_release(self.io, seat, tenure, space)
            raise
        finally:
            tenure.depth -= 1
            if tenure.depth == 0:
                if seat.tenure is tenure:
                    seat.tenure = None
                if tenure.state != "lost":
                    tenure.state = "released"
                self._forget(tenure)
            if undoing is not None:
                await self.io.clean_up(undoing)
            else:
                space.vacate(seat)


    async def _extend(self, tenure: Tenure, lease: float) -> None:
        try:
            await run(extend(self.io, tenure, lease, self.patience))
        except LockLost:
            self._lose(tenure)
            raise
        if tenure.timer is not None:
            tenure.timer.cancel()
        self._tick(tenure)

    async def _ask(self, key: str, words: Callable[[], list[Any]]) -> Any:
        """Asks when the server is known, which is part of the names of owners."""
        await self._settled(key, now(), 0)
        return await run(question(self.io, key, words()))


class Lock(LockBase):
    """A write lock: one holder at a time. May be shared by tasks.

    `client` is a `redis.asyncio.Redis` (also one of Sentinel's `master_for`), a `RedisCluster`, or a `Locks`.

    Options, all by name:

    - `wait`: seconds, None = forever, 0 = do not wait
    - `lease`: seconds that the lock outlives a process that dies; it is renewed every third of it, with `renew=False` not
    - `owner`: who holds; else the task. An owner that holds may acquire again, and releases as often
    - `maxqueue`: with so many waiting already, do not wait
    - `acks`: a grant, and each renewal, counts when so many replicas have acknowledged it
    - `session`: the hold ends with a connection of its own, and so with the process
    - `upgrade`: WRITE beside one's own READ
    - `cancel`: `async with` cancels its task when the hold is lost, and makes a LockLost of that
    """

    def __init__(
        self,
        client: Client,
        key: Union[str, bytes],
        *,
        wait: Optional[float] = None,
        lease: float = 30.0,
        owner: Optional[str] = None,
        maxqueue: Optional[int] = None,
        acks: Optional[int] = None,
        session: bool = False,
        upgrade: bool = False,
        renew: bool = True,
        limit: Optional[int] = None,
        cancel: bool = False,
    ):
        super().__init__(Locks.of(client), key, wait, lease, owner, maxqueue, acks, session, upgrade, renew, limit)
        self.cancel = cancel
        self._entered: dict[Any, list[_Entry]] = {}

    def acquire(self, wait: Optional[float] = UNSET) -> Coroutine[Any, Any, Optional[Hold]]:
        """Returns a hold, or None if the lock was not free in time. If cancelled, it leaves nothing behind.

        The owner is the task that calls this, whichever awaits it: `asyncio.wait_for` may do that in another one.
        """
        task = None if self._options.owner else asyncio.current_task()
        acquiring: Coroutine[Any, Any, Optional[Hold]]
        acquiring = self._locks._acquire(self.key, self._options, self.wait if wait is UNSET else seconds(wait), task)
        return acquiring

    async def release(self) -> None:
        """Releases one level of what this task (or `owner`) holds."""
        tenure = self._own_tenure()
        await self._locks._release(tenure.seat, tenure)

    async def locked(self) -> bool:
        """Whether anybody holds it, in any mode, as the server says now."""
        return bool(pairs(await self._locks._ask(self.key, lambda: ["RLOCK.INFO", self.key, "WAITERS", 0]))["mode"] != "free")

    async def owned(self) -> bool:
        """Whether this task (or `owner`) holds it, as the server says now; `held` says it without asking."""

        def words() -> list[Any]:
            return ["RLOCK.HOLDS", self.key, self._options.owner or self._locks.owner(), self._options.kind]

        return bool(await self._locks._ask(self.key, words))

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

        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function} is no `async def` that can be awaited while the lock is held")

        @functools.wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return guarded  # type: ignore[return-value]


class _Entry:
    """One `async with`."""

    def __init__(self, hold: Hold, cancel: bool):
        self.hold, self.has_cancelled = hold, False
        task: Any = asyncio.current_task()
        self.task, self.cancels = task, task.cancelling()
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
    """One of `limit` permits: at most `limit` holders at a time."""

    def __init__(
        self,
        client: Client,
        key: Union[str, bytes],
        limit: int,
        *,
        wait: Optional[float] = None,
        lease: float = 30.0,
        owner: Optional[str] = None,
        maxqueue: Optional[int] = None,
        acks: Optional[int] = None,
        session: bool = False,
        renew: bool = True,
        cancel: bool = False,
    ):
        super().__init__(
            client, key, wait=wait, lease=lease, owner=owner, maxqueue=maxqueue, acks=acks, session=session,
            renew=renew, limit=limit, cancel=cancel,
        )
