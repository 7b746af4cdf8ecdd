"""Does what the machines of _machine ask for, with the connections of `io`.

A step is a generator. It yields what a call of `io` returned (a value if `io` is synchronous, otherwise an
awaitable) and gets the value back. So both packages share this code.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from ._core import LATE, REPLY, Options, Seat, Steps, Tenure, log, ms, now
from ._errors import Broken, Closed, LockError, LockLost, NoReplicas, Refused, Silent, Unavailable, Unsent
from ._inbox import Inbox, Post, listens
from ._links import NO_PRIMARY
from ._machine import Attempt, Release
from ._machine.words import ACKS, ENDS, FIRST_PAUSE, FOREVER, GRANT, LONGEST_PAUSE, LOST, OVER, PASSING, Words

#: An acquisition first asks without a wait, because that request is shorter. After one that had to wait, this many
#: acquisitions ask with a wait at once.
CROWDED = 32
LONGEST_BLOCK = 7 * 86_400_000
#: Why a hold may have been lost, if no server says so.
ENDED = "its lease ended, somebody else ended the hold, or it was still held when a drain ended"
#: Seconds between two warnings of a client.
WORRIES = 5.0


class Job:
    """Does what a machine asks for, on behalf of the seat's holder, until the seat is free."""

    link: Any = None  # its own connection
    inbox: Optional[Inbox] = None  # where late replies come
    post: Optional[Post] = None  # of the latest request that may have a late reply
    is_closed = False
    is_new = False  # it asks for a hold that its owner has not: a drain ends it
    is_batched = False  # whoever runs the steps sends the request
    asks_at: Any = None  # where -ASK has sent us
    trouble: Optional[Exception] = None  # of the last request
    brought: tuple[Words, Words] = (), ()  # what an operation brought that was interrupted

    def __init__(self, io: Any, seat: Seat, options: Options, depth: int, machine: Any, warns_at: float = FOREVER):
        self.io, self.seat, self.options, self.depth, self.machine = io, seat, options, depth, machine
        self.warns_at = warns_at

    def steps(self, told: Words) -> Steps:
        """Continues until there is a result for the caller, or the machine has ended."""
        machine, io = self.machine, self.io
        while True:
            tell = self.done(machine.step(ms(), told))
            op = machine.op
            if op is GRANT or op is OVER:
                self.end()
                return tell
            if tell is not None:
                return tell
            told = yield from self.bring(op)
            if not self.is_closed and (io.is_closing or (self.is_new and io.is_draining)):
                self.is_closed, self.brought, told = True, (op, told), ("close",)

    def bring(self, op: Words) -> Steps:
        """What ends an operation."""
        interrupted, brought = self.brought
        if brought and (op is interrupted or op[0] == "await") and brought[0] in ENDS[op[0]]:
            self.brought = (), ()
            return brought
        try:
            if op[0] != "send":
                return (yield from self.perform(op))
            return outcome((yield from self.request(op[1], op[2] / 1000)))
        except (Broken, Refused) as error:
            return self.failed(op, error)

    def request(self, request: Words, until: float) -> Steps:
        """The reply to a request on a shared connection."""
        words = self.words(*request)
        asked = self.seat.key, words, until, self.inbox if words[-3] == "TELL" else None
        reply = yield asked if self.is_batched else self.io.send(*asked)
        return (self.found(reply) or {}).get("token") if request[0] == "info" else reply

    def undo(self) -> Steps:
        """Continues to the end with what `steps` has left to do."""
        yield from self.steps((yield from self.bring(self.machine.op)))

    def cancel(self) -> None:
        """The caller goes away."""
        self.done(self.machine.step(ms(), ("cancel",)))
        if self.machine.op is OVER:  # nothing is to be undone
            self.end()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, once the caller has taken the grant."""
        return self.machine.op is GRANT or self.machine.op is OVER

    def end(self) -> None:
        """Nothing is waited for any more."""
        if self.post is not None:
            self.post.forget()
        if self.machine.op != GRANT:
            self.let_go(is_kept=False)

    def done(self, outputs: list[Words]) -> Optional[Words]:
        """Carries out the outputs that take no time. Returns the result for the caller, if there is one."""
        tell: Optional[Words] = None
        for output in outputs:
            kind = output[0]
            if kind == "tell":
                tell = output[1]
            elif kind == "undo":
                self.seat.is_undone = True
            elif kind == "keep" or kind == "drop":
                self.let_go(kind == "keep")
        return tell

    def let_go(self, is_kept: bool) -> None:
        link, self.link = self.link, None
        if link is not None:
            (self.io.keep if is_kept else self.io.drop)(link)

    def perform(self, op: Words) -> Steps:
        """Performs an operation that is not a request on a shared connection."""
        io, kind, seat = self.io, op[0], self.seat
        until = op[-1] / 1000 if len(op) > 1 else 0.0
        if kind == "open":
            self.link = yield io.open(seat.key, until, self.asks_at)
            return ("opened",)
        if kind == "own":
            if self.link is None:
                return "own", "broken"
            if not self.link.is_open:
                return "own", "unsent"
            yield io.write(self.link, self.acquiring(*op[1:4]))
            return "own", *outcome((yield io.read(self.link, until - now())))
        if kind == "listen":
            where, self.asks_at = self.asks_at, None
            at = self.link and self.link.address
            self.inbox = not where and not at and io.hears(seat.key) or (yield from listens(io, seat.key, until, where, at))
            return "listening", round(io.rtt * 1000)
        if kind == "wait":
            assert self.inbox is not None
            io.crowd = CROWDED
            self.inbox.looks()
            told = yield io.told(self.post, until - now())
            return self.heard(told)
        if kind == "await":  # a caller that is interrupted drops the connection
            return ("broken",)
        if now() >= self.warns_at:
            self.warns_at = FOREVER
            still_waiting(io, seat.name, self.problem)
        yield io.sleep(max(0.0, until - now()))
        return ("time",)

    def heard(self, told: Words) -> Words:
        """A late reply."""
        if told[:2] != ("message", "refused"):
            return told
        self.trouble = error = told[2]
        where = redirected(self.io, error, self.inbox and self.inbox.link)
        self.asks_at = where if error.code == "ASK" else None
        return "message", "refused", error.code

    def failed(self, op: Words, error: Union[Broken, Refused]) -> Words:
        self.trouble, self.asks_at = error, None
        if isinstance(error, Refused):
            if op[0] == "own":
                error.where = redirected(self.io, error, self.link)
            self.asks_at = error.where if error.code == "ASK" else None
            failure: Words = ("refused", error.code)
        elif op[0] in ("open", "listen") or isinstance(error, Unsent):
            failure = ("unsent",)
        else:
            failure = ("silent",) if isinstance(error, Silent) else ("broken",)
        return ("own", *failure) if op[0] == "own" else failure

    def acquiring(self, block: Optional[float] = None, session: bool = False, depth: Optional[int] = None) -> list[Any]:
        words = ["RLOCK.ACQUIRE", self.seat.key, self.seat.owner, *self.options.words, "DEPTH", depth or self.depth]
        return words + self.waiting(block, session)

    def waiting(self, block: Optional[float], session: bool) -> list[Any]:
        """The arguments that say how a request waits, and where its late reply comes."""
        words: list[Any] = ["SESSION"] if session else []
        if block is not None:
            # The server accepts no longer BLOCK. 0 has no limit; the attempt still ends by itself.
            words += ["BLOCK", block if block <= LONGEST_BLOCK else 0]
            if self.options.maxqueue is not None:
                words += ["MAXQUEUE", self.options.maxqueue]
        elif not self.options.acks:
            return words
        return words + self.telling()

    def telling(self) -> list[Any]:
        """The arguments of a request that may have a late reply; late replies to earlier requests are ignored."""
        assert self.inbox is not None
        if self.post is not None:
            self.post.forget()
        self.post = Post(self.inbox, self.io.channel(self.seat.key))
        return self.post.words

    def words(self, name: str, token: Any = None, depth: int = 0) -> list[Any]:
        """A request on a shared connection."""
        key, owner, kind = self.seat.key, self.seat.owner, self.options.kind
        if name == "acquire":
            return self.acquiring(token)  # which is how long it waits
        if name == "renew":
            return self.renewing(token, depth or self.options.lease_ms)
        if name == "release":
            return ["RLOCK.RELEASE", key, owner, kind, "TOKEN", token, "DEPTH", depth]
        if name == "info":
            return ["RLOCK.INFO", key, "HOLDERS", 10000, "WAITERS", 0]
        return ["RLOCK." + name.upper(), key, owner]

    def renewing(self, token: int, lease: int) -> list[Any]:
        acks = ["ACKS", self.options.acks, *self.telling()] if self.options.acks else []
        return [*self.held(), "LEASE", lease, "TOKEN", token, *acks]

    def held(self) -> list[Any]:
        """What is renewed."""
        return ["RLOCK.RENEW", self.seat.key, self.seat.owner, self.options.kind]

    def found(self, info: Any, mode: Optional[str] = None) -> Optional[dict[str, Any]]:
        """What a reply to RLOCK.INFO reports about this owner's hold."""
        held = (pairs(row) for row in pairs(info)["holders"])
        mine = (self.seat.owner, (mode or self.options.kind).lower())
        return next((each for each in held if (each["owner"], each["mode"]) == mine), None)

    @property
    def problem(self) -> str:
        return str(self.trouble or "") or "no reply in time"

    def error(self, told: Words, what: str = "") -> LockError:
        """The exception for a result."""
        key, owner = self.seat.name, self.seat.owner
        if told[0] == "refused" and isinstance(self.trouble, Refused):
            return self.trouble
        if told[0] == "lost":
            return LockLost(f"{key} was lost by {owner}: {self.trouble or ENDED}")
        kind = {"noreplicas": NoReplicas, "closed": Closed}.get(told[0], Unavailable)
        return kind(f"{key}: {what}{'closed' if told[0] == 'closed' else self.problem}")


Seat.job = Job


def attempt(io: Any, seat: Seat, options: Options, start: float, wait: Optional[float], patience: float) -> Job:
    """One acquisition by the owner whose seat is given. The wait began at `start`."""
    held = seat.tenure
    depth = held.depth + 1 if held else 1
    # The clock is rounded down to milliseconds, but a wait must not be short.
    left = FOREVER if wait is None else max(1, int(wait * 1000 + start - ms()) + 2) if wait > 0 else 0
    machine = Attempt(
        left, int(patience * 1000), io.outage * 1000, options.lease_ms, depth, held.token if held else None,
        bool(left and io.crowd and io.hears(seat.key)), options.session, bool(options.acks),
    )
    job: Job = seat.job(io, seat, options, depth, machine, now() + patience if left else FOREVER)
    job.is_new = held is None
    io.jobs.add(job)
    io.crowd = max(0, io.crowd - 1)
    return job


def release(io: Any, tenure: Tenure, patience: float) -> Job:
    """Releases one level, for an owner that has the seat."""
    lease, deadline = tenure.options.lease_ms, tenure.deadline if tenure.held else 0
    machine = Release(max(0, int(patience * 1000)), lease, tenure.depth, tenure.token, deadline, tenure.lingers)
    job: Job = tenure.seat.job(io, tenure.seat, tenure.options, tenure.depth, machine)
    io.jobs.add(job)
    return job


def unreleased(tenure: Tenure) -> LockError:
    """The error of a release that waited for its seat in vain."""
    key, owner = tenure.seat.name, tenure.seat.owner
    if not tenure.held:
        return LockLost(f"{key} was lost by {owner}")
    return Unavailable(f"{key}: not known to be released: another request of {owner} is under way")


def after(job: Job, tenure: Tenure, told: Optional[Words]) -> Job:
    """What gets the seat after a release: if a request of a lost hold was never answered, the job that undoes it."""
    if tenure.depth > 0 or told != LOST or not tenure.lingers:
        return job
    job.io.jobs.discard(job)
    job = tenure.seat.job(job.io, tenure.seat, tenure.options, 1, Release(0, tenure.options.lease_ms, 1, tenure.token, 0, True))
    job.cancel()  # nobody waits for it
    return job


def outcome(reply: Any) -> Words:
    """The outcome of a request, from its reply."""
    return ("nil",) if reply is None else ("waiting",) if reply == "WAITING" else ("token", reply)


def pairs(flat: list[Any]) -> dict[str, Any]:
    return dict(zip(flat[::2], flat[1::2]))


def redirected(io: Any, refused: Refused, link: Any) -> Any:
    """The target of -MOVED or -ASK, seen from there; otherwise None."""
    # The address may lead to another server by now: connections to a server that is not a primary are not reused.
    if link is not None and refused.code in NO_PRIMARY:
        io.distrust(link.address, now())
        io.drop(link)
    return io.route.redirected(refused, link.address if link else None)


def still_waiting(io: Any, key: str, problem: str) -> None:
    """Logs a warning, once for all waits of a client that lose their server at about the same time."""
    io.worried += 1
    if now() >= io.worries_at:
        others, io.worried = io.worried - 1, 0
        io.worries_at = now() + WORRIES
        also = f", and {others} other waits since the last such line" if others else ""
        log.warning("%s: still waiting%s; last error: %s", key, also, problem)


def repeated(io: Any, key: str, until: float, warns_at: float, ask: Any, is_over: Callable[[], bool]) -> Steps:
    """What `ask` brings, which is asked until it is answered, or it `is_over`; then Unavailable."""
    pause = FIRST_PAUSE / 1000
    while True:
        try:
            return (yield from ask())
        except Broken as broken:
            problem = str(broken) or "no reply in time"
        except Refused as refused:
            if refused.code not in PASSING:
                raise
            problem = str(refused)
        yield io.sleep(max(0.0, min(pause, until - now())))
        if is_over():
            raise Closed(f"{key}: closed")
        if now() >= until:
            raise Unavailable(f"{key}: {problem}")
        if now() >= warns_at:
            warns_at = FOREVER
            still_waiting(io, key, problem)
        pause = min(pause * 2, LONGEST_PAUSE / 1000)


def settle(io: Any, key: str, wait: Optional[float], patience: float) -> Steps:
    """What the server of that key says that it is."""
    until = min(FOREVER if wait is None else now() + (wait or patience), now() + io.outage)
    asks = lambda: io.identify(key, max(now(), until) + LATE)  # noqa: E731
    return repeated(io, key, until, now() + patience, asks, lambda: io.is_draining)


def extend(io: Any, tenure: Tenure, lease: float, patience: float) -> Steps:
    """Makes a hold last at least this many seconds from now. Raises LockLost if there is none, Unavailable if that is
    unknown."""
    tenure = tenure.root  # one of several locks has the deadline of them all
    sent, until = 0.0, min(now() + patience, tenure.deadline / 1000)
    job = tenure.seat.job(io, tenure.seat, tenure.options, 1, None)

    def ask() -> Steps:
        nonlocal sent
        if tenure.options.acks:
            job.inbox = yield from listens(io, tenure.seat.key, min(now() + REPLY, until))
        sent = ms()
        said = yield from job.request(("renew", tenure.token, int(lease * 1000)), min(now() + REPLY, until))
        if said == "WAITING":
            told = job.heard((yield io.told(job.post, min(ACKS / 1000, until - now()))))
            if told[:2] == ("message", "refused"):
                raise job.trouble
            if told[:2] != ("message", "token"):
                raise Silent("no acknowledgment in time")

    try:
        if not tenure.held:
            raise Refused("NOTHELD", "it was lost before")
        yield from repeated(io, tenure.seat.key, until, FOREVER, ask, lambda: io.is_closing)
    except (Refused, Unavailable) as error:
        # Another value may have replaced the key, too.
        if tenure.held and getattr(error, "code", "") not in ("NOTHELD", "WRONGTYPE"):
            raise
        raise LockLost(f"{tenure.seat.key} is no longer held by {tenure.seat.owner}: {error}") from None
    finally:
        if job.post is not None:
            job.post.forget()
    tenure.extended(sent + lease * 1000)


def question(io: Any, key: str, words: list[Any]) -> Steps:
    """Asks once. Raises Unavailable if there is no reply in time."""
    try:
        return (yield io.send(key, words, now() + REPLY))
    except Broken as broken:
        raise Unavailable(f"{key}: {str(broken) or 'no reply in time'}") from None
