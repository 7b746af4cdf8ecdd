"""What a lock does, without I/O: the synchronous and the asyncio package both run these steps.

A step is a generator. It yields what a call of `io` returned: a value where `io` is synchronous, an awaitable where it
is not; and gets the value back. So there is one text of the rules for both: clients/ALGORITHM.md.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Generator, Optional

from ._core import AGAIN, LOOKS, REPLY, SOON, TICKET_ASKS, TICKET_MS, Options, Seat, Space, Tenure, log, now
from ._errors import Broken, LockError, LockLost, NoReplicas, Refused, Silent, Unavailable, Unsent

Steps = Generator[Any, Any, Any]


class Attempt:
    """One acquisition of the owner whose seat it has, until it is granted, refused or out of time."""

    def __init__(self, io: Any, seat: Seat, options: Options, depth: int, wait: Optional[float], patience: float):
        self.io, self.seat, self.options, self.depth = io, seat, options, depth
        self.words = options.words(seat.key, seat.owner, depth)
        self.waits = wait is None or wait > 0
        start = now()
        self.end = start + wait if self.waits and wait is not None else float("inf")
        self.patience = self.end if self.waits else start + patience
        self.warns_at = start + patience
        self.has_slot = False
        self.link: Any = None  # that a blocked wait is on
        self.misses = 0  # how often it had no place there
        self.in_doubt = False  # something was sent, and its outcome is unknown or nobody has taken it
        self.was_silent = False  # and may even be executed later
        self.token: Optional[int] = None  # of a grant that nobody takes
        self.has_ticket = False
        self.asks_at: Any = None  # where -MOVED or -ASK redirected us
        self.cleans_up = False  # the seat is not free before the cleaning up is done
        self.leave: Callable[[], None] = lambda: None  # frees it then

    @staticmethod
    def to_release(io: Any, seat: Seat, tenure: Tenure, space: Space) -> Attempt:
        """For a level whose release is not known to be executed: until it is, nobody asks in this name."""
        attempt = Attempt(io, seat, tenure.options, tenure.depth, 0, 0)
        attempt.token, attempt.in_doubt = tenure.token, True
        attempt.leave = functools.partial(space.vacate, seat)
        return attempt

    def steps(self) -> Steps:
        """Returns (token, sent, link) or None. An error, or abandoning it, leaves nothing behind."""
        pause, hops, problem = 0.01, 0, "nothing was tried"
        kind: type[Unavailable] = Unavailable
        try:
            while True:
                left = self.end - now()
                try:
                    if left <= 0 and self.has_ticket:
                        yield self.io.clean_up(self)
                        return None
                    if not self.waits:
                        answer = yield from self.once()
                    elif self.may_block():
                        answer = yield from self.blocked(max(left, 0.001))
                    else:
                        answer = yield from self.by_ticket()
                    if answer is not None:
                        return self.answered(answer)
                    pause = 0.01
                    continue
                except Broken as broken:
                    self.was_silent = self.was_silent or isinstance(broken, Silent)
                    problem, kind = str(broken) or "no reply in time", Unavailable
                except Refused as refused:
                    problem, kind = str(refused), unavailable(refused)
                    if refused.code == "NOTHELD":
                        raise LockLost(problem) from None
                    if refused.code not in AGAIN:
                        raise
                    if self.asks_at and hops < 5:
                        hops += 1
                        continue
                if not self.io.is_closing:
                    yield self.io.sleep(max(0.0, min(pause, self.patience - now())))
                if self.io.is_closing:
                    problem = "closed"
                if now() >= self.patience or self.io.is_closing:
                    raise kind(f"{self.seat.key}: {problem}")
                if now() >= self.warns_at:
                    self.warns_at = float("inf")
                    log.warning("%s: still asking for it, though %s", self.seat.key, problem)
                pause = min(pause * 2, 0.5)
        except GeneratorExit:
            raise
        except BaseException as error:
            # What was abandoned halfway is still on its way.
            self.was_silent = self.was_silent or not isinstance(error, LockError)
            yield self.io.clean_up(self)
            raise
        finally:
            if self.has_slot:
                self.io.give_slot()

    def answered(self, answer: Any) -> Any:
        if answer[0] is None:
            return None
        self.link = answer[2]
        if self.io.is_closing:
            raise Unavailable(f"{self.seat.key}: closed")
        return answer

    def by(self, seconds: float) -> float:
        """When a request that may take so long is given up: at the end of the patience at the latest."""
        return max(now(), min(now() + seconds, self.patience + SOON / 2))

    def may_block(self) -> bool:
        # With SESSION the connection that waits is the one that holds.
        if not self.has_slot and not self.has_ticket:
            self.has_slot = self.io.take_slot()
        return self.has_slot

    def once(self) -> Steps:
        """Asks without waiting; the reply is final."""
        answer = yield from self.ask([])
        return answer or (None,)

    def ask(self, more: list[Any]) -> Steps:
        """One request on a shared connection: (token, sent, link), or None for nil."""
        words = self.words + more
        if self.options.session and not more:
            return (yield from self.on_own_link(words + ["SESSION"], reply_time(self.options)))
        sent, doubt = now(), self.in_doubt
        self.in_doubt = True
        try:
            token = yield self.io.send(self.seat.key, words, self.by(reply_time(self.options)))
        except (Refused, Unsent):
            self.in_doubt = doubt
            raise
        self.token, self.in_doubt = token, token is not None
        return None if token is None else (token, sent, None)

    def by_ticket(self) -> Steps:
        """Keeps a place in the queue, and listens for the turn. None means: ask again."""
        key, owner = self.seat.key, self.seat.owner
        turn = yield self.io.listen(key, owner, self.by(REPLY))
        try:
            more = ["QUEUE", TICKET_MS]
            if self.options.maxqueue is not None:
                more += ["MAXQUEUE", self.options.maxqueue]
            had_ticket, self.has_ticket = self.has_ticket, True
            try:
                answer = yield from self.ask(more)
            except Unsent:
                self.has_ticket = had_ticket
                raise
            if answer is not None:
                self.has_ticket = False
                # Move the hold to its own connection: send the same request again, tied to that.
                return (yield from self.ask([])) if self.options.session else answer
            if self.options.maxqueue is not None and not had_ticket:
                # nil may also mean that the queue was full: then there is no place.
                if (yield self.io.send(key, ["RLOCK.PLACE", key, owner], self.by(REPLY))) is None:
                    self.has_ticket = False
                    return (None,)
            yield self.io.await_turn(turn, min(TICKET_ASKS, max(0.0, self.end - now())))
        finally:
            self.io.unlisten(turn)
        return None

    def blocked(self, left: float) -> Steps:
        """Waits on its own connection until the server replies."""
        # The reply comes in time, however far the server is.
        block = ["BLOCK", 0 if left == float("inf") else max(1, int((left - self.io.rtt) * 1000 + 0.999))]
        if self.options.maxqueue is not None:
            block += ["MAXQUEUE", self.options.maxqueue]
        if self.options.session:
            block.append("SESSION")
        return (yield from self.on_own_link(self.words + block, left + SOON / 2))

    def on_own_link(self, words: list[Any], patience: float) -> Steps:
        where, self.asks_at = self.asks_at, None
        doubt, self.link = self.in_doubt, (yield self.io.open(self.seat.key, self.by(REPLY), where))
        sent = now()
        self.in_doubt, self.misses = True, 0
        try:
            yield self.io.write(self.link, words)
        except Broken:
            self.drop_link()
            raise
        while True:
            try:
                reply = yield self.io.read(self.link, min(LOOKS, sent + patience - now()))
            except Broken:
                # Silence. If another server decides by now, or the reply to a grant was lost, end the wait.
                if self.link.is_open and now() < sent + patience and (yield from self.still_waits()):
                    continue
                self.drop_link()
                raise
            except Refused as refused:
                self.in_doubt = doubt
                self.asks_at = self.io.redirected(refused, self.link.address)
                self.keep_link()
                raise
            return (yield from self.end_of_wait(sent, reply))

    def still_waits(self) -> Steps:
        """Whether whoever decides now knows of the wait. A reply may be on its way, so it is asked twice."""
        key, owner = self.seat.key, self.seat.owner
        try:
            if self.options.acks:  # what is not acknowledged yet has neither a place nor a hold
                return (yield self.io.is_at_home(self.link, key, self.by(REPLY)))
            place = yield self.io.send(key, ["RLOCK.PLACE", key, owner], self.by(REPLY))
        except (Broken, Refused):
            return True  # no server decides at the moment: keep the place
        self.misses = self.misses + 1 if place is None else 0
        return self.misses < 2

    def end_of_wait(self, sent: float, reply: Any) -> Steps:
        """The reply to a request on its own connection. A grant is in doubt until somebody has it."""
        self.token, self.in_doubt = reply, reply is not None
        if reply is None:
            self.keep_link()
            return (None,)
        if now() - sent > self.options.lease / 3:
            # The grant may be as old as the request: a renewal shows whether it is still valid.
            sent, words = now(), renewal(self.seat, self.options, reply)
            try:
                yield self.io.send(self.seat.key, words, now() + reply_time(self.options))
            except Refused as refused:
                self.token = None
                self.drop_link()
                raise Broken(str(refused)) from None  # it was ours, and has ended: ask again
        link, self.link = self.link, None
        if not self.options.session:
            self.io.keep(link)
            link = None
        return (reply, sent, link)

    def keep_link(self) -> None:
        self.io.keep(self.link)
        self.link = None

    def drop_link(self) -> None:
        self.io.drop(self.link)
        self.link = None

    def clean_up(self) -> Steps:
        """Undoes whatever was sent, until the server has confirmed that or the lease has expired."""
        if not self.in_doubt and not self.has_ticket:
            if self.link is not None:
                self.keep_link()
            return
        if self.link is not None and self.token is not None:
            self.drop_link()  # a session that nobody takes
        elif self.link is not None and (yield from self.ended_wait()):
            return
        last, pause = now() + self.options.lease + REPLY, 0.05
        while now() < last and not self.io.is_closed:
            try:
                if self.has_ticket:
                    yield self.io.send(self.seat.key, ["RLOCK.CANCEL", self.seat.key, self.seat.owner], now() + REPLY)
                    self.has_ticket = False
                if self.in_doubt:
                    yield from self.let_go()
                if not self.was_silent:
                    return
                # Once more: the server may only now execute what it had yet to read from a closed connection.
                self.was_silent, pause = False, 0.5
            except Refused as refused:
                if refused.code not in AGAIN:
                    return
            except Broken:
                pass
            yield self.io.sleep(pause)
            pause = min(pause * 2, 1.0)

    def let_go(self) -> Steps:
        """Releases what may have been granted, by its token: should this arrive late, it ends no later hold."""
        seat, info = self.seat, ["RLOCK.INFO", self.seat.key, "HOLDERS", 10000, "WAITERS", 0]
        token = self.token or token_of((yield self.io.send(seat.key, info, now() + REPLY)), seat.owner, self.options.kind)
        if token is not None:
            words = ["RLOCK.RELEASE", seat.key, seat.owner, self.options.kind, "TOKEN", token, "DEPTH", self.depth - 1]
            yield self.io.send(seat.key, words, now() + REPLY)

    def ended_wait(self) -> Steps:
        """Makes the server end the wait; returns whether nothing remains to undo."""
        key, owner = self.seat.key, self.seat.owner
        try:
            ended = yield self.io.send(key, ["RLOCK.CANCEL", key, owner], now() + REPLY / 4)
            # 0 means that the server does not end blocked waits this way, or that it has just granted the lock.
            self.token = yield self.io.read(self.link, REPLY / 4 if ended else 0.05)
        except (Broken, Refused) as error:
            self.was_silent = isinstance(error, Silent)
            self.drop_link()  # closing it ends the wait
            return False
        self.keep_link()
        return self.token is None


def token_of(info: Any, owner: str, mode: str) -> Optional[int]:
    """The token of that hold in a reply of RLOCK.INFO."""
    for row in pairs(info)["holders"]:
        holder = pairs(row)
        if holder["owner"] == owner and holder["mode"] == mode.lower():
            return int(holder["token"])
    return None


def pairs(flat: list[Any]) -> dict[str, Any]:
    return dict(zip(flat[::2], flat[1::2]))


def unavailable(refused: Refused) -> type[Unavailable]:
    return NoReplicas if refused.code == "NOREPLICAS" else Unavailable


def reply_time(options: Options) -> float:
    """Whether the reply waits for acknowledgements."""
    return 3 * REPLY if options.acks else REPLY


def renewal(seat: Seat, options: Options, token: int, lease: Optional[float] = None) -> list[Any]:
    ms = int((lease or options.lease) * 1000)
    words: list[Any] = ["RLOCK.RENEW", seat.key, seat.owner, options.kind, "LEASE", ms, "TOKEN", token]
    return words + (["ACKS", options.acks] if options.acks else [])


def settle(io: Any, key: str, start: float, wait: Optional[float], patience: float) -> Steps:
    """What the server of that key says that it is."""
    pause, warns_at = 0.01, start + patience
    until = float("inf") if wait is None else start + (wait or patience)
    while True:
        try:
            return (yield io.identify(key, max(now(), until) + SOON / 2))
        except Broken as broken:
            problem = str(broken)
        except Refused as refused:
            if refused.code not in AGAIN:
                raise
            problem = str(refused)
        yield io.sleep(max(0.0, min(pause, until - now())))
        if now() >= until or io.is_closing:
            raise Unavailable(f"{key}: {problem}")
        if now() >= warns_at:
            warns_at = float("inf")
            log.warning("%s: still asking for it, though %s", key, problem)
        pause = min(pause * 2, 0.5)


def renew(io: Any, tenure: Tenure, lease: Optional[float] = None, patience: Optional[float] = None) -> Steps:
    """Renews once, with retries for `patience`, else for a third of the lease. Returns True if the hold is lost."""
    words = renewal(tenure.seat, tenure.options, tenure.token, lease)
    third = tenure.options.lease / 3
    last, pause = min(now() + (third if patience is None else patience), tenure.deadline), 0.02
    while tenure.state == "held" and now() < last and not io.is_closing:
        sent = now()
        try:
            yield io.send(tenure.seat.key, words, sent + min(reply_time(tenure.options), max(third / 2, 0.05)))
            tenure.renewed(sent, lease)
            return False
        except Refused as refused:
            if refused.code in ("NOTHELD", "WRONGTYPE"):  # or somebody put another value at the key
                return True
        except Broken:
            pass
        yield io.sleep(min(pause, third / 4))
        pause *= 2
    return False


def extend(io: Any, tenure: Tenure, lease: float, patience: float) -> Steps:
    """Renews a hold for so many seconds from now. Raises LockLost if there is none, Unavailable if that is not known."""
    start = now()
    if not tenure.held or (yield from renew(io, tenure, lease, patience)) or not tenure.held:
        raise LockLost(f"{tenure.seat.key} is no longer held by {tenure.seat.owner}")
    if tenure.deadline < start + lease:
        raise Unavailable(f"{tenure.seat.key}: not known to be extended")


def question(io: Any, key: str, words: list[Any]) -> Steps:
    """Asks once. Raises Unavailable if there is no reply in time."""
    try:
        return (yield io.send(key, words, now() + REPLY))
    except Broken as broken:
        raise Unavailable(f"{key}: {str(broken) or 'no reply in time'}") from None


def tie(io: Any, tenure: Tenure) -> Steps:
    """A session's connection closed: the hold is lost unless another server has it. Returns True if it is lost."""
    if (yield from renew(io, tenure)) or not tenure.held:
        return True
    seat, link = tenure.seat, None
    try:
        link = yield io.open(seat.key, now() + REPLY)
        yield io.write(link, tenure.options.words(seat.key, seat.owner, tenure.depth) + ["SESSION"])
        token = yield io.read(link, reply_time(tenure.options))
    except (Broken, Refused):
        if link is not None:
            io.drop(link)
        return False  # renewed as a lease until the next try
    tenure.link = link
    return bool(token != tenure.token)


def release(io: Any, seat: Seat, tenure: Tenure, patience: float) -> Steps:
    """Releases one level, for an owner that has the seat. Raises LockLost if there was none."""
    if not tenure.held:
        raise LockLost(f"{seat.key} was lost before {seat.owner} released it")
    words = ["RLOCK.RELEASE", seat.key, seat.owner, seat.mode, "TOKEN", tenure.token, "DEPTH", tenure.depth - 1]
    if tenure.depth == 1:
        tenure.state = "releasing"  # a renewal that comes second gets NOTHELD, which is no loss then
    last, pause, resent, problem = now() + patience, 0.01, False, ""
    kind: type[Unavailable] = Unavailable
    while True:
        try:
            yield io.send(seat.key, words, min(now() + REPLY, last + SOON / 2))
            return
        except Refused as refused:
            if refused.code == "NOTHELD":
                if resent and tenure.depth == 1 and now() < tenure.deadline:
                    return  # the first one released it, and its reply was lost
                tenure.state = "held"
                raise LockLost(str(refused)) from None
            if refused.code not in AGAIN:
                raise
            problem, kind = str(refused), unavailable(refused)
        except Unsent as unsent:
            problem, kind = str(unsent), Unavailable
        except Broken as broken:
            problem, kind, resent = str(broken) or "no reply in time", Unavailable, True
        if not io.is_closing:
            yield io.sleep(max(0.0, min(pause, last - now())))
        if now() >= last or io.is_closing:
            raise kind(f"{seat.key}: not known to be released: {problem}")
        pause = min(pause * 2, 0.5)
