"""What a user gets for an acquisition: what both packages share."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Optional

from ._core import Steps, Tenure, log, ms
from ._errors import LockError, LockLost, NotHeld
from ._watch import observe


class Grip:
    """One level, which can be released only once: two threads may try."""

    __slots__ = ("locks", "tenure", "right", "calls", "taker", "permit")

    def __init__(self, locks: Any, tenure: Tenure, taker: Any = None):
        self.locks, self.tenure, self.right = locks, tenure, [None]
        self.taker = None if taker is None else weakref.ref(taker)  # the thread or task that it is for, if it is named after that
        self.calls: list[Callable[[], Any]] = []
        self.permit: Any = None  # the hold that ends with it: of one of many keys

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

    def releasing(self) -> Steps:
        self.once()
        try:
            yield from self.locks._releasing(self.tenure)
        finally:
            self.forget()
            if self.permit is not None:
                yield from self.locks._permit_back(self.permit)


def releasing(grips: list[Grip]) -> Steps:
    """Releases them all, the last one first, and raises the first error."""
    problem: Optional[LockError] = None
    for grip in reversed(grips):
        try:
            yield from grip.releasing()
        except LockError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


class HandleBase:
    """What the user gets for one or several locks. Each package adds how it waits for the server."""

    __slots__ = ()
    #: Calls a function that nothing may interrupt halfway.
    _whole: Callable[..., Any] = staticmethod(at_once)

    @property
    def lost(self) -> Any:
        """An event that is set when the hold is lost, at its deadline at the latest."""

    def release(self) -> Any:
        """Releases one level of each lock, once. Raises LockLost if a hold ended before, and Unavailable if the outcome
        is unknown after the `patience`; then it is released later.
        """

    def extend(self, lease: float) -> Any:
        """Makes the hold last at least `lease` seconds from now; never shortens it. Raises LockLost if it has ended."""

    def on_lost(self, call: Callable[[], Any]) -> None:
        """Calls `call` once, when the hold is lost, on the package's thread or in the loop; at once if it is lost
        already. `call` must not block."""
        if not self._whole(self._listens, call):
            call()

    # Of one or of several:

    @property
    def _grips(self) -> list[Grip]:
        raise NotImplementedError

    @property
    def _locks(self) -> Any:
        raise NotImplementedError

    @property
    def _name(self) -> str:
        raise NotImplementedError

    def _event(self, kind: Callable[[], Any]) -> Any:
        """The event of `lost`, of that kind."""
        raise NotImplementedError

    def _listens(self, call: Callable[[], Any]) -> bool:
        """Returns False if it is lost already."""
        raise NotImplementedError

    def _extending(self, lease: float) -> Steps:
        raise NotImplementedError


class HoldBase(HandleBase):
    """The result of one acquisition: one level of a lock."""

    __slots__ = ("_grip", "__weakref__")

    def __init__(self, grip: Grip):
        self._grip = grip

    @property
    def _tenure(self) -> Tenure:
        return self._grip.tenure

    @property
    def _grips(self) -> list[Grip]:
        return [self._grip]

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

    _name = key

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

    def _listens(self, call: Callable[[], Any]) -> bool:
        tenure = self._tenure
        with tenure.io.space.lock:
            if tenure.state == "lost":
                return False
            self._grip.calls.append(call)
            tenure.calls.append(call)
        observe(self._locks, tenure)
        return True

    def _event(self, kind: Callable[[], Any]) -> Any:
        signals = self._tenure.signals
        return signals[0] if signals else self._whole(self._signal, kind)

    def _signal(self, kind: Callable[[], Any]) -> Any:
        observe(self._locks, self._tenure)
        return self._tenure.signal(kind)

    def check(self) -> None:
        """Raises LockLost unless the hold is certain. For a step that cannot be undone, let the resource check the
        token."""
        if not self.held:
            raise LockLost(f"{self.key} is no longer held by {self.owner}")

    def _extending(self, lease: float) -> Steps:
        if not self._grip.right:
            raise NotHeld(f"{self.key} was released before: there is nothing to extend")
        return self._locks._extending(self._tenure, lease)  # type: ignore[no-any-return]


class HoldsBase(HandleBase):
    """The hold of several locks: of those granted together, and separately of those that their owner held before."""

    def __init__(self, keys: list[str], holds: list[Any]):
        self.keys, self._holds = keys, holds
        self._lost: Any = None

    @property
    def _grips(self) -> list[Grip]:
        return [each._grip for each in self._holds]

    @property
    def _locks(self) -> Any:
        return self._holds[0]._locks

    @property
    def _name(self) -> str:
        return ", ".join(self.keys)

    @property
    def token(self) -> int:
        """The fencing token. A lock that the owner held before has an older one: `hold.tokens[key]`."""
        tokens: list[int] = [each.token for each in self._holds]
        return max(tokens)

    @property
    def tokens(self) -> dict[str, int]:
        """The token of each lock."""
        return {key: each.token for each in self._holds for key in getattr(each._tenure.seat, "parts", (each.key,))}

    @property
    def owner(self) -> str:
        return self._holds[0].owner  # type: ignore[no-any-return]

    @property
    def held(self) -> bool:
        """Whether all are certainly held."""
        return all(each.held for each in self._holds)

    @property
    def left(self) -> float:
        """Seconds until the first deadline; 0 if they are not all held."""
        return min(each.left for each in self._holds) if self.held else 0.0

    def __repr__(self) -> str:
        return f"<{', '.join(map(repr, self.keys))} held by {self.owner}, token {self.token}, {self.left:.1f} s left>"

    def _listens(self, call: Callable[[], Any]) -> bool:
        first = threading.Lock()  # two may be lost in two threads

        def once() -> None:
            if first.acquire(blocking=False):
                call()

        for each in self._holds:
            each.on_lost(once)
        return True

    def _event(self, kind: Callable[[], Any]) -> Any:
        if self._lost is None:
            self._lost = kind()
            self.on_lost(self._lost.set)
        return self._lost

    def _extending(self, lease: float) -> Steps:
        for hold in self._holds:
            yield from hold._extending(lease)

    def check(self) -> None:
        """Raises LockLost unless all are certainly held."""
        if not self.held:
            raise LockLost(f"{self._name} are no longer held by {self.owner}")


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
