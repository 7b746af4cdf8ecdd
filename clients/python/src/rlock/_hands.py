"""The package's own threads do what must not be interrupted halfway.

In the main thread, a signal's handler may raise an exception between any two steps of the interpreter: Ctrl-C, a
time limit. So the main thread only hands over a call, waits, and takes the result, each in one step that cannot be
interrupted: a method of a queue, a lock or a list. If it is interrupted, it abandons the call, and the thread that
executes the call gives back whatever it acquired. Weak references, whose callbacks are such a step as well, detect a
result that is destroyed on its way to the caller, and a `with` that ends without `__exit__`. In other threads, no
handler runs: they do their work themselves.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import operator
import queue
import sys
import threading
import weakref
from typing import Any, Callable, Optional, TypeVar

from ._core import LATE, log, now
from ._errors import LockError, NotHeld

F = TypeVar("F", bound=Callable[..., Any])

#: How often a thread checks whether its caller has left.
SLICE = 0.05


class Gone(BaseException):
    """The caller has left."""


class Me:
    """A user's thread."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.name = ""  # as an owner
        self.entry: Any = None  # of the `with` that is about to begin


class _Here(threading.local):
    me: Optional[Me] = None
    call: "Optional[Call]" = None  # that may be left


_here = _Here()


def who() -> Me:
    """The user's thread on whose behalf this thread works."""
    if _here.me is None:
        _here.me = Me()
    return _here.me


def acquires(lock: Any, timeout: float) -> bool:
    """Acquires a lock in time. Raises Gone if the caller leaves meanwhile."""
    call = _here.call
    if call is None or timeout <= 0:
        return lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))  # type: ignore[no-any-return]
    return _sliced(call, lambda pause: lock.acquire(timeout=pause), timeout)


def happens(wait: Callable[[float], Any], timeout: float) -> bool:
    """Whether `wait` succeeds in time. Raises Gone if the caller leaves meanwhile."""
    call = _here.call
    if call is None or timeout <= 0:
        return bool(wait(min(max(timeout, 0.0), threading.TIMEOUT_MAX)))
    return _sliced(call, wait, timeout)


def _sliced(call: "Call", wait: Callable[[float], Any], timeout: float) -> bool:
    until = now() + timeout
    while True:
        if call.is_left:
            raise Gone
        left = until - now()
        if wait(min(max(left, 0.0), SLICE)):
            return True
        if left <= SLICE:
            return False


class Call:
    """A call that the main thread waits for. `undo` gives the result back; without it, the call is completed even if
    its caller leaves."""

    __slots__ = ("me", "work", "arguments", "undo", "context", "is_over", "is_gone", "out", "error", "is_left", "is_done")

    def __init__(self, undo: Optional[Callable[[Any], Any]], work: Callable[..., Any], arguments: tuple[Any, ...]):
        self.me, self.undo, self.work, self.arguments = who(), undo, work, arguments
        self.context = contextvars.copy_context()
        self.out: list[Any] = []
        self.error: Optional[BaseException] = None
        self.is_left = self.is_done = False
        self.is_over, self.is_gone = threading.Lock(), threading.Lock()
        self.is_over.acquire()
        self.is_gone.acquire()

    def run(self) -> Any:
        """Returns the lock that is released when the call has ended."""
        _here.me, _here.call = self.me, self if self.undo is not None else None
        try:
            if not self.is_left or self.undo is None:
                self.out.append(self.context.run(self.work, *self.arguments))
        except BaseException as error:
            self.error = error
        finally:
            _here.me = _here.call = None
            self.work, self.arguments = _nothing, ()
        self.is_done = True
        return self.over

    def over(self) -> None:
        self.is_over.release()
        if self.is_left:
            _hands.todo.put(Leaving(self))

    def leave(self) -> None:
        """Nobody will take the result. If it exists already, exactly one thread gives it back."""
        if not self.is_done:
            return  # then `run` comes here
        try:
            result = self.out.pop()
        except IndexError:
            if isinstance(self.error, LockError) and self.undo is None:
                log.warning("of what was interrupted: %s: %s", type(self.error).__name__, self.error)
        else:
            if self.undo is not None and result is not None:
                _here.me = self.me
                quietly(self.undo, result)
                _here.me = None
        with contextlib.suppress(RuntimeError):  # the other one was here
            self.is_gone.release()


def _nothing() -> None:
    pass


class Leaving:
    def __init__(self, call: Call):
        self.run = call.leave


def quietly(work: Callable[..., Any], *arguments: Any) -> None:
    """What nobody waits for."""
    try:
        work(*arguments)
    except NotHeld:  # it was released in another way as well
        pass
    except LockError as error:
        log.warning("of what was interrupted: %s: %s", type(error).__name__, error)


class Hands:
    """The threads: one that is reused, and others that help while it is busy. They end with the process."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.more: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the helpers
        self.free, self.lock = 0, threading.Lock()  # helpers that wait
        self.is_there = False
        self.last: Optional[Call] = None

    def start(self) -> bool:
        """Starts a thread; returns whether there is one."""
        try:
            threading.Thread(target=self._work, name="rlock-hand", daemon=True).start()
        except RuntimeError:  # the process has no more threads, or ends
            return False
        self.is_there = True
        return True

    def help(self) -> None:
        """Lets another thread do the next call."""
        if self.free == 0:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._help, name="rlock-hand", daemon=True).start()
        self.more.put(None)

    def _work(self) -> None:
        while True:
            # A task reports its end last, just before `get` releases the interpreter, which the woken thread needs.
            self._do(self.todo.get())()

    def _help(self) -> None:
        while True:
            with self.lock:
                if self.free > 1:
                    return
                self.free += 1
            self.more.get()
            with self.lock:
                self.free -= 1
            with contextlib.suppress(queue.Empty):
                self._do(self.todo.get_nowait())()

    @staticmethod
    def _do(item: Any) -> Callable[[], None]:
        try:
            done = item[0].died(item[1]) if isinstance(item, tuple) else item.run()
            return done or _nothing
        except BaseException:
            log.exception("while doing what a thread has handed over")
            return _nothing


_hands = Hands()
_main = threading.main_thread().ident


def is_hand() -> bool:
    """Whether this thread executes a call for the main thread."""
    return _here.call is not None


def forked() -> None:
    """The child's only thread is its main thread, and a different user's thread."""
    global _hands, _main
    _hands, _main = Hands(), threading.get_ident()
    _here.me = _here.call = None


def whole(undo: Optional[Callable[[Any], Any]], work: Callable[..., Any], *arguments: Any) -> Any:
    """Returns or raises what `work` does. A signal's handler that raises cannot interrupt `work` halfway."""
    if threading.get_ident() != _main or sys.is_finalizing():
        return work(*arguments)
    hands = _hands
    if not hands.is_there and not hands.start():
        return work(*arguments)
    call = Call(undo, work, arguments)
    last, hands.last = hands.last, call
    try:
        hands.todo.put(call)
        if last is not None and not last.is_done:  # a signal's handler has come in between, or has raised
            hands.help()
        call.is_over.acquire()
        if call.error is None:
            return call.out.pop()
    except BaseException:
        call.is_left = True
        hands.todo.put(Leaving(call))
        hands.help()
        call.is_gone.acquire(timeout=LATE)
        raise
    error, call.error = call.error, None
    try:
        raise error
    finally:
        del error


#: The code of the functions that return a handle to the user.
RETURNING: set[Any] = {whole.__code__}


def returning(function: F) -> F:
    """Decorates a method that returns a handle: if the handle never gets to the caller, it is given back."""
    RETURNING.add(function.__code__)
    return function


class Arrival:
    """Detects where a handle is destroyed: if that is in a function that was to return it, the caller never got it."""

    def __init__(self, give_back: Callable[[], Any]):
        self.give_back = give_back

    def watch(self, handle: Any) -> Any:
        # To a signal's handler, this is one step: `next` puts a pair into the queue: this object, and the code that is
        # running. At the end of the interpreter, no code is running anymore, and `next` returns its default instead.
        codes = map(operator.attrgetter("f_code"), map(sys._getframe, iter(sys.is_finalizing, True)))
        note = map(_hands.todo.put, zip(itertools.repeat(self), codes))
        return weakref.ref(handle, functools.partial(next, note))

    def died(self, code: Any) -> None:
        if code in RETURNING:
            quietly(self.give_back)


class Entry:
    """What a `with` releases at its end. It lives as long as the interpreter refers to its `__exit__`, to which nothing
    else refers: however the `with` ends, `__exit__` is destroyed, and anything that is not released yet is released
    then.
    """

    __slots__ = ("leave", "handle", "exits", "voucher", "me", "watch")

    def __init__(self, leave: Callable[..., None], handle: Any = None):
        self.leave, self.handle, self.me = leave, handle, who()
        self.exits: list[Any] = []
        self.voucher: Optional[Voucher] = None
        self.watch: Any = None

    def exit(self) -> Any:
        """The `__exit__` of the hold."""
        exits = functools.partial(_leave, self)
        self.voucher = Voucher(exits, _hands.todo.put)
        self.voucher.entry = self
        return exits

    def offer(self) -> Any:
        """Returns its `__exit__`, in one step, and keeps no reference to it."""
        self.exits.append(self.exit())
        late = itertools.repeat(_late)
        return functools.partial(next, itertools.chain(map(list.pop, itertools.repeat(self.exits, 1)), late))

    @property
    def is_coming(self) -> bool:
        return self.handle is None and self.voucher is not None and self.voucher() is not None

    def over(self) -> None:
        """Forgets a hold that was released."""
        self.voucher = self.watch = None
        self.exits.clear()


def comes(leave: Callable[..., None]) -> Any:
    """The `__exit__` of a `with` that is about to begin; `coming` then returns its entry."""
    me = who()
    me.entry = Entry(leave)
    return me.entry.exit()


def coming(leave: Callable[..., None]) -> Entry:
    """The entry of the `with` that begins now, if it has got its `__exit__`; otherwise, an entry that belongs to no
    `with`."""
    me = who()
    entry, me.entry = me.entry, None
    return entry if entry is not None and entry.leave == leave and entry.is_coming else Entry(leave)


def _leave(entry: Entry, kind: Any = None, error: Optional[BaseException] = None, trace: Any = None) -> None:
    whole(None, entry.leave, entry, error)


def _late(*_: Any) -> None:
    raise NotHeld("it was left before")


class Voucher(weakref.ref):  # type: ignore[type-arg]
    """For an `__exit__` that was destroyed, and perhaps never called."""

    __slots__ = ("entry",)
    entry: Entry

    def run(self) -> None:
        entry = self.entry
        if entry.voucher is self and entry.handle is not None:
            _here.me = entry.me
            quietly(entry.leave, entry, None)
            _here.me = None


class Exit:
    """The `__exit__` of a lock object: a new one for each `with`."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __get__(self, lock: Any, kind: Any = None) -> Any:
        return self.function if lock is None else lock._exit_of()


def exits(function: F) -> F:
    return Exit(function)  # type: ignore[return-value]


class Brief(property):
    """An attribute that the interpreter reads in one step. As an attribute of the class, it is called with the object."""

    def __call__(self, owner: Any, *arguments: Any) -> Any:
        return self.__get__(owner)(*arguments)


#: The methods of a handle, which are stored in its slots.
ENTERS: Any = Brief(operator.attrgetter("_enters"))
LEAVES: Any = Brief(operator.methodcaller("_exits"))
