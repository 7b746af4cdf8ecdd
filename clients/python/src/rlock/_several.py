"""Several locks in one step (RLOCK.MACQUIRE).

An owner that asks for several locks takes its seats at all of them, in key order. To the machines they are one seat,
and one hold. A lock that the owner already holds is not among them: the owner re-enters it in a separate request,
after the others are granted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterable, NamedTuple, Optional, Union

from redis.crc import key_slot

from ._core import Options, Seat, Space, Steps, Tenure, key_name, now, raw, shown
from ._drive import Job, question
from ._errors import LockError, Refused
from ._machine.words import Words

#: The server accepts no more locks in one request.
MOST = 128


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

    def __init__(self, space: Space, parts: list[Part], owner: str, mutex: Any):
        self.space, self.owner = space, owner
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

    def take(self, io: Any, patience: float) -> Steps:
        """Takes all seats in time, in key order, or none."""
        until, taken = now() + patience, list[Any]()
        try:
            for seat in list(self.members):
                if not (yield io.takes(seat.mutex, until - now())):
                    break
                taken.append(seat.mutex)
            else:
                self.taken()
                return True
        except NothingWanted:
            raise
        except BaseException:
            back(taken)
            raise
        back(taken)
        return False

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


def back(mutexes: list[Any]) -> None:
    for mutex in mutexes:
        mutex.release()


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
