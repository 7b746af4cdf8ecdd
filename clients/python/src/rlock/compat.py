"""The interface of redis-py's `Lock`, over this package: code that uses that class changes where it makes its locks.

    client.lock("order:42", timeout=10)                                  # before
    client.lock("order:42", timeout=10, lock_class=rlock.compat.Lock)    # after

`Lock` is for `redis.Redis` and `redis.RedisCluster`, `AsyncLock` for their asyncio counterparts. Arguments, results and
kinds of errors are redis-py's; `sleep` matters only while a lock of redis-py itself is at the key. What is better: waiters are
served in order and without polling, and a lock without a `timeout` (`None` or 0) ends 30 s at the latest after its process
has died. docs/coming-from/redis-py-lock.md has all that differs: `extend` and `reacquire` never shorten a hold, for example.
"""

from __future__ import annotations

import asyncio as aio
import threading
import time
import uuid
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Callable, Coroutine, Iterator, Optional, TypeVar, Union

import redis.exceptions as theirs

from . import _sync, asyncio
from ._core import log
from ._errors import LockLost, NotHeld, Refused, Unavailable

T = TypeVar("T")
#: Seconds that a lock without a time-out outlives its process.
LEASE = 30.0


class _Local(threading.local):
    token: Any = None
    hold: Any = None


class _Base:
    # What differs: the locks, how to pause, and how to call and wait for the result.
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
        self.local: Any = _Local() if thread_local else SimpleNamespace(token=None, hold=None)

    def _lock(self, owner: str) -> Any:
        key = bytes(self.redis.get_encoder().encode(self.name))  # a number is the same key as for redis-py
        return self._kind(self.redis, key, owner=owner, lease=self.timeout or LEASE, renew=not self.timeout)

    def _owner(self, token: Union[str, bytes, None]) -> tuple[Any, str]:
        """The token as redis-py keeps it, and the owner at the server: another one each time, whatever the token."""
        unique = uuid.uuid1().hex
        return self.redis.get_encoder().encode(token or unique), unique

    def _end(self, blocking: Optional[bool], blocking_timeout: Optional[float]) -> Optional[float]:
        """When the wait ends, by the monotonic clock; `None` is never, and 0 that there is no wait."""
        if not (self.blocking if blocking is None else blocking):
            return 0
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return None if wait is None else time.monotonic() + wait

    def _pause(self, error: Refused, end: Optional[float], sleep: Optional[float]) -> Optional[float]:
        """A string is at the key: a lock of redis-py. Returns how long to wait before asking again; `None` is not at all."""
        if error.code != "WRONGTYPE":
            raise error
        pause = self.sleep if sleep is None else sleep
        return None if end is not None and time.monotonic() + pause > end else pause

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Makes redis-py's errors of ours."""
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
                        self.local.token, self.local.hold = kept, hold
                    return hold is not None
                await self._call(self._rest, pause)

    async def _enter(self) -> None:
        if not await self._acquire():
            raise _error(theirs.LockError, "Unable to acquire lock within the time specified", self.name)

    async def _exit(self) -> None:
        try:
            await self._release()
        except theirs.LockError as error:
            if self.raise_on_release_error:
                raise
            log.warning("%s: %s", self.name, error)

    async def _owned(self) -> bool:
        hold = self.local.hold
        with self._errors():
            return hold is not None and bool(await self._call(self._lock(hold.owner).owned))

    async def _release(self) -> None:
        hold = self._own("release")
        self.local.token = self.local.hold = None
        with self._errors():
            await self._call(hold.release)

    async def _extend(self, action: str, lease: float, replaces: bool) -> bool:
        hold = self._own(action)
        # With timeout=0, redis-py's `extend` works and its `reacquire` deletes the lock, which is refused here.
        if self.timeout is None or not lease and action == "reacquire":
            raise _error(theirs.LockError, f"Cannot {action} a lock with no timeout", self.name)
        with self._errors():
            await self._call(hold.extend, lease if replaces else hold.left + lease)
        return True

    def _own(self, action: str) -> Any:
        if self.local.token is None:
            raise _error(theirs.LockError, f"Cannot {action} a lock that's not owned or is already unlocked.", self.name)
        return self.local.hold


def _error(kind: type[Exception], text: str, name: Any) -> Exception:
    error: Any = kind(text)
    error.lock_name = name  # redis-py before 5.1 has no such argument
    return error  # type: ignore[no-any-return]


def _left(end: Optional[float]) -> Optional[float]:
    return None if end is None else max(0.0, end - time.monotonic())


def _run(steps: Coroutine[Any, Any, T]) -> T:
    """Runs what waits in its calls, not in a loop."""
    try:
        steps.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("it waits in a loop")


class Lock(_Base):
    """As `redis.lock.Lock`. Not reentrant: each `acquire` is another owner."""

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
        return _run(self._acquire(sleep, blocking, blocking_timeout, token))

    def __enter__(self) -> "Lock":
        _run(self._enter())
        return self

    def __exit__(self, *_: Any) -> None:
        _run(self._exit())

    def locked(self) -> bool:
        return bool(self.redis.exists(self.name))

    def owned(self) -> bool:
        return _run(self._owned())

    def release(self) -> None:
        _run(self._release())

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        return _run(self._extend("extend", additional_time, replace_ttl))

    def reacquire(self) -> bool:
        return _run(self._extend("reacquire", self.timeout or 0, True))


class AsyncLock(_Base):
    """As `redis.asyncio.lock.Lock`. Not reentrant: each `acquire` is another owner."""

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
        return await self._acquire(sleep, blocking, blocking_timeout, token)

    async def __aenter__(self) -> "AsyncLock":
        await self._enter()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._exit()

    async def locked(self) -> bool:
        return bool(await self.redis.exists(self.name))

    async def owned(self) -> bool:
        return await self._owned()

    async def release(self) -> None:
        await self._release()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        return await self._extend("extend", additional_time, replace_ttl)

    async def reacquire(self) -> bool:
        return await self._extend("reacquire", self.timeout or 0, True)
