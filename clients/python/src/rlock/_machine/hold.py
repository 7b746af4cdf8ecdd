"""A hold, from its grant to its end."""

from __future__ import annotations

from .words import ACKS, ENDS, FOREVER, LOST, NOTHELD, PASSING, REPLY, Words, is_unknown


class Holding:
    """A hold from its grant to its end, shared by all levels: renewed, lost or released."""

    def __init__(self, token: int, lease: int, sent: float, has_acks: bool = False, renews: bool = True, margin: int = 0):
        """The lease counts from `sent`, when its request was sent; the loss is reported `margin` before its deadline."""
        self.token, self.lease, self.has_acks, self.renews, self.margin = token, lease, has_acks, renews, margin
        self.at, self.depth = "start", 1
        self.sent = self.deadline = 0.0
        self.renews_at = FOREVER
        self.is_tying = self.is_releasing = self.is_untied = False
        self.is_unsure = False  # a request to tie it may still be executed, or has tied another hold
        self.out: list[Words] = []
        self.renewed(sent)

    def renewed(self, sent: float) -> None:
        # The server counts from when it read the request, which was later than `sent`.
        self.deadline, self.pause = max(self.deadline, sent + self.lease), 20
        if self.renews:
            self.renews_at = sent + self.lease // 3

    @property
    def limit(self) -> float:
        """The time at which the loss is reported."""
        return self.deadline - self.margin

    def by(self, since: float, takes: int) -> float:
        """A slow renewal is repeated while there is time."""
        return min(since + min(takes, max(50, self.lease // 6)), self.limit)

    def step(self, now: float, told: Words) -> list[Words]:
        """Takes what happened, and returns what follows from it."""
        self.out, kind, at = [], told[0], self.at
        if at == "done":
            pass
        elif kind == "released":
            self.at = "done"
            self.out.append(("done",))
        elif kind == "gone":
            self.leave(at in ("own", "wait"))
            self.lose()
        elif kind == "releasing":
            self.is_releasing = True
        elif kind == "extend":
            self.deadline = max(self.deadline, told[1] + self.lease)
        elif kind == "close":
            self.renews, self.renews_at, self.is_untied = False, FOREVER, False
            self.leave(at in ("own", "wait"))
            self.idle(now)
        elif kind == "untied":
            self.is_untied = True
            self.out.append(("doubt",))
            if at == "idle":
                self.renews_at = now
                self.idle(now)
        elif (at, kind) in (("start", "call"), ("idle", "time")):
            self.idle(now)
        elif at == "seat" and kind == "seat":
            if told[1] is None:
                self.later(now)
            else:
                self.at, self.depth, self.is_tying = "open", told[1], True
                self.out.append(("open", min(now + REPLY, self.limit)))
        elif at in ENDS and kind in ENDS[at]:
            self.ended(now, at, told)
        return self.out

    def ended(self, now: float, at: str, told: Words) -> None:
        """An operation that it asked for has ended."""
        outcome = told[1:] if told[0] in ("own", "message") else told
        kind = outcome[0]
        if kind == "opened":
            self.begin(now)
        elif kind == "listening":
            self.ask(now)
        elif at in ("open", "listen"):
            self.fails_to_tie(now) if self.is_tying else self.later(now)
        elif kind == "waiting":
            self.at = "wait"
            self.out.append(("wait", self.by(self.sent, ACKS)))
        elif self.is_tying:
            self.tied(now, outcome if at == "own" or told[0] == "message" else ("silent",))
        elif told[0] == "own":
            pass
        elif kind == "lost":
            self.begin(now)
        elif kind == "token":
            self.renewed(self.sent)
            if not self.is_untied or self.is_releasing:
                return self.idle(now)
            self.at = "seat"
            self.out.append(("seat",))
        elif outcome != NOTHELD:
            self.later(now)
        elif self.is_releasing:
            self.renews_at = FOREVER
            self.idle(now)
        else:
            self.lose()

    def idle(self, now: float) -> None:
        if now >= self.limit:
            self.lose()
        elif now >= self.renews_at:
            self.begin(now)
        else:
            self.at = "idle"
            self.out.append(("sleep", min(self.renews_at, self.limit)))

    def begin(self, now: float) -> None:
        """Sends the renewal, after it has subscribed to the channel for replies that wait for acknowledgments."""
        if not self.has_acks:
            return self.ask(now)
        self.at = "listen"
        self.out.append(("listen", self.by(now, REPLY)))

    def ask(self, now: float) -> None:
        self.sent = now
        if self.is_tying:
            self.at = "own"
            self.out.append(("own", None, True, self.depth, min(now + REPLY, self.limit)))
        else:
            self.at = "send"
            self.out.append(("send", ("renew", self.token), self.by(now, REPLY)))

    def later(self, now: float) -> None:
        """Schedules another renewal after a moment."""
        self.renews_at = now + min(self.pause, max(1, self.lease // 12))
        self.pause *= 2
        self.idle(now)

    def fails_to_tie(self, now: float) -> None:
        self.leave()
        self.later(now)

    def tied(self, now: float, outcome: Words) -> None:
        if outcome == ("token", self.token):
            self.is_untied = self.is_tying = False
            self.renewed(self.sent)
            self.out += [("leave",), ("tied",)]
            self.idle(now)
        elif outcome[0] == "unsent" or (outcome[0] == "refused" and outcome[1] in PASSING):
            self.fails_to_tie(now)
        else:
            # The session is lost: the server has not tied the hold, or has tied it to the connection that is closed
            # now. The request may also have tied another hold, which is then undone.
            self.leave(is_unknown(outcome) or outcome[0] == "token")
            self.lose()

    def leave(self, is_unsure: bool = False) -> None:
        """Gives up the seat that it has while the hold is being tied to a new connection."""
        if self.is_tying:
            self.is_tying, self.is_unsure = False, is_unsure
            self.out += [("drop",), ("leave",)]

    def lose(self) -> None:
        self.at = "done"
        self.out += [("tell", LOST), ("done",)]
