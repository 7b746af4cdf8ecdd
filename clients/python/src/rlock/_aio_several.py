"""Several locks and elections for asyncio. Made by `Locks.all` and `Locks.election`."""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine, Optional

from ._aio import run
from ._api import UNSET, left, seconds
from ._errors import NotAcquired
from ._several import ElectionBase, HoldsBase, Leader, ObserverBase, SeveralBase, leader
from .asyncio import Hold, releases


class Holds(HoldsBase):
    """Several locks that are held. Any task may release them, once."""

    @property
    def lost(self) -> asyncio.Event:
        """Set when one of them is lost, at its deadline at the latest."""
        if self._lost is None:
            self._lost = asyncio.Event()
            self.on_lost(self._lost.set)
        return self._lost  # type: ignore[no-any-return]

    async def release(self) -> None:
        """Releases them all. Raises LockLost if one of them ended before."""
        self._holds[0]._grip.is_released_by(asyncio.current_task())
        await self._holds[0]._locks._release_all(self._holds)

    async def extend(self, lease: float) -> None:
        """They last `lease` seconds from now at least. Raises LockLost if one of them ended."""
        for hold in self._holds:
            await hold.extend(lease)

    async def __aenter__(self) -> "Holds":
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        await releases(self.release, error, ", ".join(self.keys))


class AllLocks(SeveralBase):
    """Several locks, acquired in one step: all of them, or none. May be shared by tasks."""

    def acquire(self, wait: Optional[float] = UNSET) -> Coroutine[Any, Any, Optional[Holds]]:
        """Returns a hold of them all, or None if they were not all free in time. The owner is the task that calls this."""
        task = None if self._options.owner else asyncio.current_task()
        return self._acquired(self.wait if wait is UNSET else seconds(wait), task)

    async def _acquired(self, wait: Optional[float], task: Any) -> Optional[Holds]:
        holds: Optional[list[Hold]] = await self._locks._acquire_all(self._parts, self._options, wait, task)
        return None if holds is None else Holds(self.keys, holds)

    async def __aenter__(self) -> Holds:
        hold = await self.acquire()
        if hold is None:
            raise NotAcquired(f"{', '.join(self.keys)} were not free within {self.wait} s")
        self._entered.setdefault(asyncio.current_task(), []).append(hold)
        return hold

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        hold = left(self._entered, asyncio.current_task(), ", ".join(self.keys))
        await releases(hold.release, error, ", ".join(self.keys))


class Observer(ObserverBase):
    """Tells of who leads, at first and whenever that changes: a Leader, or None while nobody does."""

    def __aiter__(self) -> "Observer":
        return self

    async def __anext__(self) -> Optional[Leader]:
        try:
            leads: Optional[Leader] = await run(self._next())
        except BaseException:
            self._leave()
            raise
        if self.is_over:
            raise StopAsyncIteration
        return leads

    async def __aenter__(self) -> "Observer":
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()


class Election(ElectionBase):
    """Who leads: whoever holds the lock, in a session."""

    async def campaign(self, wait: Optional[float] = None) -> Optional[Hold]:
        """Waits to lead. Returns a hold, or None if it was not in time.

        If its connection ends, `held` is false at once. It is lost when the server says so; if the server cannot be
        reached, when the lease ends by this machine's clock.
        """
        return await self._locks._acquire(self.key, self._options(), seconds(wait), None)  # type: ignore[no-any-return]

    async def leader(self) -> Optional[Leader]:
        """Who leads now."""
        return await run(leader(self._locks.io, self.key))  # type: ignore[no-any-return]

    def observe(self) -> Observer:
        """Who leads, now and whenever that changes."""
        return Observer(self._locks.io, self.key)
