"""Who holds a lock (RLOCK.AWAIT): the leader of an election, and the end of one's own hold."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from ._core import LATE, LOOKS, Steps, Tenure, ms
from ._drive import question
from ._errors import Broken, Closed, Refused
from ._inbox import Post, awaits
from ._machine.words import FIRST_PAUSE, LONGEST_PAUSE, LOST, PASSING, Words

#: Holds that end sooner, in ms, are not observed.
BRIEF = 100


class Leader(NamedTuple):
    """The leader of an election."""

    token: int
    owner: str

    @property
    def name(self) -> str:
        """The name that its election was given."""
        return self.owner.rpartition("/")[0]


def asked(io: Any, key: str, token: Optional[int], block: int, is_over: Callable[[], bool]) -> Steps:
    """Like `awaits`, which it calls again after errors that pass, until it `is_over`."""
    pause, where = FIRST_PAUSE / 1000, None
    while not is_over() and not io.is_closing:
        try:
            return (yield from awaits(io, key, token, block, where))
        except Refused as refused:
            # A demoted primary says "cannot block on a replica" as long as its address is still in use.
            if refused.code not in PASSING and "cannot block on a replica" not in str(refused):
                raise
            where = refused.where if refused.code == "ASK" else None
        except Broken:
            where = None
        yield io.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE / 1000)
    return ("time",)


class ObserverBase:
    def __init__(self, locks: Any, key: str):
        self.locks, self.io, self.key = locks, locks.io, key
        self.post: Optional[Post] = None
        self.token: Optional[int] = None
        self.is_over = False

    def _next(self) -> Steps:
        """The current leader, if it differs from that of the last call."""
        while not self.is_over:
            if self.io.is_closing:
                raise Closed(f"{self.key}: closed")
            told = yield from asked(self.io, self.key, self.token, int(LOOKS * 1000), lambda: self.is_over)
            if isinstance(told, Post):
                self.post = told
                self.post.inbox.looks()
                told = ("time",) if self.is_over else (yield self.io.told(self.post, LOOKS + LATE))
                self.post.forget()
            if told[:2] == ("message", "holder"):
                self.token = told[2]
                return Leader(self.token, told[3]) if told[2] else None
            if told[:2] == ("message", "refused") and told[2].code not in PASSING:
                raise told[2]
        return None

    def close(self) -> None:
        """Ends the iteration."""
        self.locks._whole(self._close)

    def _close(self) -> None:
        self.is_over = True
        if self.post is not None:
            self.post.put(LOST)


class Watch:
    """Notices the end of a hold as soon as the server does."""

    post: Optional[Post] = None

    def __init__(self, locks: Any, tenure: Tenure):
        self.locks, self.tenure = locks, tenure
        locks._keeper.begin(locks.io, self.asks())

    def asks(self) -> Steps:
        tenure, io = self.tenure, self.tenure.io
        yield io.sleep(max(0.0, (tenure.since + BRIEF - ms()) / 1000))
        is_over = lambda: tenure.state != "held" or io.is_closing  # noqa: E731
        try:
            told = yield from asked(io, tenure.seat.key, tenure.token, tenure.options.lease_ms, is_over)
        except Refused:
            return  # its renewals notice the end as well
        if isinstance(told, Post):
            self.post = told
            told.then(self.hears)
        else:
            self.ended(told)

    def hears(self) -> None:
        post = self.post  # another thread may leave it
        told = ("time",) if post is None else post.take()
        if told != ("time",):
            self.leave()
            self.ended(told)

    def ended(self, told: Words) -> None:
        if self.tenure.state == "held":
            if told[:2] == ("message", "holder"):
                self.locks._keeper.lose(self.tenure)
            elif told[:2] != ("message", "refused") or told[2].code in PASSING:
                self.locks._keeper.begin(self.tenure.io, self.asks())

    def leave(self) -> None:
        post, self.post = self.post, None
        if post is not None:
            post.forget()


def observe(locks: Any, tenure: Tenure) -> None:
    """From now on, the end of a write lock is noticed at once."""
    root = tenure.root
    if root.watch is None and root.held and root.seat.mode == "WRITE":
        root.watch = Watch(locks, root)


def leader(io: Any, key: str) -> Steps:
    """The current leader."""
    reply = yield from question(io, key, ["RLOCK.AWAIT", key, 0])
    return Leader(*reply) if reply else None
