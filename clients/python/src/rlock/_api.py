"""The public interface that the synchronous and the asyncio package share."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from ._core import Options, Tenure, key_name, ms
from ._errors import LockLost, NotHeld
from ._machine import FOREVER

UNSET: Any = object()
#: Where a client has its `Locks`. Both refer to each other, so a table of them would keep every client for ever.
ATTRIBUTE = "_rlock_locks"


class HoldBase:
    """The result of one acquisition: one level of a lock."""

    __slots__ = ("_tenure", "_locks", "_is_released", "_calls", "__weakref__")

    def __init__(self, locks: Any, tenure: Tenure):
        self._locks, self._tenure, self._is_released = locks, tenure, False
        self._calls: list[Callable[[], Any]] = []

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
        return not self._is_released and self._tenure.is_sure

    @property
    def left(self) -> float:
        """Seconds until the deadline, counted from when the last request was sent; 0 if it is not held."""
        return max(0.0, (self._tenure.deadline - ms()) / 1000) if self.held else 0.0

    def on_lost(self, call: Callable[[], Any]) -> None:
        """Calls `call` once, when the hold is lost, on the package's thread or in the loop; here if it is lost already. It must not block."""
        tenure = self._tenure
        with tenure.io.space.lock:
            is_lost = tenure.state == "lost"
            if not is_lost:
                self._calls.append(call)
                tenure.calls.append(call)
        if is_lost:
            call()

    def check(self) -> None:
        """Raises LockLost unless the hold is certain. For a step that cannot be undone, use the token."""
        if not self.held:
            raise LockLost(f"{self.key} is no longer held by {self.owner}")

    def _once(self) -> None:
        if self._is_released or self._tenure.state == "released":
            raise NotHeld(f"{self.key} was released before, or before this process was forked")
        self._is_released = True

    def _forget(self) -> None:
        """It was released: what becomes of the levels below is not its business."""
        for call in self._calls:
            self._tenure.calls.remove(call)
        self._calls.clear()


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
    ):
        self._locks = locks
        self.key = key_name(key)
        self.wait = seconds(wait)
        mode = "READ" if limit is not None else self.mode
        self._options = Options(mode, lease, owner, limit, maxqueue, acks, session, upgrade, renew)

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
        tenure = self._tenure
        if tenure is None:
            raise NotHeld(f"{self.key} is not held by {self._options.owner or self._locks.owner()}")
        return tenure
