"""The public interface that the synchronous and the asyncio package share."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any, Callable, Generic, Optional, TypeVar, Union

from . import _core as core
from ._core import Options, Seat, Space, Tenure, key_name, log, ms, now, number, seconds
from ._drive import Job, Steps, after, attempt, extend, question, release, settle
from ._errors import Closed, LockError, LockLost, NotHeld
from ._machine.words import FIRST_PAUSE, FOREVER, GRANT, LONGEST_PAUSE, LOST, NIL, RELEASED, Words
from ._several import Group, NothingWanted, Part, GroupTenure, holding, observe, rest
from ._telemetry import Waiting

C = TypeVar("C")
UNSET: Any = object()
#: How often a drain looks whether anybody holds, in seconds.
LOOK = 0.01
#: The attribute of a client that has its `Locks`. Both refer to each other, so a table of them would keep every client
#: forever.
ATTRIBUTE = "_rlock_locks"


class Grip:
    """One level, which can be released only once: two threads may try."""

    __slots__ = ("locks", "tenure", "right", "calls", "taker", "permit")

    def __init__(self, locks: Any, tenure: Tenure, taker: Any = None):
        self.locks, self.tenure, self.right = locks, tenure, [None]
        self.taker = None if taker is None else weakref.ref(taker)  # the thread or task that it is for, if it is named after that
        self.calls: list[Callable[[], Any]] = []
        self.permit: Any = None  # the hold that ends with it: of one of many keys

    @property
    def is_released(self) -> bool:
        return not self.right or self.tenure.state == "released"

    def once(self) -> None:
        """Takes the permission to release it."""
        is_there = self.tenure.state != "released"
        try:
            self.right.pop()
        except IndexError:
            is_there = False
        if not is_there:
            raise NotHeld(f"{self.tenure.seat.key} was released before, or before this process was forked")

    def is_released_by(self, who: Any) -> None:
        taker = who if self.taker is None else self.taker()
        if taker is not who and self.locks.warns_of_others:
            self.locks.warns_of_others = False
            log.warning(
                "%s: released by another thread or task than the one that acquired it. That one is the owner, and it re-enters: "
                "for holds that change hands, use reentrant=False (this is logged once)", self.tenure.seat.name,
            )

    def forget(self) -> None:
        """It was released: later changes of the levels below do not concern it."""
        for call in self.calls:
            self.tenure.calls.remove(call)
        self.calls.clear()


class HoldBase:
    """The result of one acquisition: one level of a lock."""

    __slots__ = ("_grip", "__weakref__")

    def __init__(self, grip: Grip):
        self._grip = grip

    @property
    def _tenure(self) -> Tenure:
        return self._grip.tenure

    @property
    def _locks(self) -> Any:
        return self._grip.locks

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier hold."""
        return self._tenure.token

    @property
    def key(self) -> str:
        return self._tenure.seat.key

    @property
    def owner(self) -> str:
        return self._tenure.seat.owner

    @property
    def held(self) -> bool:
        """Whether the hold is certain: not released, not known to be lost, before its deadline, its session unbroken."""
        return bool(self._grip.right) and self._tenure.is_sure

    @property
    def left(self) -> float:
        """Seconds until the deadline, which counts from when the last request was sent; 0 if it is not held."""
        return max(0.0, (self._tenure.deadline - ms()) / 1000) if self.held else 0.0

    def __repr__(self) -> str:
        return f"<{self.key!r} held by {self.owner}, token {self.token}, {self.left:.1f} s left>"

    def on_lost(self, call: Callable[[], Any]) -> None:
        """Calls `call` once, when the hold is lost, on the package's thread or in the loop; at once if it is lost
        already. `call` must not block."""
        if not self._listens(call):
            call()

    def _listens(self, call: Callable[[], Any]) -> bool:
        tenure = self._tenure
        with tenure.io.space.lock:
            if tenure.state == "lost":
                return False
            self._grip.calls.append(call)
            tenure.calls.append(call)
        observe(self._locks, tenure)
        return True

    def _signal(self, kind: Callable[[], Any]) -> Any:
        observe(self._locks, self._tenure)
        return self._tenure.signal(kind)

    def check(self) -> None:
        """Raises LockLost unless the hold is certain. For a step that cannot be undone, let the resource check the
        token."""
        if not self.held:
            raise LockLost(f"{self.key} is no longer held by {self.owner}")

    def _extends(self) -> None:
        if not self._grip.right:
            raise NotHeld(f"{self.key} was released before: there is nothing to extend")


def left(entered: dict[Any, list[Any]], me: Any, name: str) -> Any:
    """The entry of the `with` that this thread or task leaves: its own newest one.

    A generator may be finalized by another thread than the one that entered. If several have entered, the entry
    could belong to one that is still inside.
    """
    if me not in entered:
        if len(entered) != 1:
            raise NotHeld(f"{name} was not entered by who leaves; `with lock.acquire():` may be left by anybody")
        (me,) = entered
    entries = entered[me]
    entry = entries.pop()
    if not entries:
        del entered[me]
    return entry


def forgotten(entered: dict[Any, list[Any]], entry: Any) -> None:
    """Removes an entry that has been left."""
    for me, entries in list(entered.items()):
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del entered[me]


def keeps(error: Optional[BaseException], problem: BaseException, name: str) -> None:
    """The exception that ends a `with` is kept: an error of the release becomes its context, and is logged."""
    log.warning("%s: %s: %s (the block has ended with %s)", name, type(problem).__name__, problem, type(error).__name__)
    if error is not None and error.__context__ is None and problem is not error:
        error.__context__ = problem


class LocksBase:
    """What the `Locks` of both packages do. Work that takes time is done by steps (see _drive.py)."""

    def __init__(self, client: Any, io: Any, patience: float):
        self.io, self.patience, self.warns_of_others = io, number(patience, "patience"), True
        vars(client)[ATTRIBUTE] = self

    @property
    def space(self) -> Optional[Space]:
        return self.io.space  # type: ignore[no-any-return]

    @property
    def _known(self) -> Space:
        space: Optional[Space] = self.io.space
        assert space is not None
        return space

    def _owner(self: Any, options: Options, me: Any) -> Any:
        """Of an acquisition."""
        if options.reentrant:
            return options.owner or self.owner(me)
        return core.NAMES.new() + self._known.suffix

    def _settled(self: Any, key: str, wait: Optional[float]) -> Steps:
        """Makes sure that the server's identity is known, which is part of owners' names."""
        if self.io.space is None:
            space = self._spaces.of((yield from settle(self.io, key, wait, self.patience)))
            self.io.space = self.io.space or space

    def _met(self: Any, key: str, wait: Optional[float]) -> Steps:
        """For an acquisition that has begun to wait."""
        if self.io.space is None:
            with Waiting(self.io.telemetry, key):
                yield from self._settled(key, wait)
        return self._known

    def _acquiring(self: Any, key: str, options: Options, wait: Optional[float], me: Any, is_observed: bool = False) -> Steps:
        """Acquires for that thread or task."""
        start = ms()
        space = self.io.space or (yield from self._met(key, wait))
        seat = space.seat(key, self._owner(options, me), options.kind, self._mutex)
        hold = yield from self._take(seat, options, start, wait, me)
        if is_observed and hold is not None:
            observe(self, hold._tenure)
        return hold

    def _acquiring_all(self: Any, parts: list[Part], options: Options, wait: Optional[float], me: Any) -> Steps:
        """One hold of all locks that the owner does not have yet, and one of each that it has."""
        start = ms()
        space = yield from self._met(parts[0].key, wait)
        group = Group(space, parts, self._owner(options, me), self._mutex, self._mutexes)
        holds: list[Any] = []
        try:
            if (hold := (yield from self._take(group, options, start, wait, me))) is None:
                return None
            holds.append(hold)
        except NothingWanted:
            pass
        try:
            for each in group.held:
                again = yield self._acquire(each.key, group.again(each, options), 0, me)
                if again is None:
                    raise LockLost(f"{each.key} was lost by {group.owner}")
                holds.append(again)
        except BaseException:
            try:
                yield self._give_back(holds)
            except LockError:
                pass
            raise
        return holds

    def _acquiring_any(self: Any, pool: str, keys: list[str], options: Options, wait: Optional[float], me: Any) -> Steps:
        """First a permit of the pool, for which callers wait in line, and then the first key that is free."""
        until = FOREVER if wait is None else ms() + math.ceil(wait * 1000)
        permit = yield from self._acquiring(pool, replace(options, mode="READ", limit=len(keys)), wait, me)
        if permit is None:
            return None
        pause = FIRST_PAUSE
        try:
            while True:
                for key in keys:
                    if (hold := (yield from self._acquiring(key, options, 0, me))) is not None:
                        hold._grip.permit = permit
                        return hold
                # All are taken, so somebody holds a lock without a permit: no event reports when that hold ends.
                if (left := until - ms()) <= 0:
                    break
                yield self.io.sleep(min(pause, left) / 1000)
                pause = min(2 * pause, LONGEST_PAUSE)
        except BaseException:
            yield from self._permit_back(permit)
            raise
        yield from self._permit_back(permit)
        return None

    def _permit_back(self: Any, permit: Any) -> Steps:
        try:
            yield self._give_back([permit])
        except LockError:
            pass

    def _take(self: Any, seat: Any, options: Options, start: int, wait: Optional[float], me: Any) -> Steps:
        space, is_mine, job, waiting = self._known, False, None, None
        try:
            waiting = Waiting(self.io.telemetry, seat.name)
            patience, is_unavailable = seat.come(start, wait, self.patience, self.io.outage)
            is_mine = yield self._seated(seat, patience)
            if not is_mine:
                if is_unavailable:
                    raise seat.unavailable
                waiting.end(False)
                return None
            tenure = seat.tenure
            if tenure is not None and not tenure.held:
                raise LockLost(f"{tenure.seat.key} was lost by {seat.owner}: release it first")
            if tenure is None and self.io.is_draining:
                raise Closed(f"{seat.name}: closed")
            job = attempt(self.io, seat, options, start, wait, self.patience)
            told = yield from job.steps(("call",))
            if told == NIL:
                waiting.end(False)
                return None
            if told[0] != "granted":
                raise job.error(told)
            hold = self._granted(job, told, me)
            waiting.end(True)
            return hold
        except BaseException as error:
            if isinstance(error, LockLost) and seat.tenure is not None:
                self._lost(seat.tenure.root)
            if job is not None:
                if job.machine.op == GRANT and seat.tenure is not None:  # interrupted just after it
                    seat.tenure.depth = job.depth - 1
                    self._ended(seat, seat.tenure)
                job.cancel()
            if waiting is not None and isinstance(error, NothingWanted):
                waiting.goes_on()
            elif waiting is not None:
                waiting.end(False)
            raise
        finally:
            if not is_mine:
                space.leave(seat)
            elif job is None or self.io.is_done(job):
                space.vacate(seat)
            else:
                yield self.io.leave(job)

    def _granted(self: Any, job: Job, told: Words, me: Any) -> Any:
        seat, options = job.seat, job.options
        tenure = seat.tenure
        if tenure is None:
            kind = GroupTenure if isinstance(seat, Group) else Tenure
            tenure = kind(seat, options, told[1], told[2], self.io)
            tenure.link = job.link
            seat.tenure = tenure
            self._added(tenure)
        taker = getattr(me, "thread", me) if options.reentrant and not options.owner else None
        hold = self._hold(Grip(self, tenure, taker))
        self._renews(tenure, lambda: tenure.handed(hold, told, options, taker))
        job.link = None
        return hold

    def _releasing(self: Any, seat: Seat, tenure: Tenure, patience: float) -> Steps:
        job, told = release(self.io, tenure, patience), None
        if tenure.depth == 1:
            tenure.releasing()
        try:
            told = yield from job.steps(("call",))
            if told == LOST:
                self._lost(tenure.root)
                if isinstance(seat, Group):
                    yield from rest(seat, tenure)
        except BaseException:
            job.cancel()
            raise
        finally:
            tenure.depth -= 1
            if tenure.depth == 0:
                self._ended(seat, tenure, told == RELEASED)
            if self.io.is_done(job := after(job, tenure, told)):
                self._known.vacate(seat)
            else:
                yield self.io.leave(job)
        if told != RELEASED:
            raise job.error(told, "not known to be released: ")

    def _draining(self: Any, timeout: Optional[float]) -> Steps:
        """Ends waits, and stays while anybody holds. Returns the keys that are held when the time is up."""
        until = FOREVER if timeout is None else now() + timeout
        self.io.stop()
        while now() < until and not self.io.is_closing and (self.io.jobs or holding(self.io)):
            yield self.io.sleep(min(LOOK, until - now()))
        left = holding(self.io)
        for tenure in left:
            self._lost(tenure)
        return sorted(key for tenure in left for key in getattr(tenure.seat, "parts", [tenure.seat.key]))

    def _extending(self: Any, tenure: Tenure, lease: float) -> Steps:
        try:
            yield from extend(self.io, tenure, lease, self.patience)
        except LockLost:
            self._lost(tenure.root)
            raise

    def _asking(self: Any, key: str, words: Callable[[], list[Any]]) -> Steps:
        yield from self._settled(key, 0)
        return (yield from question(self.io, key, words()))


class LockBase(Generic[C]):
    mode = "WRITE"
    _locks_of: Callable[[Any], Any]

    def __init__(
        self,
        client: C,
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
        reentrant: bool = True,
    ):
        self._locks = type(self)._locks_of(client)
        self._entered: dict[Any, list[Any]] = {}  # what `with` has acquired, of each thread or task
        self.key = key_name(key)
        self.wait = seconds(wait)
        mode = "READ" if limit is not None else self.mode
        self._options = Options(mode, lease, owner, limit, maxqueue, acks, session, upgrade, renew, reentrant)

    @property
    def _tenure(self) -> Optional[Tenure]:
        owner = self._options.owner or self._locks.owner()
        space = self._locks.space
        seat = space and space.seats.get((self.key, owner, self._options.kind))
        return seat.tenure if seat else None

    @property
    def held(self) -> bool:
        """Whether this thread or task (or `owner`) certainly holds it."""
        tenure = self._tenure
        return tenure is not None and tenure.is_sure

    def _own_tenure(self) -> Tenure:
        if not self._options.reentrant:
            raise NotHeld(f"{self.key}: each acquisition has an owner of its own (reentrant=False): release the hold")
        tenure = self._tenure
        if tenure is None:
            raise NotHeld(f"{self.key} is not held by {self._options.owner or self._locks.owner()}")
        return tenure
