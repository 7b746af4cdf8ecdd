"""What may be left at the server when a request has ended, and how it is undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from .words import AGAIN, CLOSES, ENDS, GRANT, LATE, NIL, NOTHELD, OVER, REPLY, WAITING, Steps, Words, is_unknown, passed


@dataclass
class Left:
    """What requests may have left behind at the server."""

    in_doubt: bool = False  # something was sent, and its outcome is unknown or nobody has taken it
    lingers: bool = False  # something was never answered, and may still be executed
    token: Optional[int] = None  # of a grant that nobody takes


class Stopped(Exception):
    """The caller gave up, or the client was closed."""


class Undoing:
    """What an attempt and a release have in common: they can be stopped, and what they leave at the server is undone."""

    now = 0.0
    has_link = False  # of its own
    out: list[Words]
    until: Optional[float] = None  # when nothing that was granted can stand any more, once it is undone
    op: Words = ("start",)  # under way

    def __init__(self, lease: int, depth: int, left: Left):
        self.lease, self.depth, self.left = lease, depth, left
        self.steps: Any = self.run()

    def step(self, now: float, told: Words) -> list[Words]:
        """Takes what happened, and returns what follows from it."""
        self.now, self.out = now, []
        kind = told[0]
        try:
            if kind in ENDS[self.op[0]]:
                if kind == "taken":
                    self.op = OVER
                    self.say("free")
                else:
                    self.begin(self.steps.send(None if kind == "call" else told))
            elif kind == "cancel" or kind == "close":
                self.stop(kind)
            # Everything else belongs to an operation that was interrupted.
        except StopIteration as stop:
            self.op = stop.value or OVER
        return self.out

    def begin(self, op: Words) -> None:
        self.op = op
        self.out.append(op)

    def begin_undo(self) -> None:
        self.steps = self.undo()
        self.begin(next(self.steps))

    def stop(self, how: str) -> None:
        if self.op == OVER:
            return
        ends_soon = how == "close" and self.op != GRANT
        if self.steps.gi_frame is None or self.op[0] == "start":
            if self.op != GRANT:  # an interrupt has ended a step halfway
                self.left.in_doubt = self.left.lingers = self.has_link = True
            self.begin_undo()
        elif self.until is None:
            self.begin(self.steps.throw(Stopped("cancelled" if how == "cancel" else "closed")))
        if ends_soon and self.until is not None:
            self.until = min(self.until, self.now + CLOSES)

    def run(self) -> Steps:
        """Runs from the call to the end, or until it returns GRANT."""
        raise NotImplementedError

    def say(self, *output: Any) -> None:
        self.out.append(output)

    def undo(self, before: Optional[bool] = None) -> Steps:
        """Undoes whatever was sent, until the server has confirmed that or the lease has expired.

        If a request on a shared connection is in progress, `before` says whether anything was in doubt before it.
        """
        self.until, pause = self.now + self.lease + REPLY, LATE
        self.say("undo")
        if self.has_link:
            self.say("drop")  # a session that nobody takes ends with its connection
            self.has_link = False
        if before is not None:
            self.replied((yield "await", self.now + REPLY // 4), before)
        while self.now < self.until:
            is_undone = yield from self.undo_once()
            if is_undone is None or (is_undone and not self.left.lingers):
                break
            if is_undone:
                # Once more: the server may execute only now what it had not read yet.
                self.left = Left(in_doubt=True)
                yield "sleep", self.now + AGAIN
            else:
                yield "sleep", self.now + pause
                pause = min(2 * pause, 1000)
        self.say("free")

    def replied(self, outcome: Words, before: bool) -> None:
        """Handles the reply to a request that nobody waits for any more."""
        if outcome[0] == "token":
            self.left.token = outcome[1]
        elif outcome == NIL:
            self.left.in_doubt = False
        elif is_unknown(outcome):
            self.left.lingers = True
        elif outcome != WAITING:
            self.left.in_doubt = before

    def undo_once(self) -> Steps:
        """Returns whether it is undone, or None if that is refused."""
        left = self.left
        if not left.in_doubt and not left.lingers:
            return True
        if left.token is None:
            # A replica would answer a query as well, but it refuses this command.
            outcome = yield "send", ("cancel",), self.now + REPLY
            if outcome[0] not in ("token", "nil"):
                # A cancellation that arrives late would end a later wait.
                left.lingers |= is_unknown(outcome)
                return passed(outcome)
            outcome = yield "send", ("info",), self.now + REPLY
            if outcome[0] != "token":
                return outcome == NIL or passed(outcome)
            left.token = outcome[1]
        # By its token: if this request arrives late, it ends no later hold.
        outcome = yield "send", ("release", left.token, self.depth - 1), self.now + REPLY
        return outcome[0] in ("token", "nil") or outcome == NOTHELD or passed(outcome)
