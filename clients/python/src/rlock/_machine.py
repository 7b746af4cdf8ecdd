"""The decisions of clients/ALGORITHM.md, by its names: without I/O, clock or randomness.

A machine is told one input at a time, with the time in ms, and answers with outputs, of which at most one, the last, is an
operation that takes time: clients/traces/README.md has them all, and here they have the same words. The simulation plays
the same machine, written in Rust; tests/traces.py replays its traces here. What is one story from a call to its end
is a generator, which yields operations and gets what they brought.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generator, Optional

#: Names what it is, then what belongs to that: a number, a flag, or None.
Words = tuple[Any, ...]
Steps = Generator[Words, Any, Any]

FOREVER = float("inf")
#: How long a reply may take; three times that if it waits for acknowledgments.
REPLY = 2000
#: For a reply at the end of the patience, and again for what is undone at once.
LATE = 50
#: How long a ticket keeps its place.
TICKET = 3000
#: The pause, more or less, before a server that was not reached is connected to again.
DIALS = 200
#: How often a blocked wait asks for its place on another connection, and a ticket for the lock.
LOOKS = ASKS = 1000
FIRST_PAUSE, LONGEST_PAUSE = 10, 500
#: By then a server that goes on has read what lies in its sockets.
AGAIN = 500
#: How long what is left is undone after `close`.
CLOSES = 1000
#: How long who does not wait stays for another request of the same owner.
SOON = 2 * LATE
#: How often an attempt follows redirections without a pause.
HOPS = 5
#: Errors that end by themselves: no server can decide for now.
PASSING = {"UNBLOCKED", "READONLY", "LOADING", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"}

NIL, LOST, RELEASED, UNAVAILABLE = ("nil",), ("lost",), ("released",), ("unavailable",)
NOTHELD = ("refused", "NOTHELD")


def come(now: float, is_undone: bool, wait: float, patience: float) -> tuple[float, Words]:
    """Until when somebody waits for a seat that is not free, and what is then told. What is undone passes."""
    return now + (wait or (patience if is_undone else SOON)), UNAVAILABLE if is_undone else NIL


def is_unknown(outcome: Words) -> bool:
    """Whether it may have been executed, or may still be."""
    return outcome[0] in ("broken", "silent")


def reply_time(has_acks: bool) -> int:
    return 3 * REPLY if has_acks else REPLY


#: How a request ended.
OUTCOMES = {"token", "nil", "refused", "unsent", "broken", "silent"}
#: What is between a grant and who takes it.
GRANT = ("grant",)
OVER = ("over",)
#: What ends an operation.
ENDS = {
    "start": {"call"}, "grant": {"taken"}, "over": set[str](), "slot": {"slot"}, "open": {"opened", *OUTCOMES}, "own": {"own"},
    "read": {"own"}, "look": {"place", "own"}, "send": OUTCOMES, "await": OUTCOMES, "listen": {"listening", *OUTCOMES},
    "turn": {"turn", "time"}, "sleep": {"time"},
}


@dataclass
class Left:
    """What requests may have left at the server."""

    in_doubt: bool = False  # something was sent, and its outcome is unknown or nobody has taken it
    lingers: bool = False  # something was never answered, and may still be executed
    has_ticket: bool = False  # a place may stand
    token: Optional[int] = None  # of a grant that nobody takes


class Stopped(Exception):
    """Somebody went away, or closed the client."""


class Undoing:
    """What an attempt and a release have in common: they may be stopped, and what they leave is undone."""

    now = 0.0
    has_link = False  # of its own
    out: list[Words]
    until: Optional[float] = None  # when nothing that was granted can stand any more, once it is undone
    op: Words = ("start",)  # under way

    def __init__(self, lease: int, depth: int, left: Left):
        self.lease, self.depth, self.left = lease, depth, left
        self.steps: Any = self.run()

    def step(self, now: float, told: Words) -> list[Words]:
        """What follows from that."""
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
            # What is left belongs to an operation that was interrupted.
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
        if self.steps.gi_frame is None or self.op[0] == "start":
            if self.op != GRANT:  # an interrupt has ended a step halfway
                self.left.in_doubt = self.left.lingers = self.has_link = True
            if self.has_link:
                self.say("drop")
            self.begin_undo()
        elif self.until is None:
            self.begin(self.steps.throw(Stopped("cancelled" if how == "cancel" else "closed")))
        if how == "close" and self.until is not None:
            self.until = min(self.until, self.now + CLOSES)

    def run(self) -> Steps:
        """From the call to the end, or to GRANT, which it returns."""
        raise NotImplementedError

    def say(self, *output: Any) -> None:
        self.out.append(output)

    def undo(self) -> Steps:
        """Undoes whatever was sent, until the server has confirmed that or the lease has expired."""
        self.until, pause = self.now + self.lease + REPLY, LATE
        self.say("undo")
        yield from self.last_reply()
        while self.now < self.until:
            is_undone = yield from self.undo_once()
            if is_undone is None or (is_undone and not self.left.lingers):
                break
            if is_undone:
                # Once more: the server may only now execute what it had yet to read.
                self.left = Left(in_doubt=True, has_ticket=self.left.has_ticket)
                yield "sleep", self.now + AGAIN
            else:
                yield "sleep", self.now + pause
                pause = min(2 * pause, 1000)
        self.say("free")

    def last_reply(self) -> Steps:
        """Of a request that is under way."""
        yield from ()

    def undo_once(self) -> Steps:
        """Whether it is undone, or None if that is refused."""
        left = self.left
        # A replica answers what is looked for as well, but refuses this.
        if left.has_ticket or ((left.in_doubt or left.lingers) and left.token is None):
            outcome = yield "send", ("cancel",), self.now + REPLY
            if outcome[0] not in ("token", "nil"):
                # A cancel that arrives late would end a later wait.
                left.lingers |= is_unknown(outcome)
                return passed(outcome)
        if not left.in_doubt and not left.lingers:
            return True
        if left.token is None:
            outcome = yield "send", ("info",), self.now + REPLY
            if outcome[0] != "token":
                return outcome == NIL or passed(outcome)
            left.token = outcome[1]
        # By its token: should this arrive late, it ends no later hold.
        outcome = yield "send", ("release", left.token, self.depth - 1), self.now + REPLY
        return outcome[0] in ("token", "nil") or outcome == NOTHELD or passed(outcome)


def passed(outcome: Words) -> Optional[bool]:
    """Of what failed: whether to try again, which is False; else None."""
    return None if outcome[0] == "refused" and outcome[1] not in PASSING else False


class Attempt(Undoing):
    """One acquisition of an owner that has its seat, until it is granted, refused or out of time, and nothing is left."""

    at = ""
    has_slot: Optional[bool] = None
    had_doubt = had_ticket = False
    sent = 0.0  # the request under way
    end = patience = FOREVER  # of the wait; and when trouble is believed

    def __init__(
        self,
        wait: float,  # 0 is not at all
        patience: int,  # how long it is repeated if it does not wait
        lease: int,
        depth: int = 1,
        below: Optional[int] = None,  # the token of the levels below
        session: bool = False,
        has_maxqueue: bool = False,
        has_acks: bool = False,
        asks_first: bool = False,  # on a shared connection, before it waits
    ):
        super().__init__(lease, depth, Left())
        self.waits, self.perseveres, self.below, self.has_maxqueue, self.has_acks = wait, patience, below, has_maxqueue, has_acks
        # A connection that ends would take the levels below along.
        self.session = session and depth == 1
        self.asks_first = asks_first and not self.session

    def run(self) -> Steps:
        self.patience = self.now + (self.waits or self.perseveres)
        if self.waits:
            self.end = self.patience
        is_under_way = False
        try:
            told = yield from self.asks()
            if told[0] == "granted":
                self.out.append(("tell", told))
                return GRANT
        except Stopped as stopped:
            told, is_under_way = (str(stopped),), self.at in ("ask", "queue", "wait")
        if self.has_link and not is_under_way:
            # A session that nobody takes ends with its connection.
            self.say("drop" if self.session and self.left.token is not None else "keep")
        self.say("tell", told)
        if self.left.in_doubt or self.left.lingers or self.left.has_ticket:
            yield from self.undo()
        else:
            self.say("free")

    def by(self, takes: float) -> float:
        """When a request that may take so long is given up: at the end of the patience at the latest."""
        return min(self.now + takes, max(self.now, self.patience + LATE))

    def asks(self) -> Steps:
        """What the caller is told."""
        left, pause, hops = self.left, FIRST_PAUSE, 0
        while True:
            outcome = yield from self.once()
            kind, why = outcome[0], UNAVAILABLE
            if kind in ("granted", "nil", "lost"):
                return outcome
            if kind == "turn":
                pause = FIRST_PAUSE
                continue
            if kind == "refused":
                if self.at not in ("open", "place"):
                    left.in_doubt = self.had_doubt
                if outcome == NOTHELD:
                    return LOST
                if outcome[1] in ("MOVED", "ASK") and hops < HOPS and self.now < self.patience:
                    hops += 1
                    continue
                if outcome[1] not in PASSING:
                    return outcome
                if outcome[1] == "NOREPLICAS":
                    why = ("noreplicas",)
            elif kind == "unsent":
                if self.at in ("ask", "queue"):
                    left.in_doubt = self.had_doubt
            elif kind != "ended":
                left.lingers |= self.at != "place"
                if self.session:
                    # Tied late, it would end with its connection: not before that.
                    pause = AGAIN
            if self.now < self.patience:
                self.at = ""
                yield "sleep", min(self.patience, self.now + pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
            if self.now >= self.patience:
                return why

    def once(self) -> Steps:
        """Asks in the best way there is."""
        if self.asks_first or not (self.waits or self.session):
            outcome = yield self.send("ask", "acquire")
            if outcome == NIL and self.waits:
                self.left.in_doubt = self.asks_first = False
                return (yield from self.once())
        elif self.left.has_ticket and self.now >= self.end:
            return NIL
        else:
            if self.has_slot is None and self.waits:
                self.has_slot = (yield ("slot",))[1]
            if self.has_slot is False:
                outcome = yield from self.queue()
            else:
                outcome = yield from self.wait()
        if outcome[0] == "token":
            token = self.left.token = outcome[1]
            while self.now - self.sent > self.lease // 3 and outcome[0] == "token":
                outcome = yield from self.confirm(token)
            return self.granted(token) if outcome[0] == "token" else outcome
        if outcome == NIL:
            self.left.in_doubt = False
        return outcome

    def send(self, at: str, *request: Any) -> Words:
        self.at = at
        if at in ("ask", "queue"):
            self.had_doubt, self.left.in_doubt, self.sent = self.left.in_doubt, True, self.now
        return "send", request, self.by(reply_time(self.has_acks and at != "place"))

    def queue(self) -> Steps:
        """By a ticket, whose owner listens for its turn."""
        left = self.left
        yield "listen", self.by(REPLY)
        self.had_ticket, left.has_ticket = left.has_ticket, True
        outcome = yield self.send("queue", "queue")
        if outcome[0] == "token":
            left.has_ticket = False
            if not self.session:
                return outcome
            left.token = outcome[1]
            # The grant is moved to its own connection.
            return (yield from self.wait())
        if outcome != NIL:
            if not is_unknown(outcome):
                left.has_ticket = self.had_ticket
            return outcome
        left.in_doubt = False
        if self.has_maxqueue and not self.had_ticket:
            # The queue may have been full.
            outcome = yield self.send("place", "place")
            left.has_ticket = outcome != NIL
            if outcome[0] != "token":
                return outcome
        self.at = ""
        yield "turn", max(self.now, min(self.end, self.now + ASKS))
        return ("turn",)

    def wait(self) -> Steps:
        """On its own connection: a blocked wait, or a session."""
        self.at = "open"
        opened = yield "open", self.by(REPLY)
        if opened[0] != "opened":
            return opened
        self.at, self.has_link, self.sent, misses = "wait", True, self.now, 0
        self.had_doubt, self.left.in_doubt = self.left.in_doubt, True
        block: Optional[float] = None
        reply_by = self.by(reply_time(self.has_acks))
        if self.waits and self.has_slot:
            # The reply comes in time, however far the server is.
            block = 0 if self.end == FOREVER else max(1, self.end - self.now - opened[1])
            reply_by = self.end + LATE
        told = yield "own", block, self.session, None, min(reply_by, self.now + LOOKS)
        while told == ("own", "silent") and self.now < reply_by:
            told = yield "look", self.by(REPLY)
            if told[0] == "own":
                break
            # A reply may be on its way, so the place is missed twice before it is believed; None: no server decides.
            if told[1] is not None:
                misses = 0 if told[1] else misses + 1
            if misses == 2:
                told = ("own", "silent")
                break
            told = yield "read", min(reply_by, self.now + LOOKS)
        outcome = told[1:]
        if outcome[0] not in ("token", "nil"):
            self.has_link = False
            self.say("keep" if outcome[0] == "refused" else "drop")
        return outcome

    def confirm(self, token: int) -> Steps:
        """The grant may be as old as the request."""
        self.had_doubt, sent = True, self.now
        outcome = yield self.send("confirm", "renew", token)
        self.sent = sent
        if outcome[0] != "token":
            if self.has_link:
                self.say("drop")
            self.has_link, self.left.token = False, None
            if outcome == NOTHELD and self.depth == 1:
                return ("ended",)  # once more
        return outcome

    def granted(self, token: int) -> Words:
        if self.below is not None and self.below != token:
            self.depth = 1  # the levels below are gone, and this is another hold
            return LOST
        self.at = ""
        if self.has_link and not self.session:
            self.has_link = False
            self.say("keep")
        return "granted", token, self.sent, self.left.lingers

    def last_reply(self) -> Steps:
        has_ticket = self.had_ticket if self.at == "queue" else self.left.has_ticket
        before = replace(self.left, in_doubt=self.had_doubt, has_ticket=has_ticket)
        if self.at in ("ask", "queue"):
            outcome = yield "await", self.now + REPLY // 4
        elif self.at == "wait":
            outcome = yield "send", ("cancel",), self.now + REPLY // 4
            self.left.lingers |= is_unknown(outcome)
            # 0: it has just been granted, or has not begun to wait.
            has_ended = outcome[0] == "token" and outcome[1] > 0
            outcome = (yield "read", self.now + (REPLY // 4 if has_ended else LATE))[1:]
            self.say("drop" if is_unknown(outcome) or (self.session and outcome[0] == "token") else "keep")
        else:
            return
        if outcome[0] == "token":
            self.left.token = outcome[1]
        elif outcome == NIL:
            self.left.in_doubt = False
        elif is_unknown(outcome):
            self.left.lingers = True
        else:
            self.left = before


class Release(Undoing):
    """The release of one level by an owner that has its seat, and what undoes a level whose release is not known."""

    is_unsure = False

    def __init__(self, patience: int, lease: int, depth: int, token: int, deadline: float, lingers: bool):
        # As long as nothing else is known. It lingers if a request of its attempts was never answered.
        super().__init__(lease, depth, Left(True, lingers, False, token))
        self.perseveres, self.deadline = patience, deadline

    def run(self) -> Steps:
        left = self.left
        try:
            told = yield from self.asks()
        except Stopped as stopped:
            told = (str(stopped),)
            self.is_unsure |= self.op[0] == "send"
        if told == RELEASED:
            # A level below has the same token: a release that is executed late would end it.
            left.token, left.lingers = None, left.lingers and self.depth == 1
        left.lingers = left.lingers or self.is_unsure
        self.say("tell", told)
        if told == LOST or (left.token is None and not left.lingers):
            self.say("free")
        else:
            # Until it is known to be executed, nobody asks in this name.
            yield from self.undo()

    def stop(self, how: str) -> None:
        if how == "cancel" and self.op[0] == "start" and self.steps.gi_frame is not None:
            # Nobody waits for it, and nothing was interrupted.
            self.say("tell", ("cancelled",))
            self.begin_undo()
        else:
            super().stop(how)

    def asks(self) -> Steps:
        """What the caller is told."""
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
        """`sent` is when the request was that the lease counts from; the loss is told `margin` before its deadline."""
        self.token, self.lease, self.has_acks, self.renews, self.margin = token, lease, has_acks, renews, margin
        self.at, self.depth = "start", 1
        self.sent = self.deadline = 0.0
        self.renews_at = FOREVER
        self.is_releasing = self.is_untied = False
        self.out: list[Words] = []
        self.renewed(sent)

    def renewed(self, sent: float) -> None:
        # The server counts from when it read the request, which was after that was sent.
        self.deadline, self.pause = max(self.deadline, sent + self.lease), 20
        if self.renews:
            self.renews_at = sent + self.lease // 3

    @property
    def limit(self) -> float:
        """When the loss is told."""
        return self.deadline - self.margin

    @property
    def takes(self) -> int:
        """How long a renewal may."""
        return min(reply_time(self.has_acks), max(50, self.lease // 6))

    def step(self, now: float, told: Words) -> list[Words]:
        """What follows from that."""
        self.out, kind, at = [], told[0], self.at
        if at == "done":
            pass
        elif kind == "released":
            self.at = "done"
            self.out.append(("done",))
        elif kind == "gone":
            self.leave()
            self.lose()
        elif kind == "releasing":
            self.is_releasing = True
        elif kind == "extend":
            self.deadline = max(self.deadline, told[1] + self.lease)
        elif kind == "close":
            self.renews, self.renews_at, self.is_untied = False, FOREVER, False
            self.leave()
            self.idle(now)
        elif kind == "untied":
            self.is_untied = True
            self.out.append(("doubt",))
            if at == "idle":
                self.renews_at = now
                self.idle(now)
        elif (at, kind) in (("start", "call"), ("idle", "time")):
            self.idle(now)
        elif at == "renew":
            self.answered(now, told)
        elif at == "seat" and kind == "seat":
            self.seated(now, told[1])
        elif at == "open" and kind == "opened":
            self.at, self.sent = "tie", now
            by = min(now + reply_time(self.has_acks), self.limit)
            self.out.append(("own", None, True, self.depth, by))
        elif at == "open":
            self.out.append(("leave",))
            self.later(now)
        elif at == "tie" and kind == "own":
            self.tied(now, told[1:])
        return self.out

    def idle(self, now: float) -> None:
        if now >= self.limit:
            self.lose()
        elif now >= self.renews_at:
            self.at, self.sent = "renew", now
            self.out.append(("send", ("renew", self.token), min(now + self.takes, self.limit)))
        else:
            self.at = "idle"
            self.out.append(("sleep", min(self.renews_at, self.limit)))

    def answered(self, now: float, outcome: Words) -> None:
        if outcome[0] == "token":
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

    def seated(self, now: float, depth: Optional[int]) -> None:
        if depth is None:
            return self.later(now)
        self.at, self.depth = "open", depth
        self.out.append(("open", min(now + REPLY, self.limit)))

    def later(self, now: float) -> None:
        """Renews again in a moment."""
        self.renews_at = now + min(self.pause, max(1, self.lease // 12))
        self.pause *= 2
        self.idle(now)

    def tied(self, now: float, outcome: Words) -> None:
        if outcome == ("token", self.token):
            self.is_untied = False
            self.renewed(self.sent)
            self.out += [("leave",), ("tied",)]
            return self.idle(now)
        self.out += [("drop",), ("leave",)]
        if outcome[0] == "refused" and outcome[1] in PASSING:
            self.later(now)
        else:
            # Another hold ends with its connection. So does this one, if it was tied to a connection that is closed; and
            # one that the server does not tie is no session.
            self.lose()

    def leave(self) -> None:
        """Gives back the seat that it has while it is being tied to a new connection."""
        if self.at in ("open", "tie"):
            self.out += [("drop",), ("leave",)]

    def lose(self) -> None:
        self.at = "done"
        self.out += [("tell", LOST), ("done",)]
