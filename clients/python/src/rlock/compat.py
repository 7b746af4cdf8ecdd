"""The interface of redis-py's `Lock`, over this package: code that uses that class only has to change where it creates
its locks.

    client.lock("order:42", timeout=10)                                  # before
    client.lock("order:42", timeout=10, lock_class=rlock.compat.Lock)    # after

`Lock` is for `redis.Redis` and `redis.RedisCluster`, `AsyncLock` for their asyncio counterparts. Arguments, results
and kinds of errors are redis-py's; `sleep` matters only while a lock of redis-py itself is at the key. Improvements:
waiters are served in order and without polling, and a lock without a `timeout` (`None` or 0) ends 30 s at the latest
after its process has died. docs/coming-from/set-nx.md lists all differences: `extend` and `reacquire` never shorten
a hold, for example.
"""

from __future__ import annotations

import asyncio as aio
import functools
import threading
import time
import uuid
from contextlib import contextmanager
from typing import Any, Callable, Coroutine, Iterator, Optional, TypeVar, Union

import redis.exceptions as theirs

from . import _sync, asyncio
from ._holds import keeps
from ._core import log
from ._errors import LockLost, NotHeld, Refused, Unavailable
from ._hands import Entry, comes, coming, exits, whole

T = TypeVar("T")
#: How many seconds a lock without a timeout outlives its process.
LEASE = 30.0


class _Kept:
    """What one thread, or all threads together, have acquired."""

    token: Any = None
    hold: Any = None


class _Local(threading.local):
    def __init__(self) -> None:
        self.kept = _Kept()

    @property
    def token(self) -> Any:
        return self.kept.token

    @property
    def hold(self) -> Any:
        return self.kept.hold


class _Base:
    # What differs between the two: the locks, how to pause, and how to call and wait for a result.
    _kind: Any
    _rest: Any
    _call: Callable[..., Coroutine[Any, Any, Any]]

    def __init__(
        self,
        redis: Any,
        name: Union[str, bytes, memoryview],
        timeout: Optional[float] = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: Optional[float] = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ):
        self.redis, self.name, self.timeout, self.sleep = redis, name, timeout, sleep
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.thread_local, self.raise_on_release_error = bool(thread_local), raise_on_release_error
        self.local: Any = _Local()
        if not thread_local:
            self.local = _Kept()

    @property
    def _mine(self) -> _Kept:
        kept: _Kept = self.local.kept if self.thread_local else self.local
        return kept

    def _lock(self, owner: str) -> Any:
        key = bytes(self.redis.get_encoder().encode(self.name))  # a number is the same key as for redis-py
        return self._kind(self.redis, key, owner=owner, lease=self.timeout or LEASE, renew=not self.timeout)

    def _owner(self, token: Union[str, bytes, None]) -> tuple[Any, str]:
        """The token in the form that redis-py keeps, and the owner at the server: a different one each time, whatever
        the token is."""
        unique = uuid.uuid1().hex
        return self.redis.get_encoder().encode(token or unique), unique

    def _end(self, blocking: Optional[bool], blocking_timeout: Optional[float]) -> Optional[float]:
        """When the wait ends, by the monotonic clock; `None` means never, and 0 means that it does not wait."""
        if not (self.blocking if blocking is None else blocking):
            return 0
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return None if wait is None else time.monotonic() + wait

    def _pause(self, error: Refused, end: Optional[float], sleep: Optional[float]) -> Optional[float]:
        """A string is at the key: a lock of redis-py itself. Returns how long to wait before asking again; `None` means
        not to ask again."""
        if error.code != "WRONGTYPE":
            raise error
        pause = self.sleep if sleep is None else sleep
        return None if end is not None and time.monotonic() + pause > end else pause

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Converts this package's errors to redis-py's."""
        try:
            yield
        except (LockLost, NotHeld) as error:
            raise _error(theirs.LockNotOwnedError, f"Cannot act on a lock that's no longer owned: {error}", self.name) from error
        except Unavailable as error:
            raise theirs.ConnectionError(str(error)) from error
        except Refused as error:
            if error.code == "WRONGTYPE":
                raise _error(theirs.LockNotOwnedError, f"Cannot act on a lock of another kind: {error}", self.name) from error
            cause = error.__cause__  # what redis-py has made of the server's reply
            raise (type(cause)(*cause.args) if isinstance(cause, theirs.RedisError) else theirs.ResponseError(str(error))) from error

    async def _acquire(
        self,
        mine: _Kept,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        kept, owner = self._owner(token)
        end = self._end(blocking, blocking_timeout)
        with self._errors():
            while True:
                try:
                    hold = await self._call(self._lock(owner).acquire, _left(end))
                except Refused as error:
                    pause = self._pause(error, end, sleep)
                    if pause is None:
                        return False
                else:
                    if hold is not None:
                        mine.token, mine.hold = kept, hold
                    return hold is not None
                await self._call(self._rest, pause)

    async def _enter(self, mine: _Kept) -> None:
        if not await self._acquire(mine):
            raise _error(theirs.LockError, "Unable to acquire lock within the time specified", self.name)

    async def _exit(self, mine: _Kept, in_flight: Optional[BaseException]) -> None:
        try:
            await self._release(mine)
        except theirs.RedisError as error:
            if in_flight is not None:
                keeps(in_flight, error, str(self.name))
            elif self.raise_on_release_error or not isinstance(error, theirs.LockError):
                raise
            else:
                log.warning("%s: %s", self.name, error)

    async def _owned(self, mine: _Kept) -> bool:
        hold = mine.hold
        with self._errors():
            return hold is not None and bool(await self._call(self._lock(hold.owner).owned))

    async def _release(self, mine: _Kept) -> None:
        hold = self._own(mine, "release")
        mine.token = mine.hold = None
        with self._errors():
            await self._call(hold.release)

    async def _extend(self, mine: _Kept, action: str, lease: float, replaces: bool) -> bool:
        hold = self._own(mine, action)
        # With timeout=0, redis-py's `extend` works and its `reacquire` deletes the lock, which is refused here.
        if self.timeout is None or not lease and action == "reacquire":
            raise _error(theirs.LockError, f"Cannot {action} a lock with no timeout", self.name)
        with self._errors():
            await self._call(hold.extend, lease if replaces else hold.left + lease)
        return True

    def _own(self, mine: _Kept, action: str) -> Any:
        if mine.token is None:
            raise _error(theirs.LockError, f"Cannot {action} a lock that's not owned or is already unlocked.", self.name)
        return mine.hold


def _error(kind: type[Exception], text: str, name: Any) -> Exception:
    error: Any = kind(text)
    error.lock_name = name  # redis-py before 5.1 has no such argument
    return error  # type: ignore[no-any-return]


def _left(end: Optional[float]) -> Optional[float]:
    return None if end is None else max(0.0, end - time.monotonic())


def _run(steps: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Runs a function whose calls block, without a loop."""
    try:
        steps(*arguments).send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("it waits in a loop")


class Lock(_Base):
    """The interface of `redis.lock.Lock`. Not reentrant: each `acquire` is another owner."""

    _kind = _sync.Lock
    _rest = staticmethod(time.sleep)

    @staticmethod
    async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        mine = self._mine
        undo = functools.partial(self._undo, mine)
        return whole(undo, _run, self._acquire, mine, sleep, blocking, blocking_timeout, token)  # type: ignore[no-any-return]

    def _undo(self, mine: _Kept, is_acquired: Any) -> None:
        if is_acquired:
            self._leave(Entry(self._leave, mine), None)

    def __enter__(self) -> "Lock":
        entry = coming(self._leave)
        whole(functools.partial(self._leave, entry), self._enters, entry, self._mine)
        return self

    def _enters(self, entry: Entry, mine: _Kept) -> Optional[BaseException]:
        _run(self._enter, mine)
        entry.handle = mine
        return None

    @exits
    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        whole(None, self._leave, Entry(self._leave, self._mine), error)

    def _exit_of(self) -> Any:
        return comes(self._leave)

    def _leave(self, entry: Entry, error: Optional[BaseException]) -> None:
        mine, entry.handle = entry.handle or self._mine, None
        entry.over()
        _run(self._exit, mine, error)

    def locked(self) -> bool:
        return bool(self.redis.exists(self.name))

    def owned(self) -> bool:
        return whole(_nothing, _run, self._owned, self._mine)  # type: ignore[no-any-return]

    def release(self) -> None:
        whole(None, _run, self._release, self._mine)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        return whole(None, _run, self._extend, self._mine, "extend", additional_time, replace_ttl)  # type: ignore[no-any-return]

    def reacquire(self) -> bool:
        return whole(None, _run, self._extend, self._mine, "reacquire", self.timeout or 0, True)  # type: ignore[no-any-return]


def _nothing(_: Any) -> None:
    pass


class AsyncLock(_Base):
    """The interface of `redis.asyncio.lock.Lock`. Not reentrant: each `acquire` is another owner."""

    _kind = asyncio.Lock
    _rest = staticmethod(aio.sleep)

    @staticmethod
    async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
        return await function(*arguments)

    async def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        return await self._acquire(self._mine, sleep, blocking, blocking_timeout, token)

    async def __aenter__(self) -> "AsyncLock":
        await self._enter(self._mine)
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        await self._exit(self._mine, error)

    async def locked(self) -> bool:
        return bool(await self.redis.exists(self.name))

    async def owned(self) -> bool:
        return await self._owned(self._mine)

    async def release(self) -> None:
        await self._release(self._mine)

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        return await self._extend(self._mine, "extend", additional_time, replace_ttl)

    async def reacquire(self) -> bool:
        return await self._extend(self._mine, "reacquire", self.timeout or 0, True)
