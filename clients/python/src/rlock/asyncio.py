"""Locks on a Redis or Valkey server with the RLOCK module, for the asyncio client of redis-py.

    import redis.asyncio, rlock.asyncio

    client = redis.asyncio.Redis()
    async with rlock.asyncio.Lock(client, "order:42", wait=10) as hold:
        await store(..., hold.token)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import weakref
from typing import Any, Callable, Coroutine, Iterable, Optional, TypeVar, Union, Unpack

import redis.asyncio

from . import _core as core
from ._aio import IO, run
from ._api import ATTRIBUTE, UNSET, HoldBase, LockBase, LocksBase, keeps, left
from ._core import MOMENT, Options, Seat, Space, Spaces, Tenure, endless, now, seconds
from ._drive import HoldRenewal, Steps, pairs, unreleased
from ._errors import (
    Broken, Closed, Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, OtherLoop, Refused, TooMany,
    Unavailable,
)
from ._links import Route
from ._machine.words import FOREVER
from ._once import IfItFails, Turn
from ._several import (
    AnyBase, ElectionBase, HoldsBase, Key, Leader, ObserverBase, Part, SeveralBase, TaskWaits, GroupTenure, Wishes, counts, leader, limit, own_level, read,
    tenures, wished,
)
from ._telemetry import LAST, Counts, Held, Listener, Telemetry, Waited

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


class Hold(HoldBase):
    """The result of one acquisition: one level of a lock. Any task may release it, once."""

    __slots__ = ()

    @property
    def lost(self) -> asyncio.Event:
        """Set when the hold is lost, at its deadline at the latest."""
        return self._signal(asyncio.Event)  # type: ignore[no-any-return]

    async def release(self) -> None:
        """Releases one level. Raises LockLost if the hold ended before, and Unavailable if the outcome is unknown after
        the `patience`; then it is released later.
        """
        self._grip.is_released_by(_task())
        await self._release()

    async def _release(self) -> None:
        self._grip.once()
        try:
            await self._locks._release(self._tenure.seat, self._tenure)
        finally:
            self._grip.forget()
            if self._grip.permit is not None:
                await run(self._locks._permit_back(self._grip.permit))

    async def extend(self, lease: float) -> None:
        """Makes the hold last at least `lease` seconds from now; never shortens it. Raises LockLost if it has ended."""
        self._extends()
        await self._locks._extend(self._tenure, lease)

    async def __aenter__(self) -> "Hold":
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        await releases(self.release, error, self.key)


def _task() -> Any:
    """The current task, if there is one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def releases(release: Callable[[], Any], error: Optional[BaseException], name: str) -> None:
    """At the end of an `async with`, perhaps because of an exception, which is kept even if it is a cancellation."""
    try:
        await release()
    except LockError as problem:
        if error is None:
            raise
        keeps(error, problem, name)


class Locks(LocksBase):
    """The locks of one client in one loop, and its settings.

    A client has one `Locks`, which the first `Lock(client, …)` creates. Create it yourself before that to choose
    `patience` (for how many seconds a request that does not wait is repeated while connections break or a failover is in
    progress) or `outage` (after how many seconds without a server a wait gives up; None: it waits until its own time is
    up).
    """

    _hold, _mutex, _mutexes, _spaces = Hold, asyncio.Lock, TaskWaits, _spaces

    def __init__(self, client: Client, *, patience: float = 3.0, listener: Optional[Listener] = None, outage: Optional[float] = None):
        super().__init__(client, IO(Route(client, is_async=True), _spaces, Telemetry(listener), endless(outage, "outage")), patience)
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        _all.add(self)

    @classmethod
    def of(cls, client: Client) -> "Locks":
        if isinstance(client, Locks):
            return client
        if not any(kind.__module__.startswith("redis.asyncio") for kind in type(client).__mro__):
            raise TypeError("that is a blocking client: use rlock, without asyncio")
        return vars(client).get(ATTRIBUTE) or cls(client)

    def owner(self, task: Any = None) -> str:
        """The owner name of this task, the same for all of its locks."""
        task = task or asyncio.current_task()
        name = _names.get(task)
        if name is None:
            name = _names[task] = core.NAMES.new()
        return name + (self.io.space.suffix if self.io.space else "")

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
        """Several locks, acquired in one step: keys, `read(key)`, or `limit(key, most)`. The options are those of `Lock`."""
        return AllLocks(self, keys, options)

    def any(self, pool: Union[str, bytes], keys: Iterable[Union[str, bytes]], **options: Unpack[Wishes]) -> "AnyLock":
        """One of many: the write lock of the first key that is free. Callers wait in line for a permit of the key `pool`."""
        return AnyLock(self, pool, keys, options)

    def election(self, key: Union[str, bytes], *, name: Optional[str] = None, lease: float = 10.0) -> "Election":
        """An election. `name` is what followers see, for example an address; `lease` is how long a leader may be
        silent."""
        return Election(self, key, name, lease)

    async def once(
        self, key: Union[str, bytes], every: float, body: Callable[[Hold], Coroutine[Any, Any, Any]], *,
        if_it_fails: IfItFails = "keep", wait: Optional[float] = 0, lease: float = 30.0, acks: Optional[int] = None,
    ) -> bool:
        """Awaits `body(hold)` unless a run began in the last `every` seconds, on any machine. Returns whether it did:
        see `rlock.Locks.once`."""
        turn = Turn(every, body, True, if_it_fails, lease, acks)
        hold = await Lock(self, key, wait=wait, **turn.options).acquire()
        if hold is None:
            return False
        turn.begins()
        try:
            await body(hold)
        except BaseException as error:
            await releases(functools.partial(self._ends, turn, hold, True), error, hold.key)
            raise
        await self._ends(turn, hold, False)
        return True

    async def _ends(self, turn: Turn, hold: Hold, has_failed: bool) -> None:
        await asyncio.shield(self.io.background(run(turn.ends(self, hold, has_failed))))

    async def check(self, key: Union[str, bytes]) -> None:
        """Acquires the lock of `key`, waits a moment for it as another owner, and releases it. Raises the error, if
        any: see `rlock.Locks.check`."""
        lock = Lock(self, key, reentrant=False)
        first = await lock.acquire(wait=0)
        try:
            try:
                second = await lock.acquire(wait=MOMENT)
            except Unavailable:  # a program that starts may be slower than a moment
                second = await lock.acquire(wait=self.patience)
            if second is not None:
                await second.release()
        finally:
            if first is not None:
                await first.release()

    async def drain(self, timeout: Optional[float]) -> list[str]:
        """Acquires nothing from now on, ends what waits, and waits for the release of what is held; then closes: see
        `rlock.Locks.drain`."""
        self._in_loop()
        left = await run(self._draining(seconds(timeout, "timeout")))
        await self.aclose()
        return left  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        """Ends the waits with Closed, and closes the connections. Holds are no longer renewed, and those of sessions
        end now."""
        self._in_loop()
        await self.io.close()
        for tenure in tenures(self.io):
            if tenure.options.session:
                self._lost(tenure)
            elif tenure.state == "held":
                self._tell(tenure, "close")
        told = self.io.telemetry.told()
        if not told.is_set():
            await asyncio.to_thread(told.wait, LAST)

    def counts(self) -> Counts:
        """What is held and waited for through this object now, and how much was lost."""
        return counts(self.io)

    async def _acquire(self, key: str, options: Options, wait: Optional[float], task: Any, is_observed: bool = False) -> Optional[Hold]:
        self._in_loop()
        return await run(self._acquiring(key, options, wait, task, is_observed))  # type: ignore[no-any-return]

    async def _acquire_all(self, parts: list[Part], options: Options, wait: Optional[float], task: Any) -> Optional[list[Hold]]:
        self._in_loop()
        return await run(self._acquiring_all(parts, options, wait, task))  # type: ignore[no-any-return]

    @staticmethod
    async def _seated(seat: Any, patience: float) -> bool:
        try:
            # A free mutex may be promised to another task already.
            async with asyncio.timeout(None if patience == FOREVER else patience):
                return await seat.mutex.acquire()  # type: ignore[no-any-return]
        except TimeoutError:
            return False

    def _begin(self, steps: Steps) -> None:
        """Begins work for a hold, in a task."""
        with contextlib.suppress(RuntimeError):  # outside of the loop; renewals notice a loss as well
            asyncio.get_running_loop()
            self.io.background(run(steps))

    def _added(self, tenure: Tenure) -> None:
        self._watch(tenure, tenure.link)
        self._wake_at(tenure, tenure.due)

    def _renews(self, tenure: Tenure, is_so: Callable[[], bool]) -> None:
        if is_so():
            tenure.wakes.cancel()
            self._wake_at(tenure, tenure.due)
            if tenure.is_doubted:
                self._tell(tenure, "untied")

    def _wake_at(self, tenure: Tenure, at: float) -> None:
        tenure.wakes = asyncio.get_running_loop().call_later(max(0.0, at / 1000 - now()), self._wake, tenure)

    def _wake(self, tenure: Tenure) -> None:
        if tenure.is_orphaned:
            core.log.warning("%s: nobody can release it anymore, because %s has ended", tenure.seat.key, tenure.seat.owner)
            self._lost(tenure)
        else:
            self._tell(tenure, "time" if tenure.renewal else "call")

    def _tell(self, tenure: Tenure, *told: Any) -> None:
        """Passes an input to the hold's machine; from now on, the hold is looked after."""
        if tenure.renewal is None:
            tenure.renewal = _ByTasks(self, tenure)
            if tenure.state == "releasing":
                tenure.renewal.tell("releasing")
            if told == ("call",):  # with which it has begun
                return
        tenure.renewal.tell(*told)

    def _watch(self, tenure: Tenure, link: Any) -> None:
        """For a session: reports the end of its connection at once."""

        async def watch() -> None:
            while link.is_open:
                try:
                    await self.io.read(link, 3600.0)
                except (Broken, Refused):
                    continue
            if tenure.state == "held" and tenure.link is link:
                tenure.link = None
                self._tell(tenure, "untied")

        tenure.link = link
        if link is not None:
            link.watched = asyncio.ensure_future(watch())

    def _lost(self, tenure: Tenure) -> None:
        if tenure.renewal is not None:
            tenure.renewal.tell("gone")
        self._call(tenure.lose())
        self._forget(tenure)

    def _call(self, calls: list[Callable[[], Any]]) -> None:
        for call in calls:
            try:
                call()
            except BaseException as error:  # SystemExit too ends nothing here
                asyncio.get_running_loop().call_exception_handler({"message": "on_lost", "exception": error})

    def _forget(self, tenure: Tenure) -> None:
        if tenure.renewal is not None:
            tenure.renewal.tell("released")
        tenure.wakes.cancel()
        if tenure.link is not None:
            self.io.drop(tenure.link)
            tenure.link = None

    async def _release(self, seat: Seat, tenure: Tenure) -> None:
        self._in_loop()
        # A task that is canceled while it releases has released nevertheless.
        await asyncio.shield(self.io.background(self._release_in_time(seat, tenure)))

    async def _release_in_time(self, seat: Seat, tenure: Tenure) -> None:
        self._known.use(seat)
        by = now() + self.patience
        try:
            async with asyncio.timeout(self.patience):
                await seat.mutex.acquire()
        except TimeoutError:
            # The level counts as released: nobody else would release it.
            self.io.background(self._release_later(seat, tenure))
            raise unreleased(tenure) from None
        await run(self._releasing(seat, tenure, by - now()))

    async def _release_later(self, seat: Seat, tenure: Tenure) -> None:
        await seat.mutex.acquire()
        with contextlib.suppress(LockError):
            await run(self._releasing(seat, tenure, self.patience))

    def _ended(self, seat: Seat, tenure: Tenure, is_released: bool = False) -> None:
        if isinstance(tenure, GroupTenure):
            self._call(tenure.ends())
        if seat.tenure is tenure:
            seat.tenure = None
        tenure.ended()
        self._forget(tenure)

    async def _give_back(self, holds: list[Hold]) -> None:
        """A task that is canceled while it releases has released all of them nevertheless."""

        async def each() -> None:
            problem: Optional[LockError] = None
            for hold in reversed(holds):
                try:
                    await hold._release()
                except LockError as error:
                    problem = error
            if problem is not None:
                raise problem

        await asyncio.shield(self.io.background(each()))

    async def _extend(self, tenure: Tenure, lease: float) -> None:
        self._in_loop()
        await run(self._extending(tenure, lease))

    async def _ask(self, key: str, words: Callable[[], list[Any]]) -> Any:
        self._in_loop()
        return await run(self._asking(key, words))


class _ByTasks(HoldRenewal):
    """Work that takes time is done by tasks."""

    def __init__(self, locks: Locks, tenure: Tenure):
        self.locks = locks
        super().__init__(tenure)

    def wake_at(self, at: float) -> None:
        self.tenure.wakes.cancel()
        self.locks._wake_at(self.tenure, at)

    def begin(self, steps: Steps) -> None:
        async def work() -> None:
            self.tell(*await run(steps))

        self.locks.io.background(work())

    def watch(self) -> None:
        self.locks._watch(self.tenure, self.tenure.link)

    def lost(self) -> None:
        self.tenure.renewal = None
        self.locks._lost(self.tenure)


class Lock(LockBase[Client]):
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
        task = None if self._options.owner else asyncio.current_task()
        acquiring: Coroutine[Any, Any, Optional[Hold]]
        acquiring = self._locks._acquire(self.key, self._options, self.wait if wait is UNSET else seconds(wait), task)
        return acquiring

    async def release(self) -> None:
        """Releases one level of what this task (or `owner`) holds."""
        tenure = own_level(self._own_tenure())
        await self._locks._release(tenure.seat, tenure)

    async def locked(self) -> bool:
        """Asks the server whether anybody holds it, in any mode."""
        return bool(pairs(await self._locks._ask(self.key, lambda: ["RLOCK.INFO", self.key, "WAITERS", 0]))["mode"] != "free")

    async def owned(self) -> bool:
        """Asks the server whether this task (or `owner`) holds it; `held` answers without asking."""

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
        await left(self._entered, asyncio.current_task(), self.key).leave(error)

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
        except (LockError, asyncio.CancelledError) as problem:
            if not self.has_cancelled or not isinstance(problem, (LockLost, asyncio.CancelledError)):
                if error is None or not isinstance(problem, LockError):
                    raise
                return keeps(error, problem, self.hold.key)
            # Only this package's cancellation becomes a LockLost; one from outside is kept.
            is_from_outside = self.task.uncancel() > self.cancels
            if error is not None and not isinstance(error, asyncio.CancelledError):
                if is_from_outside and isinstance(problem, asyncio.CancelledError):
                    raise
                return keeps(error, problem, self.hold.key)
            if isinstance(problem, LockLost):
                if is_from_outside:
                    return
                raise
            if is_from_outside:
                raise
            # The package's cancellation comes only now, because the task itself has found the loss.
            raise LockLost(f"{self.hold.key} is no longer held by {self.hold.owner}") from error


class ReadLock(Lock):
    """A read lock: any number of readers at a time, and no writer."""

    mode = "READ"


class Permit(ReadLock):
    """One of `limit` permits: at most `limit` holders at a time. The other options are those of `Lock`."""

    def __init__(self, client: Client, key: Union[str, bytes], limit: int, *, cancel: bool = False, **options: Unpack[Wishes]):
        super().__init__(client, key, limit=limit, cancel=cancel, **wished(options))


class Holds(HoldsBase):
    """The hold of several locks. Any task may release them, once."""

    @property
    def lost(self) -> asyncio.Event:
        """Set when one of them is lost, at its deadline at the latest."""
        if self._lost is None:
            self._lost = asyncio.Event()
            self.on_lost(self._lost.set)
        return self._lost  # type: ignore[no-any-return]

    async def release(self) -> None:
        """Releases them all. Raises LockLost if one of them ended before."""
        self._holds[0]._grip.is_released_by(asyncio.current_task())
        await self._holds[0]._locks._give_back(self._holds)

    async def extend(self, lease: float) -> None:
        """Makes them last at least `lease` seconds from now. Raises LockLost if one of them has ended."""
        for hold in self._holds:
            await hold.extend(lease)

    async def __aenter__(self) -> "Holds":
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        await releases(self.release, error, ", ".join(self.keys))


class AllLocks(SeveralBase):
    """Several locks, acquired in one step: all of them, or none. May be shared by tasks."""

    def acquire(self, wait: Optional[float] = UNSET) -> Coroutine[Any, Any, Optional[Holds]]:
        """Returns a hold of them all, or None if they were not all free in time. The owner is the task that calls this."""
        task = None if self._options.owner else asyncio.current_task()
        return self._acquired(self.wait if wait is UNSET else seconds(wait), task)

    async def _acquired(self, wait: Optional[float], task: Any) -> Optional[Holds]:
        holds: Optional[list[Hold]] = await self._locks._acquire_all(self._parts, self._options, wait, task)
        return None if holds is None else Holds(self.keys, holds)

    async def __aenter__(self) -> Holds:
        hold = await self.acquire()
        if hold is None:
            raise NotAcquired(f"{', '.join(self.keys)} were not free within {self.wait} s")
        self._entered.setdefault(asyncio.current_task(), []).append(hold)
        return hold

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        hold = left(self._entered, asyncio.current_task(), ", ".join(self.keys))
        await releases(hold.release, error, ", ".join(self.keys))


class AnyLock(AnyBase):
    """The write lock of one of many keys: `hold.key` names it. May be shared by tasks."""

    async def acquire(self, wait: Optional[float] = UNSET) -> Optional[Hold]:
        """Returns a hold of one of them, or None if none was free in time. If canceled, it leaves nothing behind."""
        self._locks._in_loop()
        for_ = self.wait if wait is UNSET else seconds(wait)
        return await run(self._locks._acquiring_any(self.pool, self.keys, self._options, for_, None))  # type: ignore[no-any-return]

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        if hold is None:
            raise NotAcquired(f"none of {', '.join(self.keys)} was free within {self.wait} s")
        self._entered.setdefault(asyncio.current_task(), []).append(hold)
        return hold

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        hold = left(self._entered, asyncio.current_task(), self.pool)
        await releases(hold.release, error, hold.key)


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
    """An election: the leader holds the lock, in a session."""

    async def campaign(self, wait: Optional[float] = None) -> Optional[Hold]:
        """Waits to lead. Returns a hold, or None if it does not lead in time. `rlock.Election` explains when the hold
        is lost."""
        return await self._locks._acquire(self.key, self._options(), seconds(wait), None, True)  # type: ignore[no-any-return]

    async def leader(self) -> Optional[Leader]:
        """The current leader."""
        return await run(leader(self._locks.io, self.key))  # type: ignore[no-any-return]

    def observe(self) -> Observer:
        """Observes the leader: the current one, and each new one."""
        return Observer(self._locks.io, self.key)
