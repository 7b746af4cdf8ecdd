"""Locks on a Redis or Valkey server with the RLOCK module, for the asyncio client of redis-py.

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
from typing import Any, Callable, Coroutine, Iterable, Optional, TypeVar, Union, Unpack

import redis.asyncio

from . import _core as core
from ._aio import IO, run
from ._aio_keep import TaskKeeper
from ._core import Spaces, Steps, seconds
from ._errors import (
    Closed, Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, OtherLoop, Refused, TooMany,
    Unavailable,
)
from ._holds import HandleBase, HoldBase, HoldsBase, keeps, left, releasing
from ._kinds import UNSET, AcquirableBase, AnyBase, ElectionBase, LockBase, SeveralBase, Wishes, wished
from ._locks import ATTRIBUTE, LocksBase
from ._once import IfItFails, Turn
from ._several import Key, limit, read
from ._telemetry import Counts, Held, Listener, Waited
from ._watch import Leader, ObserverBase, leader

__all__ = [
    "Closed", "Counts", "Deadlock", "Held", "Hold", "Leader", "Listener", "Lock", "LockError", "LockLost", "Locks", "NoAcks", "NoPermission", "NoReplicas",
    "NotAcquired", "NotHeld", "OtherLoop", "Permit", "ReadLock", "Refused", "TooMany", "Unavailable", "Waited", "limit", "read",
]

F = TypeVar("F", bound=Callable[..., Any])
Client = Union[redis.asyncio.Redis, redis.asyncio.RedisCluster, "Locks"]

_spaces = Spaces()
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()
_names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    """A child process is a different owner: it holds nothing, and its tasks have other names. It needs a loop of its
    own anyway."""
    _names.clear()
    _spaces.forked()
    for locks in list(_all):
        vars(locks.io.route.client).pop(ATTRIBUTE, None)
        locks.io.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Handle(HandleBase):
    __slots__ = ()

    @property
    def lost(self) -> asyncio.Event:
        return self._event(asyncio.Event)  # type: ignore[no-any-return]

    async def release(self) -> None:
        self._grips[0].is_released_by(_task())
        await self._locks._finish(releasing(self._grips))

    async def extend(self, lease: float) -> None:
        await self._locks._run(self._extending(lease))

    async def __aenter__(self: H) -> H:
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        try:
            await self.release()
        except LockError as problem:  # an exception of the body is kept, even if it is a cancellation
            if error is None:
                raise
            keeps(error, problem, self._name)


H = TypeVar("H", bound=Handle)


class Hold(Handle, HoldBase):
    """The result of one acquisition: one level of a lock. Any task may release it, once."""

    __slots__ = ()


class Holds(Handle, HoldsBase):
    """The hold of several locks, which is lost when one of them is. Any task may release them, once."""


def _task() -> Any:
    """The current task, if there is one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class Locks(LocksBase[Client]):
    """The locks of one client in one loop, and its settings."""

    _is_async, _io, _spaces, _all = True, IO, _spaces, _all
    _hold, _holds, _mutex = Hold, Holds, asyncio.Lock
    _loop: Optional[asyncio.AbstractEventLoop] = None

    @functools.cached_property
    def _keeper(self) -> TaskKeeper:
        return TaskKeeper(self.io)

    def _name_of(self, task: Any) -> str:
        task = task or asyncio.current_task()
        name = _names.get(task)
        if name is None:
            name = _names[task] = core.NAMES.new()
        return name

    async def _run(self, steps: Steps) -> Any:
        self._in_loop()
        return await run(steps)

    async def _finish(self, steps: Steps) -> Any:
        """A task that is canceled meanwhile has done them nevertheless."""
        self._in_loop()
        return await asyncio.shield(self.io.later(steps))

    def _in_loop(self) -> None:
        """Called before anything is sent. Nothing runs any more that belongs to a closed loop."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise OtherLoop("this client is in use in another event loop, which is still open: make a client for each loop")
            self._left_behind()
        self._loop = loop

    def _left_behind(self) -> None:
        """Holds are no longer renewed, and nobody reads the connections."""
        space = self.io.space
        for where, seat in list(space.seats.items()) if space else []:
            if seat.tenure is not None and seat.tenure.io is self.io:
                seat.tenure.root.state = seat.tenure.state = "lost"
                del space.seats[where]
        self.io.left_behind()

    def all(self, *keys: Key, **options: Unpack[Wishes]) -> "AllLocks":
        return AllLocks(self, keys, options)

    def any(self, pool: Union[str, bytes], keys: Iterable[Union[str, bytes]], **options: Unpack[Wishes]) -> "AnyLock":
        return AnyLock(self, pool, keys, options)

    def election(self, key: Union[str, bytes], *, name: Optional[str] = None, lease: float = 10.0) -> "Election":
        return Election(self, key, name, lease)

    async def once(
        self, key: Union[str, bytes], every: float, body: Callable[[Hold], Coroutine[Any, Any, Any]], *,
        if_it_fails: IfItFails = "keep", wait: Optional[float] = 0, lease: float = 30.0, acks: Optional[int] = None,
    ) -> bool:
        turn = Turn(every, body, True, if_it_fails, lease, acks)
        return await run(self._doing_once(Lock(self, key, wait=wait, **turn.options), turn))  # type: ignore[no-any-return]

    async def check(self, key: Union[str, bytes]) -> None:
        await run(self._checking(Lock(self, key, reentrant=False)))

    async def drain(self, timeout: Optional[float]) -> list[str]:
        return await self._run(self._drained(seconds(timeout, "timeout")))  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        """Ends the waits with Closed, and closes the connections. Holds are no longer renewed, and those of sessions
        end now."""
        await self._run(self._closing())


class Entering(AcquirableBase):
    """The beginning and the end of an `async with`."""

    cancel = False

    def _acquires(self, wait: Optional[float]) -> Coroutine[Any, Any, Any]:
        """The owner is the task that calls this, whichever task awaits it."""
        task = None if self._options.owner else asyncio.current_task()
        return self._locks._run(self._acquiring(self._wait(wait), task))  # type: ignore[no-any-return]

    async def _entering(self) -> Any:
        hold = await self._acquires(UNSET)
        if hold is None:
            raise self._not_acquired()
        self._entered.setdefault(asyncio.current_task(), []).append(_Entry(hold, self.cancel))
        return hold

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        await left(self._entered, asyncio.current_task(), self._name).leave(error)


class _Entry:
    """One `async with`."""

    def __init__(self, hold: Any, cancel: bool):
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
        except (LockError, asyncio.CancelledError) as problem:
            if not self.has_cancelled or not isinstance(problem, (LockLost, asyncio.CancelledError)):
                if error is None or not isinstance(problem, LockError):
                    raise
                return keeps(error, problem, self.hold._name)
            # Only this package's cancellation becomes a LockLost; one from outside is kept.
            is_from_outside = self.task.uncancel() > self.cancels
            if error is not None and not isinstance(error, asyncio.CancelledError):
                if is_from_outside and isinstance(problem, asyncio.CancelledError):
                    raise
                return keeps(error, problem, self.hold._name)
            if isinstance(problem, LockLost):
                if is_from_outside:
                    return
                raise
            if is_from_outside:
                raise
            # The package's cancellation comes only now, because the task itself has found the loss.
            raise LockLost(f"{self.hold._name} is no longer held by {self.hold.owner}") from error


class Lock(Entering, LockBase[Client]):
    """A write lock: one holder at a time. May be shared by tasks.

    `client` is a `redis.asyncio.Redis` (also one of Sentinel's `master_for`), a `RedisCluster`, or a `Locks`.

    The options are those of `rlock.Lock`, all by name, and one more. With `owner`, the hold outlives its task; use the name
    in no other process or loop, and not in `rlock` as well.

    - `cancel`: when the hold is lost, `async with` cancels its task, and turns the cancellation into a LockLost
    """

    _locks_of = Locks.of

    def __init__(
        self, client: Client, key: Union[str, bytes], *,
        upgrade: bool = False, limit: Optional[int] = None, cancel: bool = False, **options: Unpack[Wishes],
    ):
        super().__init__(client, key, upgrade=upgrade, limit=limit, **wished(options))
        self.cancel = cancel

    def acquire(self, wait: Optional[float] = UNSET) -> Coroutine[Any, Any, Optional[Hold]]:
        """Returns a hold, or None if the lock was not free in time. If canceled, it leaves nothing behind.

        The owner is the task that calls this, whichever task awaits it: `asyncio.wait_for` may await it in another
        one.
        """
        return self._acquires(wait)

    async def release(self) -> None:
        await self._locks._finish(self._releasing())

    async def locked(self) -> bool:
        return await self._locks._run(self._is_locked())  # type: ignore[no-any-return]

    async def owned(self) -> bool:
        return await self._locks._run(self._is_owned())  # type: ignore[no-any-return]

    async def __aenter__(self) -> Hold:
        return await self._entering()  # type: ignore[no-any-return]

    def __call__(self, function: F) -> F:
        """As a decorator of an `async def`: it runs while the lock is held."""

        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function} is no `async def` that can be awaited while the lock is held")

        @functools.wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return guarded  # type: ignore[return-value]


class ReadLock(Lock):
    """A read lock: any number of readers at a time, and no writer."""

    mode = "READ"


class Permit(ReadLock):
    """One of `limit` permits: at most `limit` holders at a time. The other options are those of `Lock`."""

    def __init__(self, client: Client, key: Union[str, bytes], limit: int, *, cancel: bool = False, **options: Unpack[Wishes]):
        super().__init__(client, key, limit=limit, cancel=cancel, **wished(options))


class AllLocks(Entering, SeveralBase):
    """Several locks, acquired in one step: all of them, or none. Made by `Locks.all`; may be shared by tasks."""

    def acquire(self, wait: Optional[float] = UNSET) -> Coroutine[Any, Any, Optional[Holds]]:
        return self._acquires(wait)

    async def __aenter__(self) -> Holds:
        return await self._entering()  # type: ignore[no-any-return]


class AnyLock(Entering, AnyBase):
    """The write lock of one of many keys: `hold.key` names it. Made by `Locks.any`; may be shared by tasks."""

    def acquire(self, wait: Optional[float] = UNSET) -> Coroutine[Any, Any, Optional[Hold]]:
        return self._acquires(wait)

    async def __aenter__(self) -> Hold:
        return await self._entering()  # type: ignore[no-any-return]


class Observer(ObserverBase):
    """Yields the current leader, and then each new one: a Leader, or None while there is none."""

    def __aiter__(self) -> "Observer":
        return self

    async def __anext__(self) -> Optional[Leader]:
        leads: Optional[Leader] = await run(self._next())
        if self.is_over:
            raise StopAsyncIteration
        return leads

    async def __aenter__(self) -> "Observer":
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()


class Election(ElectionBase):
    """An election: the leader holds the lock, in a session. Made by `Locks.election`."""

    async def campaign(self, wait: Optional[float] = None) -> Optional[Hold]:
        return await self._locks._run(self._campaigning(seconds(wait), None))  # type: ignore[no-any-return]

    async def leader(self) -> Optional[Leader]:
        return await run(leader(self._locks.io, self.key))  # type: ignore[no-any-return]

    def observe(self) -> Observer:
        return Observer(self._locks, self.key)
