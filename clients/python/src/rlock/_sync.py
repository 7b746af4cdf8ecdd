"""Locks for the blocking client of redis-py."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, TypeVar, Union, Unpack

import redis

from . import _core as core
from ._api import ATTRIBUTE, UNSET, Grip, HoldBase, LockBase, LocksBase, forgotten, keeps, left
from ._clock import Clock
from ._core import MOMENT, Options, Seat, Space, Spaces, Tenure, endless, now, seconds
from ._drive import Steps, pairs, unreleased
from ._errors import LockError, NotAcquired, Unavailable
from . import _hands as hands
from ._hands import Arrival, Entry, acquires, comes, coming, exits, returning, who, whole
from ._io import IO, run
from ._links import Route
from ._once import IfItFails, Turn
from ._several import (
    AnyBase, ElectionBase, Group, HoldsBase, Key, Leader, ObserverBase, Part, SeveralBase, Waits, GroupTenure, Wishes, counts, leader, own_level, wished,
)
from ._telemetry import LAST, Counts, Listener, Telemetry

F = TypeVar("F", bound=Callable[..., Any])
Client = Union[redis.Redis, redis.RedisCluster, "Locks"]
#: Functions whose calls only begin something.
LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

_state = threading.Lock()
_clock: Optional[Clock] = None
_spaces = Spaces()
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()


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


class Handle:
    """What the user gets for one or several locks."""

    __slots__ = ()
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

    def release(self) -> None:
        """Releases one level of each lock, once. Raises LockLost if a hold ended before, and Unavailable if the outcome
        is unknown after the `patience`; then it is released later.
        """
        self._entry.handle[0].is_released_by(threading.current_thread())
        whole(None, ends, self._entry)


H = TypeVar("H", bound=Handle)


class Hold(Handle, HoldBase):
    """The result of one acquisition: one level of a lock. Any thread may release it, once."""

    __slots__ = ("_entry", "_enters", "_exits")

    def __init__(self, grip: Grip):
        super().__init__(grip)
        self._is_given([grip])

    @property
    def lost(self) -> threading.Event:
        """Set when the hold is lost, at its deadline at the latest."""
        signals = self._tenure.signals
        return signals[0] if signals else whole(None, self._signal, threading.Event)  # type: ignore[no-any-return]

    def extend(self, lease: float) -> None:
        """Makes the hold last at least `lease` seconds from now; never shortens it. Raises LockLost if it has ended."""
        self._extends()
        whole(None, self._locks._extend, self._tenure, lease)

    def on_lost(self, call: Callable[[], Any]) -> None:
        if not whole(None, self._listens, call):
            call()

    on_lost.__doc__ = HoldBase.on_lost.__doc__


class Holds(Handle, HoldsBase):
    """The hold of several locks. Any thread may release them, once."""

    def __init__(self, keys: list[str], holds: list[Hold]):
        super().__init__(keys, holds)
        self._is_given([each._grip for each in holds])

    @property
    def lost(self) -> threading.Event:
        """Set when one of them is lost, at its deadline at the latest."""
        if self._lost is None:
            self._lost = threading.Event()
            self.on_lost(self._lost.set)
        return self._lost  # type: ignore[no-any-return]

    def extend(self, lease: float) -> None:
        """Makes them last at least `lease` seconds from now. Raises LockLost if one of them has ended."""
        for hold in self._holds:
            hold.extend(lease)

    def on_lost(self, call: Callable[[], Any]) -> None:
        whole(None, super().on_lost, call)

    on_lost.__doc__ = HoldsBase.on_lost.__doc__


def ends(entry: Entry) -> None:
    """Releases what an entry stands for."""
    entry.over()
    release_all(entry.handle)


def release_all(grips: list[Grip]) -> None:
    problem: Optional[BaseException] = None
    for grip in reversed(grips):
        try:
            grip.once()
            try:
                grip.locks._release(grip.tenure.seat, grip.tenure)
            finally:
                grip.forget()
                if grip.permit is not None:
                    run(grip.locks._permit_back(grip.permit))
        except LockError as error:
            problem = problem or error
    if problem is not None:
        raise problem


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


class Locks(LocksBase):
    """The locks of one client, and its settings.

    A client has one `Locks`, which the first `Lock(client, …)` creates. Create it yourself before that to choose
    `patience` (for how many seconds a request that does not wait is repeated while connections break or a failover is in
    progress) or `outage` (after how many seconds without a server a wait gives up; None: it waits until its own time is
    up).
    Thread-safe; usable in forked children.
    """

    _hold, _mutex, _mutexes, _spaces = Hold, staticmethod(threading.Lock), Waits, _spaces

    def __init__(self, client: Client, *, patience: float = 3.0, listener: Optional[Listener] = None, outage: Optional[float] = None):
        super().__init__(client, IO(Route(client, is_async=False), _spaces, Telemetry(listener), endless(outage, "outage")), patience)
        _all.add(self)

    @classmethod
    def of(cls, client: Client) -> "Locks":
        if isinstance(client, Locks):
            return client
        if any(kind.__module__.startswith("redis.asyncio") for kind in type(client).__mro__):
            raise TypeError("that is a client for asyncio: use rlock.asyncio")
        return vars(client).get(ATTRIBUTE) or cls(client)

    def all(self, *keys: Key, **options: Unpack[Wishes]) -> "AllLocks":
        """Several locks, acquired in one step: keys, `read(key)`, or `limit(key, most)`. The options are those of `Lock`."""
        return AllLocks(self, keys, options)

    def any(self, pool: Union[str, bytes], keys: Iterable[Union[str, bytes]], **options: Unpack[Wishes]) -> "AnyLock":
        """One of many: the write lock of the first key that is free. Callers wait in line for a permit of the key `pool`."""
        return AnyLock(self, pool, keys, options)

    def election(self, key: Union[str, bytes], *, name: Optional[str] = None, lease: float = 10.0) -> "Election":
        """An election. `name` is what followers see, for example an address; `lease` is how long a leader may be
        silent."""
        return Election(self, key, name, lease)

    def once(
        self, key: Union[str, bytes], every: float, body: Callable[[Hold], Any], *,
        if_it_fails: IfItFails = "keep", wait: Optional[float] = 0, lease: float = 30.0, acks: Optional[int] = None,
    ) -> bool:
        """Calls `body(hold)` unless a run began in the last `every` seconds, on any machine. Returns whether `body` was
        called.

        If it fails or its process dies, nobody else runs in this interval. With `if_it_fails="again"`, another run
        may begin at once, or after the `lease` of a process that died.
        """
        turn = Turn(every, body, False, if_it_fails, lease, acks)
        hold = Lock(self, key, wait=wait, **turn.options).acquire()
        if hold is None:
            return False
        turn.begins()
        try:
            body(hold)
        except BaseException as error:
            try:
                whole(None, run, turn.ends(self, hold, True))
            except LockError as problem:
                keeps(error, problem, hold.key)
            raise
        whole(None, run, turn.ends(self, hold, False))
        return True

    def owner(self, me: Optional[hands.Me] = None) -> str:
        """The owner name of this thread, the same for all of its locks."""
        me = me or who()
        if not me.name:
            me.name = core.NAMES.new()
        return me.name + (self.io.space.suffix if self.io.space else "")

    def check(self, key: Union[str, bytes]) -> None:
        """Acquires the lock of `key`, waits a moment for it as another owner, and releases it. Raises the error, if
        any.

        A program that calls it at its start finds out there whether the server, the password, TLS, the module or a
        permission would keep it from its locks.
        """
        lock = Lock(self, key, reentrant=False)
        first = lock.acquire(wait=0)
        try:
            try:
                second = lock.acquire(wait=MOMENT)
            except Unavailable:  # a program that starts may be slower than a moment
                second = lock.acquire(wait=self.patience)
            if second is not None:
                second.release()
        finally:
            if first is not None:
                first.release()

    def drain(self, timeout: Optional[float]) -> list[str]:
        """Acquires nothing from now on, ends what waits, and waits for the release of what is held; then closes.

        Returns the keys that are still held after `timeout` seconds. Their holds are lost at once, and others are kept out
        until the leases end. Not for the handler of a signal: it would wait for the code that it has interrupted.
        """
        return whole(None, self._drain, seconds(timeout, "timeout"))  # type: ignore[no-any-return]

    def _drain(self, timeout: Optional[float]) -> list[str]:
        left = run(self._draining(timeout))
        self._close()
        return left  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the waits with Closed, and closes the connections. Holds are no longer renewed, and those of sessions
        end now."""
        whole(None, self._close)

    def _close(self) -> None:
        self.io.close()
        clock().forget_all(self.io)
        self.io.telemetry.told().wait(LAST)

    def counts(self) -> Counts:
        """What is held and waited for through this object now, and how much was lost."""
        return whole(None, counts, self.io)  # type: ignore[no-any-return]

    def _acquire(self, key: str, options: Options, wait: Optional[float], me: Any = None, is_observed: bool = False) -> Optional[Hold]:
        return run(self._acquiring(key, options, wait, me or who(), is_observed))  # type: ignore[no-any-return]

    def _acquire_all(self, parts: list[Part], options: Options, wait: Optional[float]) -> Optional[list[Hold]]:
        return run(self._acquiring_all(parts, options, wait, who()))  # type: ignore[no-any-return]

    @staticmethod
    def _seated(seat: Any, patience: float) -> bool:
        if isinstance(seat, Group):
            return seat.mutex.acquire(False) or seat.mutex.acquire(timeout=patience)  # type: ignore[no-any-return]
        return seat.mutex.acquire(False) or acquires(seat.mutex, patience)

    def _give_back(self, holds: list[Hold]) -> None:
        release_all([each._grip for each in holds])

    def _begin(self, steps: Steps) -> None:
        """Begins work for a hold, in a thread."""
        clock().workers.do((self.io, "observers"), lambda: run(steps))

    def _lost(self, tenure: Tenure) -> None:
        clock().lose(tenure)

    def _added(self, tenure: Tenure) -> None:
        clock().add(tenure)

    def _renews(self, tenure: Tenure, is_so: Callable[[], bool]) -> None:
        with clock().lock:
            if is_so():
                clock().renew(tenure)

    def _release(self, seat: Seat, tenure: Tenure) -> None:
        self._known.use(seat)
        by = now() + self.patience
        try:
            if not seat.mutex.acquire(timeout=min(self.patience, threading.TIMEOUT_MAX)):
                raise unreleased(tenure)
        except BaseException:
            # The level counts as released, even if a signal's handler raised here: nobody else would release it.
            threading.Thread(target=self._release_later, args=(seat, tenure), name="rlock-cleanup", daemon=True).start()
            raise
        run(self._releasing(seat, tenure, by - now()))

    def _release_later(self, seat: Seat, tenure: Tenure) -> None:
        seat.mutex.acquire()
        with contextlib.suppress(LockError):
            run(self._releasing(seat, tenure, self.patience))

    def _extend(self, tenure: Tenure, lease: float) -> None:
        run(self._extending(tenure, lease))

    def _ask(self, key: str, words: Callable[[], list[Any]]) -> Any:
        return run(self._asking(key, words))

    def _ended(self, seat: Seat, tenure: Optional[Tenure], is_released: bool = False) -> None:
        """A session's connection is kept only if nothing is tied to it any more."""
        if tenure is None or (tenure.depth > 0 and tenure.state == "held"):
            return
        if isinstance(tenure, GroupTenure):
            for call in tenure.ends():
                clock().workers.call(call)
        if seat.tenure is tenure:
            seat.tenure = None
        tenure.ended()
        clock().forget(tenure)
        if tenure.link is not None:
            link, tenure.link = tenure.link, None
            if is_released:
                self.io.keep(link)
            else:
                self.io.drop(link)


@returning
def gets(take: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the handle that `take` returns. If it does not get to the caller, the package releases it."""
    return whole(_undoes, _arriving, take, arguments)


def _arriving(take: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    handle = take(*arguments)
    if handle is not None and hands.is_hand():
        handle._arrives()
    return handle


def _undoes(handle: Handle) -> None:
    ends(handle._entry)


class Entering:
    """The beginning and the end of a `with`."""

    _locks: Locks
    _entered: dict[Any, list[Any]]
    wait: Optional[float]

    @property
    def _name(self) -> str:
        return getattr(self, "key", None) or ", ".join(self.keys)  # type: ignore[attr-defined]

    def _takes(self, wait: Optional[float]) -> Any:
        raise NotImplementedError

    def _entering(self) -> Any:
        entry = coming(self._leave)
        return whole(lambda _: self._leave(entry, None), self._enters, entry)

    def _enters(self, entry: Entry) -> Any:
        hold = self._takes(self.wait)
        if hold is None:
            raise NotAcquired(f"{self._name}: not free within {self.wait} s")
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
        """Returns a hold, or None if the lock was not free in time."""
        return gets(self._takes, self.wait if wait is UNSET else seconds(wait))  # type: ignore[no-any-return]

    def release(self) -> None:
        """Releases one level of what this thread (or `owner`) holds."""
        whole(None, self._release)

    def _release(self) -> None:
        tenure = own_level(self._own_tenure())
        self._locks._release(tenure.seat, tenure)

    def locked(self) -> bool:
        """Asks the server whether anybody holds it, in any mode."""
        said = whole(_nothing, self._locks._ask, self.key, lambda: ["RLOCK.INFO", self.key, "WAITERS", 0])
        return bool(pairs(said)["mode"] != "free")

    def owned(self) -> bool:
        """Asks the server whether this thread (or `owner`) holds it; `held` answers without asking."""

        def words() -> list[Any]:
            return ["RLOCK.HOLDS", self.key, self._options.owner or self._locks.owner(), self._options.kind]

        return bool(whole(_nothing, self._locks._ask, self.key, words))

    def __enter__(self) -> Hold:
        return self._entering()  # type: ignore[no-any-return]

    def _takes(self, wait: Optional[float]) -> Optional[Hold]:
        hold: Optional[Hold] = self._locks._acquire(self.key, self._options, wait)
        return hold

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
        """Returns a hold of them all, or None if they were not all free in time."""
        return gets(self._takes, self.wait if wait is UNSET else seconds(wait))  # type: ignore[no-any-return]

    def __enter__(self) -> Holds:
        return self._entering()  # type: ignore[no-any-return]

    def _takes(self, wait: Optional[float]) -> Optional[Holds]:
        holds = self._locks._acquire_all(self._parts, self._options, wait)
        return None if holds is None else Holds(self.keys, holds)


class AnyLock(Entering, AnyBase):
    """The write lock of one of many keys: `hold.key` names it. Made by `Locks.any`; may be shared by threads."""

    @returning
    def acquire(self, wait: Optional[float] = UNSET) -> Optional[Hold]:
        """Returns a hold of one of them, or None if none was free in time."""
        return gets(self._takes, self.wait if wait is UNSET else seconds(wait))  # type: ignore[no-any-return]

    def __enter__(self) -> Hold:
        return self._entering()  # type: ignore[no-any-return]

    def _takes(self, wait: Optional[float]) -> Optional[Hold]:
        return run(self._locks._acquiring_any(self.pool, self.keys, self._options, wait, who()))  # type: ignore[no-any-return]


def _nothing(_: Any) -> None:
    pass


class Observer(ObserverBase):
    """Yields the current leader, and then each new one: a Leader, or None while there is none."""

    def __init__(self, io: Any, key: str):
        super().__init__(io, key)
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

    def close(self) -> None:
        whole(None, super().close)

    close.__doc__ = ObserverBase.close.__doc__

    def __enter__(self) -> "Observer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Election(ElectionBase):
    """An election: the leader holds the lock, in a session. Made by `Locks.election`."""

    @returning
    def campaign(self, wait: Optional[float] = None) -> Optional[Hold]:
        """Waits to lead. Returns a hold, or None if it does not lead in time.

        If its connection ends, `held` is false at once. The hold is lost when the server says so; if the server
        cannot be reached, when the lease ends by this machine's clock.
        """
        return gets(self._locks._acquire, self.key, self._options(), seconds(wait), None, True)  # type: ignore[no-any-return]

    def leader(self) -> Optional[Leader]:
        """The current leader."""
        return whole(_nothing, run, leader(self._locks.io, self.key))  # type: ignore[no-any-return]

    def observe(self) -> Observer:
        """Observes the leader: the current one, and each new one."""
        return Observer(self._locks.io, self.key)
