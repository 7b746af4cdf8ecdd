"""One acquisition."""

from __future__ import annotations

from typing import Optional

from .undo import Left, Stopped, Undoing
from .words import (
    ACKS, AGAIN, AGAIN_NOW, AHEAD, FIRST_PAUSE, FOREVER, GRANT, HOPS, LATE, LONGEST_PAUSE, LOOKS, LOST, NIL, NOTHELD, PASSING, REPLY,
    UNAVAILABLE, WAITING, Steps, Words, is_unknown,
)


class Attempt(Undoing):
    """One acquisition of an owner that has its seat. It lasts until the request is granted, refused or out of time, and
    nothing is left to undo."""

    is_asked = False  # the operation under way, or the latest one, is a request
    had_doubt = False  # before that
    is_busy = False  # nothing has gone wrong since the server said that the lock is not free
    sent = 0.0  # when it was sent
    patience = FOREVER  # when trouble is believed; if it waits, its wait ends then
    served = 0.0  # when a server last decided a request or let it wait; at first, when it began
    pause = FIRST_PAUSE

    def __init__(
        self,
        wait: float,  # 0 is not at all
        patience: int,  # how long it is repeated if it does not wait
        outage: float,  # after how long without a server it gives up
        lease: int,
        depth: int = 1,
        below: Optional[int] = None,  # the token of the levels below
        hears: bool = False,  # the channel of its key is subscribed
        session: bool = False,
        has_acks: bool = False,
    ):
        super().__init__(lease, depth, Left())
        self.waits, self.perseveres, self.outage, self.below, self.has_acks = wait, patience, outage, below, has_acks
        # If this connection ended, the levels below would end too.
        self.session = session and depth == 1
        # Whether the next request does not wait, so that it is answered at once.
        self.asks_first = not has_acks and not (wait and hears)

    def run(self) -> Steps:
        self.patience, self.served, left = self.now + (self.waits or self.perseveres), self.now, self.left
        is_under_way = False
        try:
            told = yield from self.asks()
            if told[0] == "granted":
                self.say("tell", told)
                return GRANT
        except Stopped as stopped:
            told, is_under_way = (str(stopped),), self.op[0] in ("send", "own")
        if self.has_link and not left.in_doubt:
            self.has_link = False
            self.say("keep")
        self.say("tell", told)
        left.lingers |= is_under_way and self.session
        if left.in_doubt or left.lingers:
            yield from self.undo(self.had_doubt if is_under_way and not self.session else None)
        else:
            self.say("free")

    def by(self, takes: float) -> float:
        """When an operation that may take this long is given up: at the end of the patience at the latest."""
        return min(self.now + takes, max(self.now, self.patience + LATE))

    @property
    def ends(self) -> float:
        """When trouble ends it: its patience is over, or no server was there for too long."""
        return min(self.patience, self.served + self.outage)

    def blocks(self, rtt: float) -> float:
        """How long the next request waits at the server: short enough that the message comes in time, even from a
        distant server.

        With ACKS, the wait ends earlier, because its message says whether replicas were the reason; the next request
        then waits for the remaining time.
        """
        left, ahead = self.patience - self.now - rtt, min(AHEAD, self.waits // 8)
        return max(1, left - ahead if self.has_acks and ahead < left else left)

    def asks(self) -> Steps:
        """Returns the result for the caller."""
        left, hops = self.left, 0
        while True:
            outcome = yield from self.once()
            kind, why = outcome[0], UNAVAILABLE
            if outcome == AGAIN_NOW:
                continue
            if kind in ("granted", "nil", "lost", "unavailable"):
                return outcome
            is_busy = self.is_busy and self.op[0] == "listen"
            self.is_busy = self.is_busy and kind == "ended"
            if is_busy and kind != "refused" and self.now >= self.patience:
                return NIL  # there was no time left to wait in
            if kind in ("refused", "unsent"):
                if self.is_asked:
                    left.in_doubt = self.had_doubt
                if outcome == NOTHELD:
                    return LOST
                code = outcome[1] if kind == "refused" else "UNBLOCKED"
                if code in ("MOVED", "ASK") and hops < HOPS and self.now < self.patience:
                    hops += 1
                    continue
                if code not in PASSING:
                    return outcome
                if code == "NOREPLICAS":
                    why = ("noreplicas",)
            elif kind != "ended":
                left.lingers |= self.is_asked
                if self.is_asked and self.session:
                    # This request may still tie the session to its connection, with which it would end: so the next
                    # pause is longer.
                    self.pause = AGAIN
            if self.now < self.ends:
                self.is_asked = False
                yield "sleep", min(self.ends, self.now + self.pause)
                self.pause = min(LONGEST_PAUSE, 2 * self.pause)
            if self.now >= self.ends:
                return why

    def once(self) -> Steps:
        """Sends one request, and waits if necessary."""
        self.is_asked, block, rtt = False, None, 0.0
        if self.session and not self.has_link:
            opened = yield "open", self.by(REPLY)
            if opened[0] != "opened":
                return opened
            self.has_link = True
        if not self.asks_first:
            listening = yield "listen", self.by(REPLY)
            if listening[0] != "listening":
                return listening
            rtt = listening[1]
            if self.waits:
                block = 0 if self.patience == FOREVER else self.blocks(rtt)
        self.is_asked, self.sent = True, self.now
        self.had_doubt, self.left.in_doubt = self.left.in_doubt, True
        if self.session:
            outcome = (yield "own", block, True, None, self.by(REPLY))[1:]
        else:
            outcome = yield "send", ("acquire", block), self.by(REPLY)
        if outcome[0] in ("token", "nil"):
            self.served = self.now
        if outcome == WAITING:
            # An earlier request of this owner no longer waits: this one has taken its place. But a restarted server
            # keeps a grant without knowing that it was pending.
            self.pause, self.had_doubt = FIRST_PAUSE, self.had_doubt and self.has_acks
            told = yield "wait", self.by(ACKS if self.has_acks else LOOKS)
            self.served = self.now
            if told[0] == "own":
                # The wait ended with the session's connection.
                self.has_link = False
                self.say("drop")
                return ("ended",)
            if told[0] != "message":
                if told == LOST or self.now < self.patience:
                    return AGAIN_NOW
                return NIL if self.waits else UNAVAILABLE
            outcome = told[1:]
            if self.has_acks and outcome[0] == "refused" and outcome[1] in PASSING:
                # The server may have granted it before it stopped to decide.
                self.had_doubt = True
            if outcome == NIL:
                self.left.in_doubt = False
                # The server may have ended the wait early, or may now be faster than during a pause.
                rtt = min(rtt, max(0, self.now - self.sent - (block or 0)))
                return AGAIN_NOW if self.waits and self.patience - self.now > rtt + LATE else NIL
        if outcome[0] == "token":
            return self.granted(outcome[1])
        if outcome == NIL:
            self.left.in_doubt, self.is_busy = False, True
            if self.waits and self.asks_first:
                self.asks_first = False
                return AGAIN_NOW
        elif self.has_link:
            self.has_link = False
            self.say("drop" if is_unknown(outcome) else "keep")
        return outcome

    def granted(self, token: int) -> Words:
        self.left.token = token
        if self.below is not None and self.below != token:
            self.depth = 1  # the levels below are gone, and this is another hold
            return LOST
        if self.now - self.sent > self.lease // 3:
            # The grant may be as old as the request. If it has ended already, this is another one.
            self.asks_first, self.left.token = not self.has_acks, None
            return AGAIN_NOW
        return "granted", token, self.sent, self.left.lingers
