"""Several locks in one step (RLOCK.MACQUIRE), and elections (RLOCK.AWAIT): what both packages share.

An owner that asks for several locks takes its seats at all of them, in key order. To the machines they are one seat,
and one hold. A lock that the owner already holds is not among them: the owner re-enters it in a separate request,
after the others are granted.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Callable, Iterable, NamedTuple, Optional, TypedDict, Union

from redis.crc import key_slot

from . import _core as core
from ._core import LATE, LOOKS, Options, Seat, Space, Tenure, key_name, ms, now, raw, shown
from ._drive import Job, Steps, question
from ._errors import Broken, Closed, LockError, LockLost, NotHeld, Refused
from ._hands import acquires
from ._inbox import Post, awaits
from ._machine.words import FIRST_PAUSE, LONGEST_PAUSE, LOST, PASSING, Words
from ._telemetry import Counts

#: The server accepts no more locks in one request.
MOST = 128
#: Holds that end sooner, in ms, are not observed.
BRIEF = 100


class Part(NamedTuple):
    """One of several locks."""

    key: str
    mode: str = "WRITE"
    limit: Optional[int] = None


Key = Union[str, bytes, Part]


def part(key: Key, mode: str = "WRITE", limit: Optional[int] = None) -> Part:
    if isinstance(key, Part):
        return key
    return Part(key_name(key), mode, limit)


def read(key: Union[str, bytes]) -> Part:
    """One of several locks: its read lock."""
    return part(key, "READ")


def limit(key: Union[str, bytes], most: int) -> Part:
    """One of several locks: one of `most` permits. Raises TypeError without a number: there would be no limit."""
    if not isinstance(most, int):
        raise TypeError(f"a limit must be an integer, not {most!r}")
    return part(key, "READ", most)


def merged(keys: Iterable[Key], is_cluster: bool) -> list[Part]:
    """In key order, each once. Raises ValueError."""
    parts: dict[str, Part] = {}
    for each in map(part, keys):
        if parts.setdefault(each.key, each) != each:
            raise ValueError(f"{each.key} is named twice, with two modes")
    if not 1 <= len(parts) <= MOST:
        raise ValueError(f"from 1 to {MOST} locks, not {len(parts)}")
    if is_cluster and len({key_slot(raw(key)) for key in parts}) > 1:
        raise ValueError(f"{', '.join(parts)} are in several slots: give them a common {{hash tag}}")
    return sorted(parts.values(), key=lambda each: raw(each.key))


class NothingWanted(Exception):
    """The owner holds all of them already."""


class Group:
    """The seats of one owner at several keys: to machines, they are one seat."""

    mode = "ALL"
    job: Any = None  # see Several

    def __init__(self, space: Space, parts: list[Part], owner: str, mutex: Any, mutexes: Any):
        self.space, self.owner, self.mutex = space, owner, mutexes(self)
        self.parts = {each.key: each for each in parts}
        self.members = [space.seat(each.key, owner, each.mode, mutex) for each in parts]
        self.held: list[Part] = []  # by the owner, when it came
        self.whole: Optional[GroupTenure] = None
        self.lost: Optional[Tenure] = None  # one of the locks that the owner seems to hold

    @property
    def key(self) -> str:
        """The first key: a wait has its place there, whatever it waits for."""
        return self.members[0].key

    @property
    def name(self) -> str:
        return ", ".join(map(shown, self.parts))

    @property
    def is_undone(self) -> bool:
        return any(each.is_undone for each in self.members)

    @is_undone.setter
    def is_undone(self, value: bool) -> None:
        for each in self.members:
            each.is_undone = value

    @property
    def tenure(self) -> Optional[Tenure]:
        return self.lost or self.whole

    @tenure.setter
    def tenure(self, whole: Optional["GroupTenure"]) -> None:
        self.whole = whole
        for each in self.members:
            each.tenure = None if whole is None else Member(whole, each)
        if whole is not None:
            whole.parts = [each.tenure for each in self.members if each.tenure is not None]

    come, unavailable = Seat.come, Seat.unavailable

    def taken(self) -> None:
        """All seats are taken. If the owner already holds one of the locks, nothing is requested, since the reply could
        not distinguish that hold from the new ones.
        """
        if self.whole is not None:
            return
        for each in [each for each in self.members if each.tenure is not None]:
            if not each.tenure.held:  # type: ignore[union-attr]
                self.lost = each.tenure
                return
            self.held.append(self.parts[each.key])
            self.leave(each)
        if not self.members:
            raise NothingWanted

    def again(self, each: Part, options: Options) -> Options:
        """How the owner re-enters a lock that it holds already: in a separate request, with a lease of its own."""
        return replace(options, mode=each.mode, limit=each.limit, maxqueue=None)

    def leave(self, seat: Seat) -> None:
        self.members.remove(seat)
        del self.parts[seat.key]
        self.space.vacate(seat)

    def words(self, name: str, *rest: Any) -> list[Any]:
        keys: list[Any] = [each.key for each in self.members]
        return [f"RLOCK.{name}", len(keys), *keys, self.owner, *rest]

    def modes(self) -> list[Any]:
        wanted = (self.parts[each.key] for each in self.members)
        return ["MODES", *(each.mode if each.limit is None else each.limit for each in wanted)]


class GroupTenure(Tenure):
    """The hold of a group."""

    parts: list[Tenure] = []

    def ends(self) -> list[Callable[[], Any]]:
        """Ends the levels that were added to its locks, and returns the functions to call."""
        return [call for each in self.parts if each.depth > 1 or self.state == "lost" for call in Tenure.lose(each)]

    def lose(self) -> list[Callable[[], Any]]:
        calls = super().lose()
        return [*calls, *self.ends()]


class Member(Tenure):
    """The hold of one key of a group. It is renewed together with the others."""

    whole: Optional[GroupTenure] = None

    def __init__(self, whole: GroupTenure, seat: Seat):
        super().__init__(seat, replace(whole.options, mode=seat.mode), whole.token, int(whole.sent), whole.io)
        self.whole, self.depth, self.lingers = whole, 1, whole.lingers

    @property
    def root(self) -> Tenure:
        return self.whole or self

    @property
    def deadline(self) -> float:
        return self.whole.deadline if self.whole is not None else 0.0

    @deadline.setter
    def deadline(self, value: float) -> None:
        """A level does not change when the other holds end."""


class Several(Job):
    """Does what a machine asks for, for a group."""

    seat: Any

    def acquiring(self, block: Optional[float] = None, session: bool = False, depth: Optional[int] = None) -> list[Any]:
        words: list[Any] = self.seat.words("MACQUIRE", *self.seat.modes(), "LEASE", self.options.lease_ms)
        if self.options.acks is not None:
            words += ["ACKS", self.options.acks]
        return words + self.waiting(block, session)

    def words(self, name: str, token: Any = None, depth: int = 0) -> list[Any]:
        if name == "release":
            return self.seat.words("MRELEASE", "TOKEN", token)  # type: ignore[no-any-return]
        return super().words(name, token, depth)

    def held(self) -> list[Any]:
        return self.seat.words("MRENEW")  # type: ignore[no-any-return]

    def found(self, info: Any, mode: Optional[str] = None) -> Optional[dict[str, Any]]:
        return super().found(info, mode or self.seat.members[0].mode)

    def request(self, request: Words, until: float) -> Steps:
        if request[0] == "info":
            for each in self.seat.members:  # one may have ended by itself
                said = yield self.io.send(each.key, ["RLOCK.INFO", each.key, "HOLDERS", 10000, "WAITERS", 0], until)
                if held := self.found(said, each.mode):
                    return held["token"]
            return None
        reply = yield from super().request(request, until)
        if request[0] == "release" and reply < len(self.seat.members):
            raise Refused("NOTHELD", f"only {reply} of {len(self.seat.members)} were held")
        return reply


Group.job = Several


def rest(group: Group, whole: Tenure) -> Steps:
    """Releases the remaining locks of a lost hold. Otherwise, their leases would end them."""
    try:
        yield from question(whole.io, group.key, group.words("MRELEASE", "TOKEN", whole.token))
    except LockError:
        pass


class Waits:
    """The mutexes of a group, for threads: all are taken, in key order, or none."""

    def __init__(self, group: Group):
        self.group = group

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        until, taken = now() + timeout, list[Any]()
        try:
            for seat in self.group.members:
                left = max(0.0, until - now()) if timeout >= 0 else threading.TIMEOUT_MAX
                if not (acquires(seat.mutex, left) if blocking else seat.mutex.acquire(False)):
                    break
                taken.append(seat.mutex)
            else:
                self.group.taken()
                return True
        except BaseException as error:
            if not isinstance(error, NothingWanted):
                self.back(taken)
            raise
        self.back(taken)
        return False

    def back(self, taken: list[Any]) -> None:
        for mutex in taken:
            mutex.release()


class TaskWaits:
    """The mutexes of a group, for tasks. An acquisition that takes too long is canceled."""

    def __init__(self, group: Group):
        self.group = group

    async def acquire(self) -> bool:
        taken = []
        try:
            for seat in list(self.group.members):
                await seat.mutex.acquire()
                taken.append(seat.mutex)
            self.group.taken()
        except BaseException as error:
            if not isinstance(error, NothingWanted):
                for mutex in taken:
                    mutex.release()
            raise
        return True


class HoldsBase:
    """The hold of several locks: of those granted together, and separately of those that their owner held before."""

    def __init__(self, keys: list[str], holds: list[Any]):
        self.keys, self._holds = keys, holds
        self._lost: Any = None

    @property
    def token(self) -> int:
        """The fencing token. A lock that the owner held before has an older one: `hold.tokens[key]`."""
        tokens: list[int] = [each.token for each in self._holds]
        return max(tokens)

    @property
    def tokens(self) -> dict[str, int]:
        """The token of each lock."""
        return {key: each.token for each in self._holds for key in getattr(each._tenure.seat, "parts", (each.key,))}

    @property
    def owner(self) -> str:
        return self._holds[0].owner  # type: ignore[no-any-return]

    @property
    def held(self) -> bool:
        """Whether all are certainly held."""
        return all(each.held for each in self._holds)

    @property
    def left(self) -> float:
        """Seconds until the first deadline; 0 if they are not all held."""
        return min(each.left for each in self._holds) if self.held else 0.0

    def __repr__(self) -> str:
        return f"<{', '.join(map(repr, self.keys))} held by {self.owner}, token {self.token}, {self.left:.1f} s left>"

    def on_lost(self, call: Callable[[], Any]) -> None:
        """Calls `call` once when one of them is lost, on the package's thread or in the loop. `call` must not block."""
        first = threading.Lock()  # two may be lost in two threads

        def once() -> None:
            if first.acquire(blocking=False):
                call()

        for each in self._holds:
            each.on_lost(once)

    def check(self) -> None:
        """Raises LockLost unless all are certainly held."""
        if not self.held:
            raise LockLost(f"{', '.join(self.keys)} are no longer held by {self.owner}")


class Wishes(TypedDict, total=False):
    """The options of `Lock` that permits and several locks have as well."""

    wait: Optional[float]
    lease: float
    owner: Optional[str]
    maxqueue: Optional[int]
    acks: Optional[int]
    session: bool
    renew: bool
    reentrant: bool


def wished(options: Wishes) -> Any:
    """Raises TypeError for any other option."""
    for name in options.keys() - Wishes.__annotations__.keys():
        raise TypeError(f"there is no option {name!r} here")
    return options


class SeveralBase:
    def __init__(self, locks: Any, keys: tuple[Key, ...], options: Wishes):
        rest: Any = dict(wished(options))
        self.wait, self._options = core.seconds(rest.pop("wait", None)), Options(**rest)
        self._locks, self._parts = locks, merged(keys, locks.io.route.is_cluster)
        self.keys = [each.key for each in self._parts]
        self._entered: dict[Any, list[Any]] = {}  # what `with` has acquired, of each thread or task


class AnyBase:
    def __init__(self, locks: Any, pool: Union[str, bytes], keys: Iterable[Union[str, bytes]], options: Wishes):
        if isinstance(keys, (str, bytes)):
            raise TypeError("the keys are a list of keys, not one key")
        rest: Any = dict(wished(options))
        self.wait, self._options = core.seconds(rest.pop("wait", None)), Options(**{**rest, "reentrant": False})
        self._locks, self.pool, self.keys = locks, key_name(pool), list(dict.fromkeys(map(key_name, keys)))
        if not self.keys or self.pool in self.keys:
            raise ValueError("at least one key, and a name for all of them that is none of them")
        self._entered: dict[Any, list[Any]] = {}  # what `with` has acquired, of each thread or task


class Leader(NamedTuple):
    """The leader of an election."""

    token: int
    owner: str

    @property
    def name(self) -> str:
        """The name that its election was given."""
        return self.owner.rpartition("/")[0]


class ElectionBase:
    def __init__(self, locks: Any, key: Union[str, bytes], name: Optional[str], lease: float):
        self._locks, self.name, self.lease = locks, name, lease
        self.key = key_name(key)

    def _options(self) -> Options:
        # A name for each campaign: a process that leads does not lead twice, and an ended term belongs to nobody.
        host, _, unique = core.NAMES.new().rpartition("/")
        return Options(lease=self.lease, owner=f"{self.name or host}/{unique}", session=True)


def asked(io: Any, key: str, token: Optional[int], block: int, is_over: Callable[[], bool]) -> Steps:
    """The holder, unless with that token, or where the late reply comes. Asks repeatedly until one of them is known, or
    it `is_over`."""
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
    """Yields the current leader, and then each new one: a Leader, or None."""

    def __init__(self, io: Any, key: str):
        self.io, self.key = io, key
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
        self.is_over = True
        if self.post is not None:
            self.post.put(LOST)


class Watch:
    """Notices the end of a hold as soon as the server does."""

    post: Optional[Post] = None

    def __init__(self, locks: Any, tenure: Tenure):
        self.locks, self.tenure = locks, tenure
        locks._begin(self.asks())

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
                self.locks._lost(self.tenure)
            elif told[:2] != ("message", "refused") or told[2].code in PASSING:
                self.locks._begin(self.asks())

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


def tenures(io: Any) -> set[Tenure]:
    """What a client holds, and what it lost but has not released yet."""
    if io.space is None:
        return set()
    with io.space.lock:
        roots = {seat.tenure.root for seat in io.space.seats.values() if seat.tenure is not None}
    return {each for each in roots if each.io is io}


def holding(io: Any) -> list[Tenure]:
    """The holds that the server may still have, and that their users have not released."""
    return [each for each in tenures(io) if each.state in ("held", "releasing") and ms() < each.deadline]


def counts(io: Any) -> Counts:
    """What is known of a client's locks now."""
    told = io.telemetry
    mine = sum(each.held for each in tenures(io))
    return Counts(mine, len(told.waits), told.losses, told.failed_renewals, told.unreported)


def own_level(tenure: Tenure) -> Tenure:
    """Refuses to release the level that several locks hold together."""
    if tenure.root is not tenure and tenure.depth == 1:
        raise NotHeld(f"{tenure.seat.key} is held together with others: release those")
    return tenure
