"""The release of one level."""

from __future__ import annotations

from .undo import Left, Stopped, Undoing
from .words import FIRST_PAUSE, LATE, LONGEST_PAUSE, LOST, NOTHELD, RELEASED, REPLY, UNAVAILABLE, Steps, is_unknown, passed


class Release(Undoing):
    """The release of one level by an owner that has its seat. It also undoes a level whose release has an unknown
    outcome."""

    is_unsure = False

    def __init__(self, patience: int, lease: int, depth: int, token: int, deadline: float, lingers: bool):
        # Until more is known. It lingers if a request of the hold's attempts was never answered.
        super().__init__(lease, depth, Left(True, lingers, token))
        self.perseveres, self.deadline = patience, deadline

    def run(self) -> Steps:
        left = self.left
        try:
            told = yield from self.asks()
        except Stopped as stopped:
            told = (str(stopped),)
            self.is_unsure |= self.op[0] == "send"
        if told == RELEASED:
            # A level below has the same token: a late release by token would end it.
            left.token, left.lingers = None, left.lingers and self.depth == 1
        left.lingers = left.lingers or self.is_unsure
        self.say("tell", told)
        if told == LOST or (left.token is None and not left.lingers):
            self.say("free")
        else:
            # No other request uses this name until this one is known to have been executed.
            yield from self.undo()

    def stop(self, how: str) -> None:
        if how == "cancel" and self.op[0] == "start" and self.steps.gi_frame is not None:
            # Nobody waits for it, and no operation was interrupted.
            self.say("tell", ("cancelled",))
            self.begin_undo()
        else:
            super().stop(how)

    def asks(self) -> Steps:
        """Returns the result for the caller."""
        token, patience, pause = self.left.token, self.now + self.perseveres, FIRST_PAUSE
        if self.now >= self.deadline:
            return LOST
        while True:
            outcome = yield "send", ("release", token, self.depth - 1), min(self.now + REPLY, patience + LATE)
            if outcome == NOTHELD and not (self.is_unsure and self.depth == 1 and self.now < self.deadline):
                return LOST
            if outcome[0] in ("token", "nil") or outcome == NOTHELD:  # an earlier one released it, and its reply was lost
                return RELEASED
            if passed(outcome) is None:
                return outcome
            self.is_unsure |= is_unknown(outcome)
            why = ("noreplicas",) if outcome == ("refused", "NOREPLICAS") else UNAVAILABLE
            if self.now < patience:
                yield "sleep", min(patience, self.now + pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
            if self.now >= patience:
                return why
