"""The public interface that the synchronous and the asyncio package share."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Optional, Union

from ._core import Options, Tenure, key_name, log, ms
from ._errors import LockLost, NotHeld
from ._machine import FOREVER

UNSET: Any = object()
#: Where a client has its `Locks`. Both refer to each other, so a table of them would keep every client for ever.
ATTRIBUTE = "_rlock_locks"


class Grip:
    """One level that somebody may release, once: two threads may try."""

    __slots__ = ("locks", "tenure", "right", "calls", "taker")

    def __init__(self, locks: Any, tenure: Tenure, taker: Any = None):
        self.locks, self.tenure, self.right = locks, tenure, [None]
        self.taker = None if taker is None else weakref.ref(taker)  # the thread or task that it is for, if it is named after that
        self.calls: list[Callable[[], Any]] = []

    @property
    def is_released(self) -> bool:
        return not self.right or self.tenure.state == "released"

    def once(self) -> None:
        """Takes the right to release it."""
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
        """It was released: what becomes of the levels below is not its business."""
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
        """Seconds until the deadline, counted from when the last request was sent; 0 if it is not held."""
        return max(0.0, (self._tenure.deadline - ms()) / 1000) if self.held else 0.0

    def on_lost(self, call: Callable[[], Any]) -> None:
        """Calls `call` once, when the hold is lost, on the package's thread or in the loop; here if it is lost already. It must not block."""
        if not self._listens(call):
            call()

    def _listens(self, call: Callable[[], Any]) -> bool:
        tenure = self._tenure
        with tenure.io.space.lock:
            if tenure.state == "lost":
                return False
            self._grip.calls.append(call)
            tenure.calls.append(call)
        return True

    def check(self) -> None:
        """Raises LockLost unless the hold is certain. For a step that cannot be undone, use the token."""
        if not self.held:
            raise LockLost(f"{self.key} is no longer held by {self.owner}")

    def _extends(self) -> None:
        if not self._grip.right:
            raise NotHeld(f"{self.key} was released before: there is nothing to extend")


def left(entered: dict[Any, list[Any]], me: Any, name: str) -> Any:
    """What the `with` has acquired that this thread or task leaves: its own newest entry.

    A generator may be finalized by another one than has entered. If several have, it could be the entry of one that is
    still inside.
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
    """That entry has been left."""
    for me, entries in list(entered.items()):
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del entered[me]


def keeps(error: Optional[BaseException], problem: BaseException, name: str) -> None:
    """What ends a `with` stays what it is: an error of the release becomes its context, and is logged."""
    log.warning("%s: %s: %s (the block has ended with %s)", name, type(problem).__name__, problem, type(error).__name__)
    if error is not None and error.__context__ is None and problem is not error:
        error.__context__ = problem


def seconds(wait: Any) -> Optional[float]:
    if wait is None or wait == FOREVER:
        return None
    if isinstance(wait, (int, float)) and not isinstance(wait, bool) and wait >= 0:
        return wait
    raise TypeError(f"wait must be a number of seconds, or None to wait forever, not {wait!r}")


class LockBase:
    mode = "WRITE"

    def __init__(
        self,
        locks: Any,
        key: Union[str, bytes],
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
        self._locks = locks
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
        """Whether this thread or task (or `owner`) holds it for certain."""
        tenure = self._tenure
        return tenure is not None and tenure.is_sure

    def _own_tenure(self) -> Tenure:
        if not self._options.reentrant:
            raise NotHeld(f"{self.key}: each acquisition has an owner of its own (reentrant=False): release the hold")
        tenure = self._tenure
        if tenure is None:
            raise NotHeld(f"{self.key} is not held by {self._options.owner or self._locks.owner()}")
        return tenure
