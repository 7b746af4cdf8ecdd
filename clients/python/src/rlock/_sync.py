"""Locks for the blocking client of redis-py."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any, Callable, Optional, TypeVar, Union

from . import _core as core
from ._api import UNSET, HoldBase, LockBase
from ._clock import Clock
from ._core import Attempt, LockLost, NotAcquired, Options, Seat, Space, Tenure, now
from ._io import IO, Link, run
from ._links import Route

F = TypeVar("F", bound=Callable[..., Any])

_state = threading.Lock()
_clock: Optional[Clock] = None
_spaces: dict[Any, Space] = {}
_locks_of: "weakref.WeakKeyDictionary[Any, Locks]" = weakref.WeakKeyDictionary()
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()
_me = threading.local()


def clock() -> Clock:
    global _clock
    if _clock is None:
        with _state:
            _clock = _clock or Clock()
    return _clock


def _after_fork() -> None:
    """A child is somebody else: it holds nothing, has other names, and no thread of ours runs in it."""
    global _clock, _state, _me
    _clock, _state, _me = None, threading.Lock(), threading.local()
    core.NAMES.renew()
    for space in _spaces.values():
        space.forked()
    for locks in list(_all):
        locks.io.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Hold(HoldBase):
    """The result of one acquisition: one level of a lock. Any thread may release it, once."""

    __slots__ = ()

    @property
    def lost(self) -> threading.Event:
        """Set when the hold is lost, at its deadline at the latest."""
        return self._tenure.signal  # type: ignore[no-any-return]

    def release(self) -> None:
        """Releases one level. Raises LockLost if the hold ended before."""
        self._once()
        self._locks._release(self._tenure.seat, self._tenure)

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


class Locks:
    """The locks of one client: its settings, and a set of `waiting` connections for those who wait.

    A client has one `Locks`, made when the first `Lock(client, …)` is; make it yourself, first, to choose `waiting`
    and `patience` (seconds for which a request that does not wait is repeated while connections break or a failover
    is under way). Thread-safe; usable in forked children.
    """

    def __init__(self, client: Any, *, waiting: int = 8, patience: float = 3.0):
        self.patience = patience
        self.io = IO(Route(client, is_async=False), waiting)
        with _state:
            self.space = _spaces.setdefault(self.io.route.identity, Space(len(_spaces)))
            _locks_of[client] = self
            _all.add(self)

    @classmethod
    def of(cls, client: Any) -> "Locks":
        if isinstance(client, Locks):
            return client
        return _locks_of.get(client) or cls(client)

    def owner(self) -> str:
        """The name of this thread, the same for all of its locks."""
        try:
            name: str = _me.name
        except AttributeError:
            name = _me.name = core.NAMES.new()
        return name + self.space.suffix

    def close(self) -> None:
        """Closes the connections. Holds end with their leases."""
        self.io.close()

    def _acquire(self, key: str, options: Options, wait: Optional[float]) -> Optional[Hold]:
        owner = options.owner or self.owner()
        seat, start, attempt = self.space.seat(key, owner, options.kind, threading.Lock), now(), None
        patience = seat.patience(wait, self.patience)
        try:
            is_mine = seat.mutex.acquire(timeout=-1 if patience is None else min(patience, threading.TIMEOUT_MAX))
        except BaseException:
            self.space.leave(seat)
            raise
        if not is_mine:
            self.space.leave(seat)
            seat.is_taken()
            return None
        try:
            tenure = seat.tenure
            if tenure is not None and not tenure.held:
                clock().lose(tenure)
                raise LockLost(f"{key} was lost by {owner}: release it first")
            if wait is not None and wait > 0:
                wait = max(0.001, wait - (now() - start))
            attempt = Attempt(self.io, seat, options, tenure.depth + 1 if tenure else 1, wait, self.patience)
            attempt.leave = functools.partial(self.space.vacate, seat)
            try:
                answer = run(attempt.steps())
            except LockLost:
                if tenure is not None:
                    clock().lose(tenure)
                raise
            return self._granted(seat, options, *answer) if answer is not None else None
        finally:
            if attempt is None or not attempt.cleans_up:
                self.space.vacate(seat)

    def _granted(self, seat: Seat, options: Options, token: int, sent: float, link: Optional[Link]) -> Hold:
        tenure = seat.tenure
        if tenure is None:
            tenure = Tenure(seat, options, token, sent, threading.Event(), self.io)
            tenure.link = link
            seat.tenure = tenure
            clock().add(tenure)
        else:
            tenure.deadline = max(tenure.deadline, sent + options.lease)
        tenure.depth += 1
        return Hold(self, tenure)

    def _release(self, seat: Seat, tenure: Tenure) -> None:
        with seat.mutex:
            try:
                run(core.release(self.io, seat, tenure, self.patience))
            except LockLost:
                clock().lose(tenure)
                raise
            finally:
                tenure.depth -= 1
                if tenure.depth == 0:
                    if seat.tenure is tenure:
                        seat.tenure = None
                    if tenure.state != "lost":
                        tenure.state = "released"
                    clock().forget(tenure)
                    if tenure.link is not None:
                        self.io.keep(tenure.link)
                        tenure.link = None
        self.space.leave(seat, 0)


class Lock(LockBase):
    """A write lock: one holder at a time. May be shared by threads and forked children.

    `client` is a `redis.Redis` (also one of Sentinel's `master_for`), a `RedisCluster`, or a `Locks`.

    Options, all by name:

    - `wait`: seconds, None = forever, 0 = do not wait
    - `lease`: seconds that the lock outlives a process that dies; it is renewed every third of it, with `renew=False` not
    - `owner`: who holds; else the thread. An owner that holds may acquire again, and releases as often
    - `maxqueue`: with so many waiting already, do not wait
    - `acks`: a grant, and each renewal, counts when so many replicas have acknowledged it
    - `session`: the hold ends with a connection of its own, and so with the process
    - `upgrade`: WRITE beside one's own READ
    """

    def __init__(self, client: Any, key: Union[str, bytes], **options: Any):
        super().__init__(Locks.of(client), key, **options)

    def acquire(self, wait: Optional[float] = UNSET) -> Optional[Hold]:
        """Returns a hold, or None if the lock was not free in time."""
        hold: Optional[Hold] = self._locks._acquire(self.key, self._options, self.wait if wait is UNSET else wait)
        return hold

    def release(self) -> None:
        """Releases one level of what this thread (or `owner`) holds."""
        tenure = self._own_tenure()
        self._locks._release(tenure.seat, tenure)

    def __enter__(self) -> Hold:
        hold = self.acquire()
        if hold is None:
            raise NotAcquired(f"{self.key} was not free within {self.wait} s")
        return hold

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __call__(self, function: F) -> F:
        """As a decorator: the function runs while the lock is held."""

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return guarded  # type: ignore[return-value]


class ReadLock(Lock):
    """A read lock: any number of readers at a time, and no writer."""

    mode = "READ"


class Permit(ReadLock):
    """One of `limit` permits: at most `limit` holders at a time."""

    def __init__(self, client: Any, key: Union[str, bytes], limit: int, **options: Any):
        super().__init__(client, key, limit=limit, **options)
