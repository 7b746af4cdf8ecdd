"""Locks for the blocking client of redis-py."""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import queue
import selectors
import socket
import sys
import threading
import time
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, TypeVar, Union

from . import _core as core
from ._core import Attempt, Broken, LockLost, NotAcquired, NotHeld, Options, Refused, Seat, Space, Tenure, now
from ._links import Address, Route, translated

F = TypeVar("F", bound=Callable[..., Any])
UNSET: Any = object()


def run(steps: core.Steps) -> Any:
    """The steps, whose calls of `io` have done what they say when they return."""
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as stop:
        return stop.value


class Link:
    """A connection of our own."""

    __slots__ = ("conn", "address", "is_open", "used", "watched")

    def __init__(self, conn: Any, address: Optional[Address]):
        self.conn, self.address, self.is_open, self.used = conn, address, True, now()
        self.watched: Any = None  # its socket, while it is a session's


class IO:
    """What the steps are told of the outside. Blocking, for any number of threads."""

    def __init__(self, route: Route, waiting: int):
        self.route, self.waiting = route, waiting
        self.reset()

    def reset(self) -> None:
        self.idle: dict[Any, list[Link]] = {}
        self.slots = threading.Semaphore(self.waiting) if self.waiting else None
        self.ears: dict[Any, Ears] = {}
        self.lock = threading.Lock()

    sleep = staticmethod(time.sleep)

    def take_slot(self) -> bool:
        return self.slots is not None and self.slots.acquire(blocking=False)

    def give_slot(self) -> None:
        if self.slots is not None:
            self.slots.release()

    def locate(self, key: str) -> Optional[Address]:
        try:
            if self.route.is_cluster and not self.route.seeds:
                with self.lock:
                    if not self.route.seeds:
                        self.route.take_cluster()
            if self.route.sentinel is not None and self.route.master is None:
                self.route.master = self.route.sentinel.get_master_address()
        except Exception as error:
            raise translated(error) from error
        return self.route.of(key)

    def open(self, key: str, where: Optional[Address] = None) -> Link:
        address = where or self.locate(key)
        while idle := self.idle.get(address):
            try:
                link = idle.pop()
            except IndexError:
                break
            # One that has not been used for a moment may have been closed by the server meanwhile.
            if now() - link.used < 0.5 or self._is_quiet(link):
                return self._asking(link, where)
            self.drop(link)
        conn = self.route.connection(address)
        try:
            conn.connect()
        except Exception as error:
            self.route.forget(address)
            raise translated(error, address) from error
        return self._asking(Link(conn, address), where)

    def _asking(self, link: Link, where: Optional[Address]) -> Link:
        if where is not None:
            self.write(link, ["ASKING"])
            self.read(link, core.REPLY)
        return link

    def _is_quiet(self, link: Link) -> bool:
        try:
            return not link.conn.can_read(0)
        except Exception:
            return False

    def write(self, link: Link, words: list[Any]) -> None:
        try:
            link.conn.send_command(*words, check_health=False)
        except Exception as error:
            self.drop(link)
            self.route.forget(link.address)
            raise translated(error, link.address) from error

    def read(self, link: Link, timeout: float) -> Any:
        """Broken when nothing comes in time; then the link is still open."""
        try:
            if not link.conn.can_read(max(timeout, 0.0)):
                raise Broken(f"no reply within {timeout:.1f} s")
            reply = link.conn.read_response()
        except Broken:
            raise
        except Exception as error:
            problem = translated(error, link.address)
            if isinstance(problem, Broken):
                self.drop(link)
                self.route.forget(link.address)
            raise problem from error
        link.used = now()
        return reply

    def send(self, key: str, words: list[Any], timeout: float) -> Any:
        where, hops = None, 0
        while True:
            link = self.open(key, where)
            try:
                self.write(link, words)
                reply = self.read(link, timeout)
            except Refused as refused:
                self.keep(link)
                where = self.route.redirected(refused, link.address)
                hops += 1
                if where is None or hops > 5:
                    raise
                continue
            except BaseException:
                self.drop(link)
                self.route.forget(link.address)
                raise
            self.keep(link)
            return reply

    def redirected(self, refused: Refused, address: Optional[Address]) -> Optional[Address]:
        return self.route.redirected(refused, address)

    def is_at_home(self, link: Link, key: str) -> bool:
        return self.locate(key) == link.address

    def keep(self, link: Link) -> None:
        idle = self.idle.setdefault(link.address, [])
        if link.is_open and len(idle) < 16 + self.waiting:
            idle.append(link)
        else:
            self.drop(link)

    def drop(self, link: Link) -> None:
        link.is_open = False
        try:
            link.conn.disconnect()
        except Exception:
            pass

    def clean_up(self, attempt: Attempt) -> None:
        attempt.cleans_up = True
        done = threading.Event()

        def work() -> None:
            try:
                run(attempt.clean_up())
            finally:
                attempt.seat.mutex.release()
                done.set()

        if attempt.in_doubt or attempt.has_ticket:
            threading.Thread(target=work, name="rlock-cleanup", daemon=True).start()
            done.wait(1.0)
        else:
            work()

    # --- turns -----------------------------------------------------------------------------------

    def listen(self, key: str, owner: str) -> "Turn":
        address = self.locate(key)
        with self.lock:
            ears = self.ears.get(address)
            if ears is None or ears.is_over:
                ears = self.ears[address] = Ears(self, key, address)
        return ears.add(f"__keyevent@{self.route.db}__:rlock.turn:{owner}")

    def await_turn(self, turn: "Turn", timeout: float) -> None:
        turn.event.wait(timeout)

    def unlisten(self, turn: "Turn") -> None:
        turn.ears.remove(turn)

    def close(self) -> None:
        for ears in self.ears.values():
            ears.is_over = True
        for idle in self.idle.values():
            while idle:
                self.drop(idle.pop())


class Turn:
    __slots__ = ("ears", "channel", "event")

    def __init__(self, ears: "Ears", channel: str):
        self.ears, self.channel, self.event = ears, channel, threading.Event()


class Ears:
    """One subscription at one server for all who wait by ticket there. Messages are hints: a broken one wakes all."""

    def __init__(self, io: IO, key: str, address: Optional[Address]):
        self.io, self.link = io, io.open(key)
        self.turns: dict[str, set[Turn]] = {}
        self.lock = threading.Lock()
        self.is_over = self.link.address != address
        threading.Thread(target=self._hear, name="rlock-turns", daemon=True).start()

    def add(self, channel: str) -> Turn:
        turn = Turn(self, channel)
        with self.lock:
            turns = self.turns.setdefault(channel, set())
            turns.add(turn)
            if len(turns) == 1:
                self._write("SUBSCRIBE", channel)
        return turn

    def remove(self, turn: Turn) -> None:
        with self.lock:
            turns = self.turns.get(turn.channel, set())
            turns.discard(turn)
            if not turns and self.turns.pop(turn.channel, None) is not None:
                self._write("UNSUBSCRIBE", turn.channel)

    def _write(self, *words: str) -> None:
        try:
            self.link.conn.send_command(*words, check_health=False)
        except Exception:
            self.is_over = True  # who waits asks again by itself

    def _hear(self) -> None:
        quiet_since = now()
        while not self.is_over and self.link.is_open:
            try:
                message = self.io.read(self.link, 1.0)
            except (Broken, Refused):
                with self.lock:
                    self.is_over = self.is_over or (not self.turns and now() - quiet_since > 10)
                continue
            quiet_since = now()
            if isinstance(message, list) and message[0] == "message":
                self._wake(self.turns.get(message[1], ()))
        self.is_over = True
        self.io.drop(self.link)
        with self.lock:
            self._wake(turn for turns in self.turns.values() for turn in turns)

    def _wake(self, turns: Any) -> None:
        for turn in list(turns):
            turn.event.set()


class Clock:
    """One thread for the deadlines of all holds, and for the connections of sessions; a few others that renew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heap: list[tuple[float, int, Tenure]] = []
        self.number, self.stale = itertools.count(), 0
        self.selector = selectors.DefaultSelector()
        self.bell, hearer = socket.socketpair()
        hearer.setblocking(False)
        self.selector.register(hearer, selectors.EVENT_READ, None)
        self.hearer = hearer
        self.work: "queue.SimpleQueue[Callable[[], Any]]" = queue.SimpleQueue()
        for target in (self._watch, *[self._work] * 4):
            threading.Thread(target=target, name="rlock-clock", daemon=True).start()

    def add(self, tenure: Tenure) -> None:
        when = min(tenure.renews_at, tenure.deadline)
        with self.lock:
            is_first = not self.heap or when < self.heap[0][0]
            heapq.heappush(self.heap, (when, next(self.number), tenure))
        if tenure.link is not None:
            self.watch(tenure)
        elif is_first:
            self.bell.send(b"!")

    def watch(self, tenure: Tenure) -> None:
        """A session: the end of its connection is heard of at once."""
        link = tenure.link
        link.watched = link.conn._sock
        self.selector.register(link.watched, selectors.EVENT_READ, (tenure, link))
        self.bell.send(b"!")

    def forget(self, tenure: Tenure) -> None:
        """Its entry stays until its time, or until there are too many such."""
        self.untie(tenure.link)
        self.stale += 1
        if self.stale > 1000 and self.stale > len(self.heap) // 2:
            with self.lock:
                self.heap = [entry for entry in self.heap if entry[2].state == "held"]
                heapq.heapify(self.heap)
                self.stale = 0

    def untie(self, link: Optional[Link]) -> None:
        if link is not None and link.watched is not None:
            try:
                self.selector.unregister(link.watched)
            except (KeyError, ValueError):
                pass
            link.watched = None

    def _watch(self) -> None:
        while True:
            with self.lock:
                pause = max(0.0, self.heap[0][0] - now()) if self.heap else 60.0
            for key, _ in self.selector.select(pause):
                if key.data is None:
                    self.hearer.recv(4096)
                else:
                    self._session_spoke(*key.data)
            self._due()

    def _due(self) -> None:
        while True:
            with self.lock:
                if not self.heap or self.heap[0][0] > now():
                    return
                tenure = heapq.heappop(self.heap)[2]
                if tenure.state != "held":
                    self.stale = max(0, self.stale - 1)
                    continue
                is_lost = now() >= tenure.deadline
                if not is_lost:
                    if now() >= tenure.renews_at:
                        tenure.renews_at = now() + tenure.options.lease / 3
                        self.work.put(functools.partial(self._renew, tenure, core.renew))
                    when = min(tenure.renews_at, tenure.deadline)
                    heapq.heappush(self.heap, (when, next(self.number), tenure))
            if is_lost:
                self.lose(tenure)

    def _session_spoke(self, tenure: Tenure, link: Link) -> None:
        if tenure.state == "held" and tenure.io._is_quiet(link):
            return  # nothing for us: TLS has messages of its own
        self.untie(link)
        tenure.link = None
        tenure.io.drop(link)
        if tenure.state == "held":
            self.work.put(functools.partial(self._renew, tenure, core.tie))

    def _work(self) -> None:
        while True:
            self.work.get()()

    def _renew(self, tenure: Tenure, how: Callable[..., core.Steps]) -> None:
        try:
            if run(how(tenure.io, tenure)):
                self.lose(tenure)
            elif how is core.tie and tenure.link is not None:
                self.watch(tenure)
        except Exception:
            pass  # the next renewal tries again, and the clock runs

    def lose(self, tenure: Tenure) -> None:
        for call in tenure.lose():
            try:
                call()
            except Exception:
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        if tenure.link is not None:
            self.untie(tenure.link)
            tenure.io.drop(tenure.link)


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
        for seat in space.seats.values():
            if seat.tenure is not None:
                seat.tenure.state = "released"
        space.seats = {}
    for locks in list(_all):
        locks.io.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Hold:
    """What one acquisition got: one level of a lock. Any thread may release it, once."""

    __slots__ = ("_tenure", "_locks", "_is_released")

    def __init__(self, locks: "Locks", tenure: Tenure):
        self._locks, self._tenure, self._is_released = locks, tenure, False

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every hold before."""
        return self._tenure.token

    @property
    def key(self) -> str:
        return self._tenure.seat.key

    @property
    def owner(self) -> str:
        return self._tenure.seat.owner

    @property
    def held(self) -> bool:
        """Whether the hold is sure: not released, not known to be lost, and before its deadline."""
        return not self._is_released and self._tenure.held

    @property
    def left(self) -> float:
        """Seconds until the deadline, counted from when the last request was sent; 0 when it is not held."""
        return max(0.0, self._tenure.deadline - now()) if self.held else 0.0

    @property
    def lost(self) -> threading.Event:
        """Set when the hold is lost, at its deadline at the latest."""
        return self._tenure.signal  # type: ignore[no-any-return]

    def on_lost(self, call: Callable[[], Any]) -> None:
        """Has `call` called when the hold is lost, in a thread of the package; at once if it is. It must not block."""
        self._tenure.calls.append(call)
        if self._tenure.state == "lost":
            call()

    def check(self) -> None:
        """Raises LockLost unless the hold is sure. For the step that cannot be undone, use the token."""
        if not self.held:
            raise LockLost(f"{self.key} is no longer held by {self.owner}")

    def release(self) -> None:
        """One level less. Raises LockLost when the hold was over before."""
        if self._is_released or self._tenure.state == "released":
            raise NotHeld(f"{self.key} was released before, or before this process was forked")
        self._is_released = True
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
        """Closes the connections. What is held ends with its lease."""
        self.io.close()

    def _acquire(self, key: str, options: Options, wait: Optional[float]) -> Optional[Hold]:
        owner = options.owner or self.owner()
        seat = self.space.seat(key, owner, options.kind, threading.Lock)
        attempt = None
        try:
            start = now()
            # Taken only by another who says the same owner, or while an abandoned wait is being undone.
            if not seat.mutex.acquire(timeout=-1 if wait is None else min(max(wait, 0.25), threading.TIMEOUT_MAX)):
                return None
            tenure, is_mine = seat.tenure, True
            try:
                if tenure is not None and not tenure.held:
                    clock().lose(tenure)
                    raise LockLost(f"{key} was lost by {owner}: release it first")
                if wait is not None and wait > 0:
                    wait = max(0.001, wait - (now() - start))
                attempt = Attempt(self.io, seat, options, tenure.depth + 1 if tenure else 1, wait, self.patience)
                try:
                    answer = run(attempt.steps())
                except LockLost:
                    if tenure is not None:
                        clock().lose(tenure)
                    raise
                return self._granted(seat, options, *answer) if answer is not None else None
            finally:
                if attempt is None or not attempt.cleans_up:
                    seat.mutex.release()
        finally:
            self.space.leave(seat)

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
                    if tenure.state == "held":
                        tenure.state = "released"
                    clock().forget(tenure)
                    if tenure.link is not None:
                        self.io.keep(tenure.link)
                        tenure.link = None
        if seat.users == 0 and seat.tenure is None:
            self.space.seats.pop((seat.key, seat.owner, seat.mode), None)


class Lock:
    """A write lock: one holder at a time. May be shared by threads and forked children.

    `client` is a `redis.Redis` (also one of Sentinel's `master_for`) or a `RedisCluster`. The owner is the thread, or
    `owner`; an owner that holds may acquire again, and releases as often. `lease` is how long the lock outlives a
    process that dies; it is renewed every third of it. `wait`: seconds, None = for ever, 0 = do not wait.
    """

    mode = "WRITE"

    def __init__(
        self,
        client: Any,
        key: Union[str, bytes],
        *,
        wait: Optional[float] = None,
        lease: float = 30.0,
        owner: Optional[str] = None,
        maxqueue: Optional[int] = None,
        acks: Optional[int] = None,
        session: bool = False,
        upgrade: bool = False,
        limit: Optional[int] = None,
    ):
        self._locks = Locks.of(client)
        self.key = key.decode() if isinstance(key, bytes) else key
        self.wait = wait
        mode = "READ" if limit is not None else self.mode
        self._options = Options(mode, lease, owner, limit, maxqueue, acks, session, upgrade)

    def acquire(self, wait: Optional[float] = UNSET) -> Optional[Hold]:
        """A hold, or None: not free in time."""
        return self._locks._acquire(self.key, self._options, self.wait if wait is UNSET else wait)

    @property
    def _tenure(self) -> Optional[Tenure]:
        owner = self._options.owner or self._locks.owner()
        seat = self._locks.space.seats.get((self.key, owner, self._options.kind))
        return seat.tenure if seat else None

    @property
    def held(self) -> bool:
        """Whether this thread (or `owner`) holds it, for sure."""
        tenure = self._tenure
        return tenure is not None and tenure.held

    def release(self) -> None:
        """One level less, of what this thread (or `owner`) holds."""
        tenure = self._tenure
        if tenure is None:
            raise NotHeld(f"{self.key} is not held by this thread")
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
    """One of `limit` permits: at most so many holders at a time."""

    def __init__(self, client: Any, key: Union[str, bytes], limit: int, **options: Any):
        super().__init__(client, key, limit=limit, **options)
