"""One run in each interval, on all machines together: see clients/ALGORITHM.md."""

from __future__ import annotations

import inspect
import math
from typing import Any, Callable, Literal, Optional

from ._core import Steps, now, number
from ._errors import LockError, LockLost

IfItFails = Literal["keep", "again"]


class Turn:
    """One run in its interval."""

    def __init__(self, every: float, body: Callable[..., Any], is_async: bool, if_it_fails: str, lease: float, acks: Optional[int]):
        if if_it_fails not in ("keep", "again"):
            raise ValueError(f"if_it_fails must be 'keep' or 'again', not {if_it_fails!r}")
        if not 0.001 <= number(every, "every") <= 7 * 86400:
            raise ValueError(f"every must be from 0.001 to 604800 seconds, not {every}")
        if not callable(body) or inspect.iscoroutinefunction(body) != is_async:
            raise TypeError(f"{body} must be a function, with `async def` only in rlock.asyncio")
        self.every, self.body, self.is_again, self.acks, self.until = every, body, if_it_fails == "again", acks, 0.0
        # With `keep`, the grant lasts for the interval, whatever happens to this process.
        self.options: Any = {"lease": lease if self.is_again else every, "renew": self.is_again, "acks": acks, "reentrant": False}

    def begins(self) -> None:
        """The server counts from the grant, which was earlier: so no interval is too short."""
        self.until = now() + self.every

    def ends(self, locks: Any, hold: Any, has_failed: bool) -> Steps:
        rest = self.until - now()
        if rest > 0 and hold.held and not (has_failed and self.is_again):
            try:
                if self.is_again and self.acks:
                    yield hold.extend(rest)
                is_kept = (yield from locks._asking(hold.key, lambda: keeps_out(hold, self.until - now()))) is not None
            except LockError:
                if not self.is_again:
                    return  # it ends with the interval anyway
                yield hold.release()
                raise
            if is_kept:
                try:
                    yield hold.release()
                except LockLost:
                    pass  # its lease ended behind the READ, which nobody came before
                return
        yield hold.release()


def keeps_out(hold: Any, rest: float) -> list[Any]:
    """READ in addition to one's own WRITE is granted at once. It outlives the WRITE, and keeps every other WRITE out."""
    return ["RLOCK.ACQUIRE", hold.key, hold.owner, "READ", "LEASE", max(1, math.ceil(rest * 1000)), "DEPTH", 1]
