"""The decisions of clients/ALGORITHM.md, with the names of that page, and without I/O, clock or randomness.

A machine gets one input at a time, with the time in ms, and returns outputs, of which at most one, the last, is an
operation that takes time: clients/traces/README.md lists them all, with the words that are used here. The simulation
runs the same machine, written in Rust; tests/traces.py replays its traces here. Whatever runs from a call to its end
is a generator, which yields operations and gets their results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generator, Optional

#: A tuple whose first element says what it is, and whose others are details: a number, a flag, or None.
Words = tuple[Any, ...]
Steps = Generator[Words, Any, Any]

FOREVER = float("inf")
#: How long a reply may take.
REPLY = 2000
#: How long a reply may be late at the end of the patience, and how long a caller waits for undoing.
LATE = 50
#: The average pause before the next connection to a server that could not be reached.
DIALS = 200
#: How often a waiting request is sent again: a lost message costs at most this much time.
LOOKS = 1000
#: The same with ACKS: a request that is sent again begins to wait for acknowledgments anew.
ACKS = 3 * REPLY
#: How long before the end of a wait with ACKS its request ends at most, so that the reason comes before the patience
#: ends.
AHEAD = 250
FIRST_PAUSE, LONGEST_PAUSE = 10, 500
#: After this time, a server that was suspended has read what its sockets had received.
AGAIN = 500
#: How long undoing may take after `close`.
CLOSES = 1000
#: How long a request that does not wait for the lock waits for another request of the same owner.
SOON = 2 * LATE
#: How many redirections an attempt follows without a pause.
HOPS = 5
#: Errors whose condition ends by itself: no server can decide for now.
PASSING = {"UNBLOCKED", "READONLY", "LOADING", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"}

NIL, LOST, RELEASED, UNAVAILABLE, WAITING = ("nil",), ("lost",), ("released",), ("unavailable",), ("waiting",)
NOTHELD = ("refused", "NOTHELD")


def come(now: float, is_undone: bool, wait: float, patience: float, outage: float) -> tuple[float, Words]:
    """How long a request waits for an occupied seat, and the result if it stays occupied. Undoing ends by itself, so
    requests wait for that, but no longer than they wait without a server."""
    if not is_undone:
        return now + (wait or SOON), NIL
    return now + min(outage, wait or patience), UNAVAILABLE


def is_unknown(outcome: Words) -> bool:
    """Whether the request may have been executed, or may still be."""
    return outcome[0] in ("broken", "silent")


#: How a request ended.
OUTCOMES = {"token", "nil", "waiting", "refused", "unsent", "broken", "silent"}
#: Returned between a grant and the caller's taking it.
GRANT = ("grant",)
OVER = ("over",)
#: To ask once more.
AGAIN_NOW = ("again",)
#: What ends an operation.
ENDS = {
    "start": {"call"}, "grant": {"taken"}, "over": set[str](), "open": {"opened", *OUTCOMES}, "own": {"own"}, "send": OUTCOMES,
    "await": OUTCOMES, "listen": {"listening", *OUTCOMES}, "wait": {"message", "lost", "time", "own"}, "sleep": {"time"},
}


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


def passed(outcome: Words) -> Optional[bool]:
    """After a failure: False if a retry may help, else None."""
    return None if outcome[0] == "refused" and outcome[1] not in PASSING else False


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
            # A request that was not answered may have tied another hold, which ends with its connection. This hold ends
            # if it was tied to a connection that is closed; and a hold that the server does not tie is no session.
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
