"""Locks for the blocking client of redis-py."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, TypeVar, Union, Unpack

import redis

from . import _core as core
from . import _hands as hands
from ._clock import Clock
from ._core import Spaces, Steps, seconds
from ._errors import LockError
from ._hands import Arrival, Entry, comes, coming, exits, returning, who, whole
from ._holds import Grip, HandleBase, HoldBase, HoldsBase, forgotten, keeps, left, releasing
from ._io import IO, run
from ._kinds import UNSET, AcquirableBase, AnyBase, ElectionBase, LockBase, SeveralBase, Wishes, wished
from ._locks import LocksBase
from ._once import IfItFails, Turn
from ._several import Key
from ._watch import Leader, ObserverBase, leader

F = TypeVar("F", bound=Callable[..., Any])
Client = Union[redis.Redis, redis.RedisCluster, "Locks"]
#: Functions whose calls only begin something.
LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

_state = threading.Lock()
_clock: Optional[Clock] = None
_spaces = Spaces()
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()


def complete(work: Callable[..., Any], *arguments: Any) -> Any:
    """Does the work, even if the caller is interrupted meanwhile."""
    return whole(None, work, *arguments)


def ask(steps: Steps) -> Any:
    """Runs the steps. If the caller is interrupted, nobody needs the answer."""
    return whole(_nothing, run, steps)


def _nothing(_: Any) -> None:
    pass


def clock() -> Clock:
    global _clock
    if _clock is None:
        with _state:
            _clock = _clock or Clock()
    return _clock


def _after_fork() -> None:
    """A child process is a different owner: it holds nothing, has other names, and none of the package's threads runs
    in it."""
    global _clock, _state
    _clock, _state = None, threading.Lock()
    hands.forked()
    core.NAMES.renew()
    _spaces.forked()
    for locks in list(_all):
        locks.io.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Handle(HandleBase):
    __slots__ = ()
    _whole = staticmethod(complete)
    if TYPE_CHECKING:
        _entry: Entry
        _enters: Any
        _exits: Any

        def __enter__(self: H) -> H: ...
        def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None: ...

    else:
        __enter__, __exit__ = hands.ENTERS, hands.LEAVES

    def _is_given(self: Any, grips: list[Grip]) -> None:
        self._entry = Entry(_leaves, grips)
        # `with` reads them in a step that cannot be interrupted.
        self._enters, self._exits = weakref.ref(self), self._entry.offer()

    def _arrives(self) -> None:
        """The main thread is about to get it."""
        self._entry.watch = Arrival(functools.partial(ends, self._entry)).watch(self)

    @property
    def lost(self) -> threading.Event:
        return self._event(threading.Event)  # type: ignore[no-any-return]

    def release(self) -> None:
        self._entry.handle[0].is_released_by(threading.current_thread())
        complete(ends, self._entry)

    def extend(self, lease: float) -> None:
        complete(run, self._extending(lease))


H = TypeVar("H", bound=Handle)


class Hold(Handle, HoldBase):
    """The result of one acquisition: one level of a lock. Any thread may release it, once."""

    __slots__ = ("_entry", "_enters", "_exits")

    def __init__(self, grip: Grip):
        super().__init__(grip)
        self._is_given([grip])


class Holds(Handle, HoldsBase):
    """The hold of several locks, which is lost when one of them is. Any thread may release them, once."""

    def __init__(self, keys: list[str], holds: list[Hold]):
        super().__init__(keys, holds)
        self._is_given(self._grips)


def ends(entry: Entry) -> None:
    """Releases what an entry stands for."""
    entry.over()
    run(releasing(entry.handle))


def _leaves(entry: Entry, error: Optional[BaseException]) -> None:
    """The end of a `with`, perhaps because of an exception."""
    grips: list[Grip] = entry.handle
    grips[0].is_released_by(who().thread)
    try:
        ends(entry)
    except LockError as problem:
        if error is None:
            raise
        keeps(error, problem, ", ".join(grip.tenure.seat.name for grip in grips))


class Locks(LocksBase[Client]):
    """The locks of one client, and its settings. Thread-safe; usable in forked children."""

    _is_async, _io, _spaces, _all = False, IO, _spaces, _all
    _hold, _holds, _mutex = Hold, Holds, staticmethod(threading.Lock)
    _whole = staticmethod(complete)

    @property
    def _keeper(self) -> Clock:
        return clock()

    def _finish(self, steps: Steps) -> Any:
        return complete(run, steps)

    def _name_of(self, me: Optional[hands.Me]) -> str:
        me = me or who()
        if not me.name:
            me.name = core.NAMES.new()
        return me.name

    def all(self, *keys: Key, **options: Unpack[Wishes]) -> "AllLocks":
        return AllLocks(self, keys, options)

    def any(self, pool: Union[str, bytes], keys: Iterable[Union[str, bytes]], **options: Unpack[Wishes]) -> "AnyLock":
        return AnyLock(self, pool, keys, options)

    def election(self, key: Union[str, bytes], *, name: Optional[str] = None, lease: float = 10.0) -> "Election":
        return Election(self, key, name, lease)

    def once(
        self, key: Union[str, bytes], every: float, body: Callable[[Hold], Any], *,
        if_it_fails: IfItFails = "keep", wait: Optional[float] = 0, lease: float = 30.0, acks: Optional[int] = None,
    ) -> bool:
        turn = Turn(every, body, False, if_it_fails, lease, acks)
        return run(self._doing_once(Lock(self, key, wait=wait, **turn.options), turn))  # type: ignore[no-any-return]

    def check(self, key: Union[str, bytes]) -> None:
        run(self._checking(Lock(self, key, reentrant=False)))

    def drain(self, timeout: Optional[float]) -> list[str]:
        return complete(run, self._drained(seconds(timeout, "timeout")))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the waits with Closed, and closes the connections. Holds are no longer renewed, and those of sessions
        end now."""
        complete(run, self._closing())


@returning
def gets(take: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the handle that `take` returns. If it does not get to the caller, the package releases it."""
    return whole(_undoes, _arriving, take, arguments)


def _arriving(take: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    handle = run(take(*arguments, who()))
    if handle is not None and hands.is_hand():
        handle._arrives()
    return handle


def _undoes(handle: Handle) -> None:
    ends(handle._entry)


class Entering(AcquirableBase):
    """The beginning and the end of a `with`."""

    def _entering(self) -> Any:
        entry = coming(self._leave)
        return whole(lambda _: self._leave(entry, None), self._enters, entry)

    def _enters(self, entry: Entry) -> Any:
        hold = run(self._acquiring(self.wait, who()))
        if hold is None:
            raise self._not_acquired()
        with _state:
            entry.handle = hold
            self._entered.setdefault(who().thread, []).append(entry)
        return hold

    @exits
    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        whole(None, self._leave, Entry(self._leave), error)

    def _exit_of(self) -> Any:
        return comes(self._leave)

    def _leave(self, entry: Entry, error: Optional[BaseException]) -> None:
        """Leaves that `with`, or this thread's newest one."""
        with _state:
            if entry.handle is None:
                entry = left(self._entered, who().thread, self._name)
            else:
                forgotten(self._entered, entry)
            hold, entry.handle, entry.voucher = entry.handle, None, None
        _leaves(hold._entry, error)


class Lock(Entering, LockBase[Client]):
    """A write lock: one holder at a time. May be shared by threads and forked children.

    `client` is a `redis.Redis` (also one of Sentinel's `master_for`), a `RedisCluster`, or a `Locks`.

    Options, all by name:

    - `wait`: seconds, None = forever, 0 = do not wait
    - `lease`: seconds that the lock outlives a process that dies. It is renewed every third of it, unless
      `renew=False`
    - `owner`: who holds; by default the thread. An owner that holds may acquire again, and releases as often. With
      `owner`, the hold outlives its thread; use the name in no other process, and not in `rlock.asyncio` as well
    - `maxqueue`: do not wait if this many requests already wait
    - `acks`: a grant, and each renewal, counts only when this many replicas have acknowledged it
    - `session`: the hold has a connection of its own, and ends with it, and so with the process
    - `upgrade`: WRITE in addition to one's own READ
    """

    _locks_of = Locks.of

    @returning
    def acquire(self, wait: Optional[float] = UNSET) -> Optional[Hold]:
        return gets(self._acquiring, self._wait(wait))  # type: ignore[no-any-return]

    def release(self) -> None:
        complete(run, self._releasing())

    def locked(self) -> bool:
        return ask(self._is_locked())  # type: ignore[no-any-return]

    def owned(self) -> bool:
        return ask(self._is_owned())  # type: ignore[no-any-return]

    def __enter__(self) -> Hold:
        return self._entering()  # type: ignore[no-any-return]

    def __call__(self, function: F) -> F:
        """As a decorator: the function runs while the lock is held."""

        if any(is_so(function) for is_so in LATER):
            raise TypeError(f"{function} does its work when it is awaited or iterated: lock there (rlock.asyncio, or `with`)")

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return guarded  # type: ignore[return-value]


class ReadLock(Lock):
    """A read lock: any number of readers at a time, and no writer."""

    mode = "READ"


class Permit(ReadLock):
    """One of `limit` permits: at most `limit` holders at a time. The other options are those of `Lock`."""

    def __init__(self, client: Client, key: Union[str, bytes], limit: int, **options: Unpack[Wishes]):
        super().__init__(client, key, limit=limit, **wished(options))


class AllLocks(Entering, SeveralBase):
    """Several locks, acquired in one step: all of them, or none. Made by `Locks.all`; may be shared by threads."""

    @returning
    def acquire(self, wait: Optional[float] = UNSET) -> Optional[Holds]:
        return gets(self._acquiring, self._wait(wait))  # type: ignore[no-any-return]

    def __enter__(self) -> Holds:
        return self._entering()  # type: ignore[no-any-return]


class AnyLock(Entering, AnyBase):
    """The write lock of one of many keys: `hold.key` names it. Made by `Locks.any`; may be shared by threads."""

    @returning
    def acquire(self, wait: Optional[float] = UNSET) -> Optional[Hold]:
        return gets(self._acquiring, self._wait(wait))  # type: ignore[no-any-return]

    def __enter__(self) -> Hold:
        return self._entering()  # type: ignore[no-any-return]


class Observer(ObserverBase):
    """Yields the current leader, and then each new one: a Leader, or None while there is none."""

    def __init__(self, locks: Any, key: str):
        super().__init__(locks, key)
        self.mutex = threading.Lock()

    def __iter__(self) -> "Observer":
        return self

    def __next__(self) -> Optional[Leader]:
        leads = whole(_nothing, self._leads)
        if self.is_over:
            raise StopIteration
        return leads  # type: ignore[no-any-return]

    def _leads(self) -> Optional[Leader]:
        with self.mutex:  # a call that was interrupted may not have ended yet
            return run(self._next())  # type: ignore[no-any-return]

    def __enter__(self) -> "Observer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Election(ElectionBase):
    """An election: the leader holds the lock, in a session. Made by `Locks.election`."""

    @returning
    def campaign(self, wait: Optional[float] = None) -> Optional[Hold]:
        return gets(self._campaigning, seconds(wait))  # type: ignore[no-any-return]

    def leader(self) -> Optional[Leader]:
        return ask(leader(self._locks.io, self.key))  # type: ignore[no-any-return]

    def observe(self) -> Observer:
        return Observer(self._locks, self.key)
