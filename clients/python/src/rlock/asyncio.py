"""Locks of a Redis or Valkey server with the RLOCK module, for the asyncio client of redis-py.

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
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Optional, TypeVar, Union

import redis.asyncio

from . import _core as core
from ._aio import IO, run
from ._api import ATTRIBUTE, UNSET, Grip, HoldBase, LockBase, keeps, left, seconds
from ._core import Options, Seat, Space, Spaces, Tenure, ms, now
from ._drive import Care, Job, Steps, after, attempt, extend, meets, pairs, question, release, settle, unreleased
from ._errors import (
    Broken, Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, OtherLoop, Refused, TooMany,
    Unavailable,
)
from ._links import Route
from ._machine import FOREVER, LOST, NIL, RELEASED, Words
from ._several import Group, Key, Leader, Nothing, Part, TaskWaits, Whole, counts, limit, merged, own_level, read, rest
from ._telemetry import LAST, Counts, Held, Listener, Telemetry, Waited, Waiting

if TYPE_CHECKING:
    from ._aio_several import AllLocks, Election

__all__ = [
    "Counts", "Deadlock", "Held", "Hold", "Leader", "Listener", "Lock", "LockError", "LockLost", "Locks", "NoAcks", "NoPermission", "NoReplicas",
    "NotAcquired", "NotHeld", "OtherLoop", "Permit", "ReadLock", "Refused", "TooMany", "Unavailable", "Waited", "limit", "read",
]

F = TypeVar("F", bound=Callable[..., Any])
Client = Union[redis.asyncio.Redis, redis.asyncio.RedisCluster, "Locks"]

_spaces = Spaces()
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()
_names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    """A child is somebody else: it holds nothing, and its tasks have other names. It needs a loop of its own anyway."""
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
        return self._tenure.signal(asyncio.Event)  # type: ignore[no-any-return]

    async def release(self) -> None:
        """Releases one level. Raises LockLost if the hold ended before, and Unavailable if that is not known within the
        `patience`; then it is released later.
        """
        self._grip.is_released_by(_task())
        await self._release()

    async def _release(self) -> None:
        self._grip.once()
        try:
            await self._locks._release(self._tenure.seat, self._tenure)
        finally:
            self._grip.forget()

    async def extend(self, lease: float) -> None:
        """The hold lasts `lease` seconds from now, or as long as it would have lasted if that is longer. Raises LockLost if it ended."""
        self._extends()
        await self._locks._extend(self._tenure, lease)

    async def __aenter__(self) -> "Hold":
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        await releases(self.release, error, self.key)


def _task() -> Any:
    """The current one, if there is one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def releases(release: Callable[[], Any], error: Optional[BaseException], name: str) -> None:
    """At the end of an `async with`, which an error may have ended: that stays, also if it is a cancellation."""
    try:
        await release()
    except LockError as problem:
        if error is None:
            raise
        keeps(error, problem, name)


class Locks:
    """The locks of one client in one loop: its settings, and a set of `waiting` connections for those who wait.

    A client has one `Locks`, made when the first `Lock(client, …)` is; make it yourself, first, to choose `waiting`
    and `patience` (seconds for which a request that does not wait is repeated while connections break or a failover
    is under way).
    """

    def __init__(self, client: Client, *, waiting: int = 8, patience: float = 3.0, listener: Optional[Listener] = None):
        self.patience, self.warns_of_others = patience, True
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self.io = IO(Route(client, is_async=True), waiting, _spaces, Telemetry(listener))
        _all.add(self)
        vars(client)[ATTRIBUTE] = self

    @classmethod
    def of(cls, client: Client) -> "Locks":
        if isinstance(client, Locks):
            return client
        if not any(kind.__module__.startswith("redis.asyncio") for kind in type(client).__mro__):
            raise TypeError("that is a blocking client: use rlock, without asyncio")
        return vars(client).get(ATTRIBUTE) or cls(client)

    def owner(self, task: Any = None) -> str:
        """The name of this task, the same for all of its locks."""
        task = task or asyncio.current_task()
        name = _names.get(task)
        if name is None:
            name = _names[task] = core.NAMES.new()
        return name + (self.io.space.suffix if self.io.space else "")

    def _in_loop(self) -> None:
        """Before anything is sent. Nothing runs any more that belongs to a loop that is closed."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise OtherLoop("this client is in use in another event loop, which is still open: make a client for each loop")
            self._left_behind()
        self._loop = loop

    def _left_behind(self) -> None:
        """Its holds are renewed no more, and its connections have nobody who reads them."""
        space = self.io.space
        for where, seat in list(space.seats.items()) if space else []:
            if seat.tenure is not None and seat.tenure.io is self.io:
                seat.tenure.root.state = seat.tenure.state = "lost"
                del space.seats[where]  # type: ignore[union-attr]
        self.io.left_behind()

    def _owner(self, options: Options, task: Any) -> str:
        """Of an acquisition."""
        if options.reentrant:
            return options.owner or self.owner(task)
        return core.NAMES.new() + self._known.suffix

    def all(
        self,
        *keys: Key,
        wait: Optional[float] = None,
        lease: float = 30.0,
        owner: Optional[str] = None,
        maxqueue: Optional[int] = None,
        acks: Optional[int] = None,
        session: bool = False,
        renew: bool = True,
        reentrant: bool = True,
    ) -> "AllLocks":
        """Several locks, acquired in one step: keys, `read(key)`, or `limit(key, most)`. The options are those of `Lock`."""
        from ._aio_several import AllLocks

        options = Options("WRITE", lease, owner, None, maxqueue, acks, session, False, renew, reentrant)
        return AllLocks(self, merged(keys, self.io.route.is_cluster), seconds(wait), options)

    def election(self, key: Union[str, bytes], *, name: Optional[str] = None, lease: float = 10.0) -> "Election":
        """Who leads. `name` is what followers are told, for example an address; `lease` is how long a leader may be silent."""
        from ._aio_several import Election

        return Election(self, key, name, lease)

    @property
    def space(self) -> Optional[Space]:
        return self.io.space

    @property
    def _known(self) -> Space:
        assert self.io.space is not None
        return self.io.space

    async def aclose(self) -> None:
        """Ends what waits, with Unavailable, and the connections. Holds are renewed no more; those of sessions end now."""
        self._in_loop()
        await self.io.close()
        seats = list(self.io.space.seats.values()) if self.io.space else []
        for tenure in {seat.tenure.root for seat in seats if seat.tenure is not None and seat.tenure.io is self.io}:
            if tenure.options.session:
                self._lose(tenure)
            else:
                self._tell(tenure, "close")
        told = self.io.telemetry.told()
        if not told.is_set():
            await asyncio.to_thread(told.wait, LAST)

    def counts(self) -> Counts:
        """What is held and waited for through this object now, and what it has lost."""
        return counts(self.io)

    async def _settled(self, key: str, wait: Optional[float]) -> Space:
        self._in_loop()
        if self.io.space is None:
            space = _spaces.of(await run(settle(self.io, key, wait, self.patience)))
            self.io.space = self.io.space or space
        return self.io.space

    async def _met(self, key: str, wait: Optional[float]) -> Space:
        """For an acquisition, which has begun to wait."""
        with Waiting(self.io.telemetry, key):
            return await self._settled(key, wait)

    async def _acquire(self, key: str, options: Options, wait: Optional[float], task: Any) -> Optional[Hold]:
        self._in_loop()
        start = ms()
        space = self.io.space or await self._met(key, wait)
        seat = space.seat(key, self._owner(options, task), options.kind, asyncio.Lock)
        return await self._take(seat, options, start, wait, task)

    async def _acquire_all(self, parts: list[Part], options: Options, wait: Optional[float], task: Any) -> Optional[list[Hold]]:
        """A hold of all that the owner has not, and one of each that it has."""
        self._in_loop()
        start = ms()
        space = self.io.space or await self._met(parts[0].key, wait)
        group = Group(space, parts, self._owner(options, task), asyncio.Lock, TaskWaits)
        holds: list[Hold] = []
        try:
            if (hold := await self._take(group, options, start, wait, task)) is None:
                return None
            holds.append(hold)
        except Nothing:
            pass
        try:
            for each in group.held:
                again = await self._acquire(each.key, group.again(each, options), 0, task)
                if again is None:
                    raise LockLost(f"{each.key} was lost by {group.owner}")
                holds.append(again)
        except BaseException:
            try:
                await self._release_all(holds)
            except LockError:
                pass
            raise
        return holds

    async def _take(self, seat: Any, options: Options, start: int, wait: Optional[float], task: Any) -> Optional[Hold]:
        space, owner, is_mine, job = self._known, seat.owner, False, None
        waiting = Waiting(self.io.telemetry, seat.name)
        try:
            patience, is_unavailable = seat.come(start, wait, self.patience)
            try:
                # A mutex that is free may be promised to another task.
                async with asyncio.timeout(None if patience == FOREVER else patience):
                    is_mine = await seat.mutex.acquire()
            except TimeoutError:
                if is_unavailable:
                    raise seat.unavailable from None
                waiting.end(False)
                return None
            tenure = seat.tenure
            if tenure is not None and not tenure.held:
                raise LockLost(f"{tenure.seat.key} was lost by {owner}: release it first")
            job = attempt(self.io, seat, options, start, wait, self.patience)
            told = await run(job.steps(("call",)))
            if wait != 0:
                meets(job, told)
            if told == NIL:
                waiting.end(False)
                return None
            if told[0] != "granted":
                raise job.error(told)
            hold = self._granted(job, told, task)
            waiting.end(True)
            return hold
        except BaseException as error:
            if isinstance(error, LockLost) and seat.tenure is not None:
                self._lose(seat.tenure.root)
            if job is not None:
                job.cancel()
            if isinstance(error, Nothing):
                waiting.goes_on()
            else:
                waiting.end(False)
            raise
        finally:
            if not is_mine:
                space.leave(seat)
            elif job is None:
                space.vacate(seat)
            else:
                await self.io.leave(job)

    def _granted(self, job: Job, told: Words, task: Any) -> Hold:
        seat, options = job.seat, job.options
        tenure = seat.tenure
        if tenure is None:
            kind = Whole if isinstance(seat, Group) else Tenure
            tenure = seat.tenure = kind(seat, options, told[1], told[2], self.io)
            link, job.link = job.link, None
            self._watch(tenure, link)
            self._wake_at(tenure, tenure.due)
        taker = task if options.reentrant and not options.owner else None
        hold = Hold(Grip(self, tenure, taker))
        if tenure.handed(hold, told, options, taker):
            tenure.wakes.cancel()
            self._wake_at(tenure, tenure.due)
            if tenure.is_doubted:
                self._tell(tenure, "untied")
        return hold

    def _wake_at(self, tenure: Tenure, at: float) -> None:
        tenure.wakes = asyncio.get_running_loop().call_later(max(0.0, at / 1000 - now()), self._wake, tenure)

    def _wake(self, tenure: Tenure) -> None:
        if tenure.is_orphaned:
            core.log.warning("%s: nobody can release it anymore, because %s has ended", tenure.seat.key, tenure.seat.owner)
            self._lose(tenure)
        else:
            self._tell(tenure, "time" if tenure.care else "call")

    def _tell(self, tenure: Tenure, *told: Any) -> None:
        """Looks after it from now on."""
        if tenure.care is None:
            tenure.care = _ByTasks(self, tenure)
            if tenure.state == "releasing":
                tenure.care.tell("releasing")
            if told == ("call",):  # with which it has begun
                return
        tenure.care.tell(*told)

    def _watch(self, tenure: Tenure, link: Any) -> None:
        """A session: the end of its connection is heard of at once."""

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
            link.watcher = asyncio.ensure_future(watch())

    def _lose(self, tenure: Tenure) -> None:
        if tenure.care is not None:
            tenure.care.tell("gone")
        self._call(tenure.lose())
        self._forget(tenure)

    def _call(self, calls: list[Callable[[], Any]]) -> None:
        for call in calls:
            try:
                call()
            except BaseException as error:  # SystemExit too ends nothing here
                asyncio.get_running_loop().call_exception_handler({"message": "on_lost", "exception": error})

    def _forget(self, tenure: Tenure) -> None:
        if tenure.care is not None:
            tenure.care.tell("released")
        tenure.wakes.cancel()
        if tenure.link is not None:
            self.io.drop(tenure.link)
            tenure.link = None

    async def _release(self, seat: Seat, tenure: Tenure) -> None:
        self._in_loop()
        # A task that is cancelled while it releases has released all the same.
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
        await self._released(seat, tenure, by - now())

    async def _release_later(self, seat: Seat, tenure: Tenure) -> None:
        await seat.mutex.acquire()
        with contextlib.suppress(LockError):
            await self._released(seat, tenure, self.patience)

    async def _released(self, seat: Seat, tenure: Tenure, patience: float) -> None:
        job, told = release(self.io, tenure, patience), None
        if tenure.depth == 1:
            tenure.releasing()
        try:
            told = await run(job.steps(("call",)))
            if told == LOST:
                self._lose(tenure.root)
                if isinstance(seat, Group):
                    await run(rest(seat, tenure))
        except BaseException:
            job.cancel()
            raise
        finally:
            tenure.depth -= 1
            if tenure.depth == 0:
                if isinstance(tenure, Whole):
                    self._call(tenure.ends())
                if seat.tenure is tenure:
                    seat.tenure = None
                tenure.ended()
                self._forget(tenure)
            await self.io.leave(after(job, tenure, told))
        if told != RELEASED:
            raise job.error(told, "not known to be released: ")

    async def _release_all(self, holds: list[Hold]) -> None:
        """A task that is cancelled while it releases has released them all."""

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
        try:
            await run(extend(self.io, tenure, lease, self.patience))
        except LockLost:
            self._lose(tenure.root)
            raise

    async def _ask(self, key: str, words: Callable[[], list[Any]]) -> Any:
        """Asks when the server is known, which is part of the names of owners."""
        await self._settled(key, 0)
        return await run(question(self.io, key, words()))


class _ByTasks(Care):
    """What takes time is done by tasks."""

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
        self.tenure.care = None
        self.locks._lose(self.tenure)


class Lock(LockBase):
    """A write lock: one holder at a time. May be shared by tasks.

    `client` is a `redis.asyncio.Redis` (also one of Sentinel's `master_for`), a `RedisCluster`, or a `Locks`.

    Options, all by name:

    - `wait`: seconds, None = forever, 0 = do not wait
    - `lease`: seconds that the lock outlives a process that dies; it is renewed every third of it, with `renew=False` not
    - `owner`: who holds; else the task. An owner that holds may acquire again, and releases as often. With `owner`, the
      hold outlives its task; use the name in no other process or loop, and not in `rlock` as well
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
        reentrant: bool = True,
    ):
        super().__init__(Locks.of(client), key, wait, lease, owner, maxqueue, acks, session, upgrade, renew, limit, reentrant)
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
        tenure = own_level(self._own_tenure())
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
            # Only our own cancellation becomes a LockLost; one from outside stays what it is.
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
            # Ours comes as late as this when the task itself has found the loss.
            raise LockLost(f"{self.hold.key} is no longer held by {self.hold.owner}") from error


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
        reentrant: bool = True,
    ):
        super().__init__(
            client, key, wait=wait, lease=lease, owner=owner, maxqueue=maxqueue, acks=acks, session=session,
            renew=renew, limit=limit, cancel=cancel, reentrant=reentrant,
        )
