"""The locks of one client: what both packages share.

Whatever asks the server is a generator of steps (see _drive.py), which each package runs in its own way. A method of
this page that only says what it does is defined by each package, with the types of its results.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any, Callable, Generic, Iterable, Optional, Self, TypeVar, Union, Unpack

from . import _core as core
from ._core import MOMENT, Options, Space, Spaces, Steps, Tenure, endless, ms, now, number
from ._drive import Job, after, attempt, extend, question, release, settle, unreleased
from ._errors import Closed, LockError, LockLost, Unavailable
from ._holds import Grip, at_once, keeps, releasing
from ._keep import Keeper
from ._kinds import Wishes
from ._links import Route
from ._machine.words import FIRST_PAUSE, FOREVER, GRANT, LONGEST_PAUSE, LOST, NIL, RELEASED, Words
from ._once import IfItFails, Turn
from ._several import Group, GroupTenure, Key, NothingWanted, Part, rest
from ._telemetry import LAST, Counts, Listener, Telemetry, Waiting

C = TypeVar("C")
#: How often a drain looks whether anybody holds, in seconds.
LOOK = 0.01
#: The attribute of a client that has its `Locks`. Both refer to each other, so a table of them would keep every client
#: forever.
ATTRIBUTE = "_rlock_locks"


class LocksBase(Generic[C]):
    """The locks of one client, and its settings."""

    # What each package adds.
    _is_async: bool
    _io: Callable[..., Any]
    _hold: Callable[[Grip], Any]
    _holds: Callable[[list[str], list[Any]], Any]
    _mutex: Callable[[], Any]
    _spaces: Spaces
    _all: "weakref.WeakSet[Any]"  # for forks
    #: Calls a function that nothing may interrupt halfway.
    _whole: Callable[..., Any] = staticmethod(at_once)

    @property
    def _keeper(self) -> Keeper:
        """What looks after its holds."""
        raise NotImplementedError

    def _finish(self, steps: Steps) -> Any:
        """Runs the steps to their end, even if their caller goes away."""
        raise NotImplementedError

    def __init__(self, client: C, *, patience: float = 3.0, listener: Optional[Listener] = None, outage: Optional[float] = None):
        """A client has one `Locks`, which the first `Lock(client, …)` creates. Create it yourself before that to choose
        `patience` (for how many seconds a request that does not wait is repeated while connections break or a failover is
        in progress) or `outage` (after how many seconds without a server a wait gives up; None: it waits until its own
        time is up).
        """
        if any(kind.__module__.startswith("redis.asyncio") for kind in type(client).__mro__) != self._is_async:
            is_this, use = ("blocking client", "rlock") if self._is_async else ("client for asyncio", "rlock.asyncio")
            raise TypeError(f"that is a {is_this}: use {use}")
        self.io = self._io(Route(client, self._is_async), self._spaces, Telemetry(listener), endless(outage, "outage"))
        self.patience, self.warns_of_others = number(patience, "patience"), True
        if (before := vars(client).get(ATTRIBUTE)) is not None and not before.io.is_closing:
            raise RuntimeError("this client has its Locks already, whose settings its locks have: use Locks.of(client)")
        vars(client)[ATTRIBUTE] = self
        self._all.add(self)

    @classmethod
    def of(cls, client: C) -> Self:
        """The one of that client, which is created if there is none."""
        return client if isinstance(client, cls) else vars(client).get(ATTRIBUTE) or cls(client)

    def all(self, *keys: Key, **options: Unpack[Wishes]) -> Any:
        """Several locks, acquired in one step: keys, `read(key)`, or `limit(key, most)`. The options are those of `Lock`."""

    def any(self, pool: Union[str, bytes], keys: Iterable[Union[str, bytes]], **options: Unpack[Wishes]) -> Any:
        """One of many: the write lock of the first key that is free. Callers wait in line for a permit of the key `pool`."""

    def election(self, key: Union[str, bytes], *, name: Optional[str] = None, lease: float = 10.0) -> Any:
        """An election. `name` is what followers see, for example an address; `lease` is how long a leader may be
        silent."""

    def once(
        self, key: Union[str, bytes], every: float, body: Callable[[Any], Any], *,
        if_it_fails: IfItFails = "keep", wait: Optional[float] = 0, lease: float = 30.0, acks: Optional[int] = None,
    ) -> Any:
        """Calls `body(hold)`, in asyncio an `async def`, unless a run began in the last `every` seconds, on any machine.
        Returns whether it was called.

        If it fails or its process dies, nobody else runs in this interval. With `if_it_fails="again"`, another run
        may begin at once, or after the `lease` of a process that died.
        """

    def check(self, key: Union[str, bytes]) -> Any:
        """Acquires the lock of `key`, waits a moment for it as another owner, and releases it. Raises the error, if
        any.

        A program that calls it at its start finds out there whether the server, the password, TLS, the module or a
        permission would keep it from its locks.
        """

    def drain(self, timeout: Optional[float]) -> Any:
        """Acquires nothing from now on, ends what waits, and waits for the release of what is held; then closes.

        Returns the keys that are still held after `timeout` seconds. Their holds are lost at once, and others are kept out
        until the leases end. Not for the handler of a signal: it would wait for the code that it has interrupted.
        """

    def counts(self) -> Counts:
        """What is held and waited for through this object now, and how much was lost."""
        return self._whole(self._counts)  # type: ignore[no-any-return]

    def _counts(self) -> Counts:
        told = self.io.telemetry
        mine = sum(each.held for each in self._tenures())
        return Counts(mine, len(told.waits), told.losses, told.failed_renewals, told.unreported)

    def owner(self, me: Any = None) -> str:
        """The owner name of this thread or task, the same for all of its locks."""
        return self._name_of(me) + (self.io.space.suffix if self.io.space else "")

    def _name_of(self, me: Any) -> str:
        raise NotImplementedError

    @property
    def space(self) -> Optional[Space]:
        """All holds of this process at that server; None until it is known which one that is."""
        return self.io.space  # type: ignore[no-any-return]

    @property
    def _known(self) -> Space:
        space: Optional[Space] = self.io.space
        assert space is not None
        return space

    def _owner(self, options: Options, me: Any) -> Any:
        """Of an acquisition."""
        if options.reentrant:
            return options.owner or self.owner(me)
        return core.NAMES.new() + self._known.suffix

    def _settled(self, key: str, wait: Optional[float]) -> Steps:
        """Makes sure that the server's identity is known, which is part of owners' names."""
        if self.io.space is None:
            space = self._spaces.of((yield from settle(self.io, key, wait, self.patience)))
            self.io.space = self.io.space or space

    def _met(self, key: str, wait: Optional[float]) -> Steps:
        """For an acquisition that has begun to wait."""
        if self.io.space is None:
            with Waiting(self.io.telemetry, key):
                yield from self._settled(key, wait)
        return self._known

    def _acquiring(self, key: str, options: Options, wait: Optional[float], me: Any) -> Steps:
        """Acquires for that thread or task."""
        start = ms()
        space = self.io.space or (yield from self._met(key, wait))
        seat = space.seat(key, self._owner(options, me), options.kind, self._mutex)
        return (yield from self._take(seat, options, start, wait, me))

    def _acquiring_all(self, parts: list[Part], options: Options, wait: Optional[float], me: Any) -> Steps:
        """One hold of all locks that the owner does not have yet, and one of each that it has."""
        start = ms()
        space = yield from self._met(parts[0].key, wait)
        group = Group(space, parts, self._owner(options, me), self._mutex)
        holds: list[Any] = []
        try:
            if (hold := (yield from self._take(group, options, start, wait, me))) is None:
                return None
            holds.append(hold)
        except NothingWanted:
            pass
        try:
            for each in group.held:
                again = yield from self._acquiring(each.key, group.again(each, options), 0, me)
                if again is None:
                    raise LockLost(f"{each.key} was lost by {group.owner}")
                holds.append(again)
        except BaseException:
            try:
                yield self._finish(releasing([each._grip for each in holds]))
            except LockError:
                pass
            raise
        return holds

    def _acquiring_any(self, pool: str, keys: list[str], options: Options, wait: Optional[float], me: Any) -> Steps:
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

    def _permit_back(self, permit: Any) -> Steps:
        try:
            yield self._finish(permit._grip.releasing())
        except LockError:
            pass

    def _take(self, seat: Any, options: Options, start: int, wait: Optional[float], me: Any) -> Steps:
        space, is_mine, job, waiting = self._known, False, None, None
        try:
            waiting = Waiting(self.io.telemetry, seat.name)
            patience, is_unavailable = seat.come(start, wait, self.patience, self.io.outage)
            is_mine = yield from seat.take(self.io, patience)
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
                self._keeper.lose(seat.tenure.root)
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
                yield from self.io.leave(job)

    def _granted(self, job: Job, told: Words, me: Any) -> Any:
        seat, options = job.seat, job.options
        tenure = seat.tenure
        if tenure is None:
            kind = GroupTenure if isinstance(seat, Group) else Tenure
            tenure = kind(seat, options, told[1], told[2], self.io)
            tenure.link = job.link
            seat.tenure = tenure
            self._keeper.add(tenure)
        taker = getattr(me, "thread", me) if options.reentrant and not options.owner else None
        hold = self._hold(Grip(self, tenure, taker))
        self._keeper.changes(tenure, lambda: tenure.handed(hold, told, options, taker))
        job.link = None
        return hold

    def _releasing(self, tenure: Tenure) -> Steps:
        """Releases one level."""
        self._known.use(tenure.seat)
        by, is_mine = now() + self.patience, False
        try:
            is_mine = yield from tenure.seat.take(self.io, self.patience)
        finally:
            if not is_mine:  # the level counts as released: nobody else would release it
                self.io.later(self._release_later(tenure))
        if not is_mine:
            raise unreleased(tenure)
        yield from self._release_level(tenure, by - now())

    def _release_later(self, tenure: Tenure) -> Steps:
        yield from tenure.seat.take(self.io, FOREVER)
        try:
            yield from self._release_level(tenure, self.patience)
        except LockError:
            pass

    def _release_level(self, tenure: Tenure, patience: float) -> Steps:
        """For an owner that has the seat."""
        seat = tenure.seat
        job, told = release(self.io, tenure, patience), None
        if tenure.depth == 1:
            tenure.releasing()
        try:
            told = yield from job.steps(("call",))
            if told == LOST:
                self._keeper.lose(tenure.root)
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
                yield from self.io.leave(job)
        if told != RELEASED:
            raise job.error(told, "not known to be released: ")

    def _ended(self, seat: Any, tenure: Tenure, is_released: bool = False) -> None:
        """If no level is left, the hold has ended."""
        if tenure.depth > 0 and tenure.state == "held":
            return
        if isinstance(tenure, GroupTenure):
            for call in tenure.ends():
                self._keeper.call(call)
        if seat.tenure is tenure:
            seat.tenure = None
        tenure.ended()
        self._keeper.forget(tenure, is_released)

    def _draining(self, timeout: Optional[float]) -> Steps:
        """Ends waits, and stays while anybody holds. Returns the keys that are held when the time is up."""
        until = FOREVER if timeout is None else now() + timeout
        self.io.stop()
        while now() < until and not self.io.is_closing and (self.io.jobs or self._holding()):
            yield self.io.sleep(min(LOOK, until - now()))
        left = self._holding()
        for tenure in left:
            self._keeper.lose(tenure)
        return sorted(key for tenure in left for key in getattr(tenure.seat, "parts", [tenure.seat.key]))

    def _closing(self) -> Steps:
        """Holds are no longer renewed, and those of sessions end now."""
        yield from self.io.closing()
        for tenure in self._tenures():
            if tenure.state == "held" and tenure.options.session:
                self._keeper.lose(tenure)
            elif tenure.state == "held":
                self._keeper.tell(tenure, "close")
        yield self.io.waits(self.io.telemetry.told(), LAST)

    def _drained(self, timeout: Optional[float]) -> Steps:
        left = yield from self._draining(timeout)
        yield from self._closing()
        return left

    def _tenures(self) -> set[Tenure]:
        """What this client holds, and what it lost but has not released yet."""
        if self.io.space is None:
            return set()
        with self.io.space.lock:
            roots = {seat.tenure.root for seat in self.io.space.seats.values() if seat.tenure is not None}
        return {each for each in roots if each.io is self.io}

    def _holding(self) -> list[Tenure]:
        """The holds that the server may still have, and that their users have not released."""
        return [each for each in self._tenures() if each.state in ("held", "releasing") and ms() < each.deadline]

    def _extending(self, tenure: Tenure, lease: float) -> Steps:
        try:
            yield from extend(self.io, tenure, lease, self.patience)
        except LockLost:
            self._keeper.lose(tenure.root)
            raise

    def _asking(self, key: str, words: Callable[[], list[Any]]) -> Steps:
        yield from self._settled(key, 0)
        return (yield from question(self.io, key, words()))

    def _checking(self, lock: Any) -> Steps:
        first = yield lock.acquire(wait=0)
        try:
            try:
                second = yield lock.acquire(wait=MOMENT)
            except Unavailable:  # a program that starts may be slower than a moment
                second = yield lock.acquire(wait=self.patience)
            if second is not None:
                yield second.release()
        finally:
            if first is not None:
                yield first.release()

    def _doing_once(self, lock: Any, turn: Turn) -> Steps:
        hold = yield lock.acquire()
        if hold is None:
            return False
        turn.begins()
        try:
            yield turn.body(hold)
        except BaseException as error:
            try:
                yield self._finish(turn.ends(self, hold, True))
            except LockError as problem:
                keeps(error, problem, hold.key)
            raise
        yield self._finish(turn.ends(self, hold, False))
        return True
