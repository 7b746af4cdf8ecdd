"""What the package knows about owners, holds and servers, without I/O."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import secrets
import socket
import threading
import time
import weakref
from dataclasses import dataclass, replace
from typing import Any, Callable, ClassVar, Generator, Optional

from ._machine import words as machine
from ._errors import Unavailable

log = logging.getLogger("rlock")
#: What takes time: see _drive.py.
Steps = Generator[Any, Any, Any]

#: How long `check` waits: long enough for a message, short enough for the start of a program.
MOMENT = 1.0
#: The constants of the machine, in seconds.
REPLY, LATE, DIALS, LOOKS = (each / 1000 for each in (machine.REPLY, machine.LATE, machine.DIALS, machine.LOOKS))


# A clock that continues while the computer is suspended, if there is one: leases do so too.
if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def ms() -> int:
        """In whole milliseconds, as machines count, rounded down so that no deadline is reported late."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

else:
    now = time.monotonic

    def ms() -> int:
        return time.monotonic_ns() // 1_000_000


def round_trip(before: float, took: float) -> float:
    """About how long a reply takes. A single fast reply replaces all slower ones: otherwise, waits after a pause of the
    server would end too early."""
    return min(took, before + (took - before) / 8)


@dataclass(frozen=True)
class Options:
    """The options of a lock object. Times in seconds."""

    mode: str = "WRITE"
    lease: float = 30.0
    owner: Optional[str] = None
    limit: Optional[int] = None
    maxqueue: Optional[int] = None
    acks: Optional[int] = None
    session: bool = False
    upgrade: bool = False
    renew: bool = True
    reentrant: bool = True

    def __post_init__(self) -> None:
        if self.owner is not None and not isinstance(self.owner, str):
            raise TypeError(f"the owner must be a str, not {type(self.owner).__name__}")
        if self.owner is not None and not 1 <= len(raw(self.owner)) <= 512:
            raise ValueError(f"the owner must have 1 to 512 bytes, not {len(raw(self.owner))}; without one, it is the thread or the task")
        if self.owner is not None and not self.reentrant:
            raise ValueError("with reentrant=False, each acquisition has an owner of its own: leave out owner")
        if not 0.001 <= number(self.lease, "lease") <= 7 * 86400:
            raise ValueError(f"lease must be from 0.001 to 604800 seconds, not {self.lease}")
        if self.session and self.lease < 1:
            raise ValueError("the lease of a session must be at least one second")

    @functools.cached_property
    def lease_ms(self) -> int:
        return int(self.lease * 1000)

    @functools.cached_property
    def kind(self) -> str:
        return "WRITE" if self.upgrade else self.mode

    @functools.cached_property
    def words(self) -> list[Any]:
        """Of RLOCK.ACQUIRE."""
        words: list[Any] = ["UPGRADE" if self.upgrade else self.mode, "LEASE", self.lease_ms]
        for name, value in (("LIMIT", self.limit), ("ACKS", self.acks)):
            if value is not None:
                words += [name, value]
        return words


def number(given: Any, name: str) -> float:
    """Of seconds."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return given
    raise TypeError(f"{name} must be a number of seconds, not {given!r}")


def seconds(given: Any, name: str = "wait") -> Optional[float]:
    if given is None or given == machine.FOREVER:
        return None
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 0:
        return given
    raise TypeError(f"{name} must be a number of seconds, or None for no limit, not {given!r}")


def endless(limit: Optional[float], name: str) -> float:
    """As a number."""
    given = seconds(limit, name)
    return machine.FOREVER if given is None else given


def key_name(key: Any) -> str:
    """The key as text, in which bytes that are not UTF-8 are represented as by `os.fsdecode`. Any type but str and
    bytes would mean different keys in different clients.
    """
    if isinstance(key, (str, bytes)):
        return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
    raise TypeError(f"the key must be a str or bytes, not {type(key).__name__}")


@functools.lru_cache(1024)
def raw(text: str) -> bytes:
    """As it is sent."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def shown(text: str) -> str:
    """A form for messages, which must be valid text."""
    return text if text.isprintable() else raw(text).decode("utf-8", "backslashreplace")


#: Incremented when a fork of this process begins, and when it has ended.
forks = 0


def _forking() -> None:
    global forks
    forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forking, after_in_parent=_forking)


class Names:
    """The names of owners: `host/pid/…`, with a unique name for each thread or task. They change after a fork."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        # The pid is for humans. In containers, it is always 1: the remaining parts make the name unique.
        self.process = f"{socket.gethostname()[:128]}/{os.getpid()}/{secrets.token_hex(4)}"
        self.count = itertools.count(1)

    def new(self) -> str:
        # A single call, which another thread cannot interrupt.
        return f"{self.process}-{next(self.count)}"


NAMES = Names()


class Seat:
    """One owner of one key in one mode. It allows one acquisition or release at a time in the whole process."""

    __slots__ = ("key", "owner", "mode", "mutex", "users", "tenure", "is_undone")
    job: ClassVar[Callable[..., Any]]  # what a machine does for it

    def __init__(self, key: str, owner: str, mode: str, mutex: Any):
        self.key, self.owner, self.mode, self.mutex = key, owner, mode, mutex
        self.users = 0
        self.tenure: Optional[Tenure] = None
        self.is_undone = False  # the request that has it is being undone

    @property
    def name(self) -> str:
        """For messages."""
        return shown(self.key)

    def take(self, io: Any, patience: float) -> Steps:
        """Whether it is free in time."""
        return (yield io.takes(self.mutex, patience))

    def come(self, start: int, wait: Optional[float], patience: float, outage: float) -> tuple[float, bool]:
        """How many seconds to wait for an occupied seat, and whether the lock is then unavailable."""
        ms = machine.FOREVER if wait is None else wait * 1000
        by, told = machine.come(start, self.is_undone, ms, patience * 1000, outage * 1000)
        return (by - start) / 1000, told == machine.UNAVAILABLE

    @property
    def unavailable(self) -> Unavailable:
        return Unavailable(f"{self.name}: an earlier request of {self.owner} is not yet undone")


class Tenure:
    """A hold from its first level to its last, shared by all handles."""

    __slots__ = (
        "seat", "options", "token", "sent", "depth", "deadline", "lingers", "state", "signals", "calls", "link", "io", "renewal", "wakes",
        "holds", "keeper", "since", "is_doubted", "is_of_handle", "watch",
    )

    def __init__(self, seat: Seat, options: Options, token: int, sent: int, io: Any):
        self.seat, self.token, self.sent, self.io = seat, token, sent, io
        self.options = options  # with the longest lease of a level that is renewed
        self.since = ms()
        self.signals: list[Any] = []
        self.depth = 0
        self.deadline: float = sent + options.lease_ms
        self.lingers = False  # a request of its attempts was never answered
        self.state = "held"  # then "releasing", and "released" or "lost"
        self.calls: list[Callable[[], Any]] = []
        self.link: Any = None  # of a session
        self.renewal: Any = None  # that renews it; until that is due, when most holds have been released, there is none
        self.wakes: Any = None  # when, or the timer that does so
        self.holds: list[Any] = []  # weak references to its handles
        self.keeper: Any = None  # a weak reference to the thread or task whose name it has
        self.watch: Any = None  # observes its end at the server
        self.is_of_handle = False  # only its handle can release it, from any thread or task
        self.is_doubted = False  # the connection of the session has ended, and it is not tied to a new one

    @property
    def root(self) -> "Tenure":
        """The hold that is renewed: for one of several locks, the hold of them all."""
        return self

    @property
    def due(self) -> float:
        """When it is first looked after."""
        return self.sent + self.options.lease_ms // 3 if self.options.renew else self.deadline

    @property
    def held(self) -> bool:
        return self.state == "held" and ms() < self.deadline

    @property
    def is_sure(self) -> bool:
        """Whether a user may rely on the hold. If a session's connection has broken, the server may have ended the
        hold."""
        return self.held and not self.root.is_doubted

    def extended(self, deadline: float) -> None:
        """Records a lease, which may be a different one."""
        self.deadline = max(self.deadline, deadline)
        if self.renewal is not None:
            self.renewal.tell("extend", deadline - self.options.lease_ms)

    def handed(self, hold: Any, granted: Any, options: Options, keeper: Any) -> bool:
        """Adds a level for that handle; and for that thread or task, if the owner is named after it.

        Returns whether the hold is renewed differently from now on: then its renewal must be scheduled again.
        """
        self.depth += 1
        _, _, sent, lingers = granted
        self.extended(sent + options.lease_ms)
        self.lingers = self.lingers or lingers
        if len(self.holds) > 2 * self.depth + 8:
            self.holds = [each for each in self.holds if each() is not None]
        self.holds.append(weakref.ref(hold))
        self.is_of_handle = not options.reentrant
        if keeper is not None and self.keeper is None:
            self.keeper = weakref.ref(keeper)
        renewed = self.options
        # One of several locks is renewed with the others, and ends with them.
        if self.state != "held" or self.root is not self or not options.renew or (renewed.renew and options.lease <= renewed.lease):
            return False
        if self.renewal is not None:
            self.renewal.tell("released")  # what it has begun is given back when it comes
            self.renewal = None
        # The lease of a session is at least a second.
        self.options, self.sent = replace(renewed, lease=max(options.lease, renewed.session), renew=True), sent
        return True

    @property
    def is_orphaned(self) -> bool:
        """Whether nobody can release it: its thread or task has ended, and nobody refers to its handles."""
        if self.keeper is None and not self.is_of_handle or any(each() is not None for each in self.holds):
            return False
        if self.is_of_handle:
            return True
        keeper = self.keeper()
        return keeper is None or (keeper.done() if hasattr(keeper, "done") else not keeper.is_alive())

    def releasing(self) -> None:
        """The last level is being released: a renewal that the server executes after that gets NOTHELD, which is no loss."""
        if self.state == "held":
            self.state = "releasing"
        if self.renewal is not None:
            self.renewal.tell("releasing")
        if self.watch is not None:
            self.watch.leave()

    def lose(self) -> list[Callable[[], Any]]:
        """Marks it as lost; returns the functions to call."""
        with self.io.space.lock:  # two threads may find it, and a third one adds a function
            if self.state not in ("held", "releasing"):
                return []
            self.state = "lost"
            # The server may keep a session until it notices that its connection is closed.
            self.lingers = self.lingers or (self.options.session and ms() >= self.deadline)
            calls = list(self.calls)
        if self.root is self:
            self.io.telemetry.ended(self.seat.name, self.since, True)
        for signal in self.signals:
            signal.set()
        if self.watch is not None:
            self.watch.leave()
        return calls

    def ended(self) -> None:
        """The last level was released, unless the hold was lost before."""
        with self.io.space.lock:
            if self.state not in ("held", "releasing"):
                return
            self.state = "released"
        self.io.telemetry.ended(self.seat.name, self.since, False)

    def signal(self, kind: Callable[[], Any]) -> Any:
        """Set when the hold is lost. Created on first use."""
        if not self.signals:
            self.signals.append(kind())
        if self.state == "lost":
            self.signals[0].set()
        return self.signals[0]


class Space:
    """All holds of this process at one server or Cluster, through any client object."""

    def __init__(self, number: int):
        # Names differ between spaces: a server that does not identify itself may have two addresses.
        self.suffix = f"@{number}" if number else ""
        self.forked()

    def forked(self) -> None:
        """Starts without holds. A child process does, too, whatever its parent holds."""
        for seat in getattr(self, "seats", {}).values():
            if seat.tenure is not None:
                seat.tenure.state = seat.tenure.root.state = "released"
        self.seats: dict[tuple[str, str, str], Seat] = {}
        self.lock = threading.Lock()

    def seat(self, key: str, owner: str, mode: str, mutex: Callable[[], Any]) -> Seat:
        with self.lock:
            seat = self.seats.get((key, owner, mode))
            if seat is None:
                seat = self.seats[key, owner, mode] = Seat(key, owner, mode, mutex())
            seat.users += 1
            return seat

    def use(self, seat: Seat) -> None:
        with self.lock:
            for each in getattr(seat, "members", (seat,)):  # of a group, see _several.py
                each.users += 1

    def leave(self, seat: Seat) -> None:
        with self.lock:
            for each in getattr(seat, "members", (seat,)):
                each.users -= 1
                where = each.key, each.owner, each.mode
                if each.users == 0 and each.tenure is None and self.seats.get(where) is each:
                    del self.seats[where]

    def vacate(self, seat: Seat) -> None:
        """Frees the seat: no part of its request is still to be executed."""
        seat.is_undone = False
        for each in getattr(seat, "members", (seat,)):
            each.mutex.release()
        self.leave(seat)


class Spaces:
    """The spaces of this process, by what servers report about themselves."""

    def __init__(self) -> None:
        self.lock, self.all, self.known = threading.Lock(), list[Space](), dict[str, Space]()

    def of(self, identities: list[str]) -> Space:
        """The space of a known server, or a new one."""
        with self.lock:
            space = next((self.known[each] for each in identities if each in self.known), None)
            if space is None:
                space = Space(len(self.all))
                self.all.append(space)
        self.join(identities, space)
        return space

    def join(self, identities: list[str], space: Space) -> None:
        """Another server belongs to the space: a replica that took over, or one that was restarted."""
        with self.lock:
            for each in identities:
                self.known.setdefault(each, space)

    def forked(self) -> None:
        self.lock = threading.Lock()
        for space in self.all:
            space.forked()
