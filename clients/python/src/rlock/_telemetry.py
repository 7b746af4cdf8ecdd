"""Counters of lock use, and the user's listener, which can neither stop nor delay the package."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
import weakref
from typing import Any, Callable, NamedTuple, Optional

from ._core import log, ms

#: How many events wait at most for a slow listener. Further ones are dropped, and counted.
MOST = 1000
#: Seconds without an event after which the listener's thread ends.
IDLE = 10.0
#: Seconds for which `close` waits until the listener has got all events.
LAST = 0.1


class Waited(NamedTuple):
    """An acquisition that has ended."""

    key: str  # of several locks, all keys, separated by ", "
    seconds: float
    acquired: bool
    at: float  # when it ended, in seconds since 1970


class Held(NamedTuple):
    """A hold that has ended."""

    key: str
    seconds: float
    at: float


class Listener:
    """Override the methods for the events that you need. A thread of the package calls them, one event at a time.

    If they raise, that is logged once, and counted. While the listener is busy, events wait; if 1000 wait, further
    events are dropped and counted. `waited` runs in the context (`contextvars`) of the call that waited.
    """

    def waited(self, event: Waited) -> None:
        """An acquisition ended, with or without the lock."""

    def held(self, event: Held) -> None:
        """A hold was released."""

    def lost(self, event: Held) -> None:
        """A hold was lost."""


class Counts(NamedTuple):
    """The current numbers of a `Locks`, and how much has been lost or has failed."""

    held: int  # holds at the moment
    waiting: int  # acquisitions under way
    lost: int  # holds that were lost
    failed_renewals: int  # requests to renew a hold that were refused or not answered
    unreported: int  # events that the listener did not get, or at which it failed


class Waiting:
    """An acquisition that has begun and not ended."""

    def __init__(self, telemetry: "Telemetry", key: str):
        self.telemetry, self.key, self.start, self.is_over = telemetry, key, ms(), False
        self.context = contextvars.copy_context() if telemetry.listener else None
        telemetry.waits.add(self)

    def end(self, acquired: bool) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.telemetry.waits.discard(self)
        if self.telemetry.listener is not None:
            event = Waited(self.key, (ms() - self.start) / 1000, acquired, time.time())
            self.telemetry.tell(self.context, self.telemetry.listener.waited, event)

    def goes_on(self) -> None:
        """It continues elsewhere, where its end is reported."""
        self.is_over = True
        self.telemetry.waits.discard(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.goes_on()
        else:
            self.end(False)


class Telemetry:
    """Of one `Locks`."""

    def __init__(self, listener: Optional[Listener]):
        self.listener = listener
        # An acquisition that was interrupted anywhere must not be counted forever.
        self.waits: "weakref.WeakSet[Waiting]" = weakref.WeakSet()
        self.losses = self.failed_renewals = self.unreported = 0
        self.has_failed = False
        self.forked()

    def forked(self) -> None:
        """The thread belongs to the parent alone."""
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.running = threading.Lock()  # taken while the thread is there
        self.waits.clear()

    def ended(self, key: str, since: int, is_lost: bool) -> None:
        """A hold."""
        self.losses += is_lost
        if self.listener is not None:
            call = self.listener.lost if is_lost else self.listener.held
            self.tell(None, call, Held(key, (ms() - since) / 1000, time.time()))

    def tell(self, context: Optional[contextvars.Context], call: Callable[[Any], Any], event: Any) -> None:
        if self.events.qsize() >= MOST:
            self.unreported += 1
            return
        self.events.put((context or contextvars.Context(), call, event))
        if self.running.acquire(blocking=False):
            threading.Thread(target=self._tell, name="rlock-listener", daemon=True).start()

    def _tell(self) -> None:
        while True:
            try:
                context, call, event = self.events.get(timeout=IDLE)
            except queue.Empty:
                self.running.release()
                if self.events.empty() or not self.running.acquire(blocking=False):
                    return
                continue
            try:
                context.run(call, event)
            except BaseException:  # SystemExit too ends nothing here
                self.unreported += 1
                if not self.has_failed:
                    self.has_failed = True
                    log.exception("the listener failed; this is logged once")

    def told(self) -> threading.Event:
        """Set when the listener has got all events until now."""
        done = threading.Event()
        if self.listener is None or self.events.qsize() >= MOST:
            done.set()
        else:
            self.tell(None, lambda _: done.set(), None)
        return done
