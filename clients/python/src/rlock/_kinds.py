"""What can be acquired: what both packages share."""

from __future__ import annotations

from typing import Any, Callable, Generic, Iterable, Optional, TypedDict, TypeVar, Union

from . import _core as core
from ._core import Options, Steps, Tenure, key_name, seconds
from ._drive import pairs
from ._errors import NotAcquired, NotHeld
from ._several import Key, merged
from ._watch import observe

C = TypeVar("C")
UNSET: Any = object()


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


class AcquirableBase:
    """What a `with` acquires: a lock, several, or one of many."""

    def __init__(self, locks: Any, wait: Optional[float], options: Options):
        self._locks, self.wait, self._options = locks, seconds(wait), options
        self._entered: dict[Any, list[Any]] = {}  # what `with` has acquired, of each thread or task

    @property
    def _name(self) -> str:
        """For messages."""
        raise NotImplementedError

    def acquire(self, wait: Optional[float] = UNSET) -> Any:
        """Returns a hold, or None if it was not free in time."""

    def _wait(self, wait: Optional[float]) -> Optional[float]:
        """Of a call."""
        return self.wait if wait is UNSET else seconds(wait)

    def _acquiring(self, wait: Optional[float], me: Any) -> Steps:
        """Acquires for that thread or task."""
        raise NotImplementedError

    def _not_acquired(self) -> NotAcquired:
        return NotAcquired(f"{self._name}: not free within {self.wait} s")


class LockBase(AcquirableBase, Generic[C]):
    mode = "WRITE"
    _locks_of: Callable[[Any], Any]

    def __init__(
        self,
        client: C,
        key: Union[str, bytes],
        *,
        wait: Optional[float] = None,
        lease: float = 30.0,
        owner: Optional[str] = None,
        maxqueue: Optional[int] = None,
        acks: Optional[int] = None,
        session: bool = False,
        upgrade: bool = False,
        renew: bool = True,
        limit: Optional[int] = None,
        reentrant: bool = True,
    ):
        mode = "READ" if limit is not None else self.mode
        options = Options(mode, lease, owner, limit, maxqueue, acks, session, upgrade, renew, reentrant)
        super().__init__(type(self)._locks_of(client), wait, options)
        self.key = key_name(key)

    @property
    def _name(self) -> str:
        return self.key

    def _acquiring(self, wait: Optional[float], me: Any) -> Steps:
        return self._locks._acquiring(self.key, self._options, wait, me)  # type: ignore[no-any-return]

    def release(self) -> Any:
        """Releases one level of what this thread or task (or `owner`) holds."""

    def _releasing(self) -> Steps:
        tenure = self._own_tenure()
        if tenure.root is not tenure and tenure.depth == 1:
            raise NotHeld(f"{tenure.seat.key} is held together with others: release those")
        return self._locks._releasing(tenure)  # type: ignore[no-any-return]

    def locked(self) -> Any:
        """Asks the server whether anybody holds it, in any mode."""

    def _is_locked(self) -> Steps:
        said = yield from self._locks._asking(self.key, lambda: ["RLOCK.INFO", self.key, "WAITERS", 0])
        return bool(pairs(said)["mode"] != "free")

    def owned(self) -> Any:
        """Asks the server whether this thread or task (or `owner`) holds it; `held` answers without asking."""

    def _is_owned(self) -> Steps:
        words = lambda: ["RLOCK.HOLDS", self.key, self._options.owner or self._locks.owner(), self._options.kind]  # noqa: E731
        return bool((yield from self._locks._asking(self.key, words)))

    @property
    def _tenure(self) -> Optional[Tenure]:
        owner = self._options.owner or self._locks.owner()
        space = self._locks.space
        seat = space and space.seats.get((self.key, owner, self._options.kind))
        return seat.tenure if seat else None

    @property
    def held(self) -> bool:
        """Whether this thread or task (or `owner`) certainly holds it."""
        tenure = self._tenure
        return tenure is not None and tenure.is_sure

    def _own_tenure(self) -> Tenure:
        if not self._options.reentrant:
            raise NotHeld(f"{self.key}: each acquisition has an owner of its own (reentrant=False): release the hold")
        tenure = self._tenure
        if tenure is None:
            raise NotHeld(f"{self.key} is not held by {self._options.owner or self._locks.owner()}")
        return tenure


class SeveralBase(AcquirableBase):
    def __init__(self, locks: Any, keys: tuple[Key, ...], options: Wishes):
        rest: Any = dict(wished(options))
        super().__init__(locks, rest.pop("wait", None), Options(**rest))
        self._parts = merged(keys, locks.io.route.is_cluster)
        self.keys = [each.key for each in self._parts]

    @property
    def _name(self) -> str:
        return ", ".join(self.keys)

    def _acquiring(self, wait: Optional[float], me: Any) -> Steps:
        holds = yield from self._locks._acquiring_all(self._parts, self._options, wait, me)
        return None if holds is None else self._locks._holds(self.keys, holds)


class AnyBase(AcquirableBase):
    def __init__(self, locks: Any, pool: Union[str, bytes], keys: Iterable[Union[str, bytes]], options: Wishes):
        if isinstance(keys, (str, bytes)):
            raise TypeError("the keys are a list of keys, not one key")
        rest: Any = dict(wished(options))
        super().__init__(locks, rest.pop("wait", None), Options(**{**rest, "reentrant": False}))
        self.pool, self.keys = key_name(pool), list(dict.fromkeys(map(key_name, keys)))
        if not self.keys or self.pool in self.keys:
            raise ValueError("at least one key, and a name for all of them that is none of them")

    @property
    def _name(self) -> str:
        return ", ".join(self.keys)

    def _acquiring(self, wait: Optional[float], me: Any) -> Steps:
        return self._locks._acquiring_any(self.pool, self.keys, self._options, wait, me)  # type: ignore[no-any-return]


class ElectionBase:
    def __init__(self, locks: Any, key: Union[str, bytes], name: Optional[str], lease: float):
        self._locks, self.name, self.lease = locks, name, lease
        self.key = key_name(key)

    def campaign(self, wait: Optional[float] = None) -> Any:
        """Waits to lead. Returns a hold, or None if it does not lead in time.

        If its connection ends, `held` is false at once. The hold is lost when the server says so; if the server
        cannot be reached, when the lease ends by this machine's clock.
        """

    def _campaigning(self, wait: Optional[float], me: Any) -> Steps:
        # A name for each campaign: a process that leads does not lead twice, and an ended term belongs to nobody.
        host, _, unique = core.NAMES.new().rpartition("/")
        options = Options(lease=self.lease, owner=f"{self.name or host}/{unique}", session=True)
        hold = yield from self._locks._acquiring(self.key, options, wait, me)
        if hold is not None:
            observe(self._locks, hold._tenure)
        return hold

    def leader(self) -> Any:
        """The current leader."""

    def observe(self) -> Any:
        """Observes the leader: the current one, and each new one."""
