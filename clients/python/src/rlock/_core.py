"""What the package knows of owners, holds and servers, without I/O."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ._errors import Unavailable

log = logging.getLogger("rlock")

#: How long a ticket keeps its place in the queue, and the longest pause between its requests.
TICKET_MS, TICKET_ASKS = 3000, 1.0
#: How often a blocked wait asks, on another connection, whether it still has its place.
LOOKS = 1.0
#: How long a reply may take.
REPLY = 2.0
#: How late a call may return. So long does who does not wait stay for another request of the same owner.
SOON = 0.1
#: The pause, more or less, before a server that was not reached is connected to again.
DIALS = 0.2
#: Errors that end by themselves, when a server cannot decide for now: retried while the patience lasts.
AGAIN = {"UNBLOCKED", "READONLY", "LOADING", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"}


# A clock that goes on while the machine is suspended, where there is one: leases do so too.
if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    now = time.monotonic


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

    def __post_init__(self) -> None:
        if not 0.001 <= self.lease <= 7 * 86400:
            raise ValueError(f"lease must be from 0.001 to 604800 seconds, not {self.lease}")
        if self.session and self.lease < 1:
            raise ValueError("the lease of a session must be at least one second")

    @property
    def kind(self) -> str:
        return "WRITE" if self.upgrade else self.mode

    def words(self, key: str, owner: str, depth: int) -> list[Any]:
        words: list[Any] = ["RLOCK.ACQUIRE", key, owner, "UPGRADE" if self.upgrade else self.mode]
        words += ["LEASE", int(self.lease * 1000), "DEPTH", depth]
        for name, value in (("LIMIT", self.limit), ("ACKS", self.acks)):
            if value is not None:
                words += [name, value]
        return words


class Names:
    """The names of owners: `host/pid/…`, with a unique one for each thread or task. New after a fork."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        # The pid is for humans. In containers it is always 1: the rest makes the name unique.
        self.process = f"{socket.gethostname()[:128]}/{os.getpid()}/{secrets.token_hex(4)}"
        self.count = 0

    def new(self) -> str:
        self.count += 1
        return f"{self.process}-{self.count}"


NAMES = Names()


class Seat:
    """One owner at one key in one mode. Allows one acquisition or release at a time in the whole process."""

    __slots__ = ("key", "owner", "mode", "mutex", "users", "tenure", "is_undone")

    def __init__(self, key: str, owner: str, mode: str, mutex: Any):
        self.key, self.owner, self.mode, self.mutex = key, owner, mode, mutex
        self.users = 0
        self.tenure: Optional[Tenure] = None
        self.is_undone = False  # whoever has it undoes what an attempt left

    def patience(self, wait: Optional[float], patience: float) -> Optional[float]:
        """How long to wait for whoever has it: another who says the same owner, or an attempt that is being undone."""
        return wait if wait is None or wait > SOON else patience if self.is_undone else SOON

    def is_taken(self) -> None:
        """It was taken for all that time."""
        if self.is_undone:
            raise Unavailable(f"{self.key}: an earlier request of {self.owner} is not yet undone")


class Tenure:
    """A hold from its first level to its last, shared by all its handles."""

    __slots__ = ("seat", "options", "token", "depth", "deadline", "renews_at", "state", "signal", "calls", "link", "io", "timer", "is_queued", "holds", "keeper")

    def __init__(self, seat: Seat, options: Options, token: int, sent: float, signal: Any, io: Any):
        self.seat, self.options, self.token, self.signal, self.io = seat, options, token, signal, io
        self.depth = 0
        self.state = "held"  # then "releasing", and "released" or "lost"
        self.calls: list[Callable[[], Any]] = []
        self.link: Any = None  # of a session
        self.timer: Any = None  # of asyncio
        self.is_queued = False  # to be renewed
        self.holds: list[Any] = []  # weak references to its handles
        self.keeper: Any = None  # a weak reference to the thread or task whose name it has
        self.deadline = 0.0
        self.renewed(sent)

    def renewed(self, sent: float, lease: Optional[float] = None) -> None:
        # The server counts from when it read this, which was after it was sent.
        self.deadline = max(self.deadline, sent + (lease or self.options.lease))
        self.renews_at = sent + self.options.lease / 3 if self.options.renew else float("inf")

    @property
    def held(self) -> bool:
        return self.state == "held" and now() < self.deadline

    def handed(self, hold: Any, keeper: Any) -> None:
        """Another level, of that handle; by that thread or task if the owner is named after it."""
        self.depth += 1
        if len(self.holds) > 2 * self.depth + 8:
            self.holds = [each for each in self.holds if each() is not None]
        self.holds.append(weakref.ref(hold))
        if keeper is not None and self.keeper is None:
            self.keeper = weakref.ref(keeper)

    @property
    def is_orphaned(self) -> bool:
        """Nobody can release it: its thread or task has ended, and nobody refers to its handles."""
        if self.keeper is None or any(each() is not None for each in self.holds):
            return False
        keeper = self.keeper()
        return keeper is None or (keeper.done() if hasattr(keeper, "done") else not keeper.is_alive())

    def lose(self) -> list[Callable[[], Any]]:
        """Sets the signal; returns the functions to call."""
        if self.state != "held":
            return []
        self.state = "lost"
        self.signal.set()
        return self.calls


class Space:
    """All holds of this process at one server or cluster, through any client object."""

    def __init__(self, number: int):
        # Names differ between spaces: a server that does not say what it is may have two addresses.
        self.suffix = f"@{number}" if number else ""
        self.forked()

    def forked(self) -> None:
        """Starts without holds; so does a child, whatever its parent holds."""
        for seat in getattr(self, "seats", {}).values():
            if seat.tenure is not None:
                seat.tenure.state = "released"
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
            seat.users += 1

    def leave(self, seat: Seat) -> None:
        with self.lock:
            seat.users -= 1
            where = seat.key, seat.owner, seat.mode
            if seat.users == 0 and seat.tenure is None and self.seats.get(where) is seat:
                del self.seats[where]

    def vacate(self, seat: Seat) -> None:
        """Whoever has the mutex of the seat is done: nothing of its request is executed any more."""
        seat.is_undone = False
        seat.mutex.release()
        self.leave(seat)


class Spaces:
    """The spaces of this process, by what servers say of themselves."""

    def __init__(self) -> None:
        self.lock, self.all, self.known = threading.Lock(), list[Space](), dict[str, Space]()

    def of(self, identities: list[str]) -> Space:
        """The one of a server that is known, or a new one."""
        with self.lock:
            space = next((self.known[each] for each in identities if each in self.known), None)
            if space is None:
                space = Space(len(self.all))
                self.all.append(space)
        self.join(identities, space)
        return space

    def join(self, identities: list[str], space: Space) -> None:
        """Another server of the space: a replica that took over, or one that was started again."""
        with self.lock:
            for each in identities:
                self.known.setdefault(each, space)

    def forked(self) -> None:
        self.lock = threading.Lock()
        for space in self.all:
            space.forked()
