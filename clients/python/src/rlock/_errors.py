"""Every error of the package."""

from __future__ import annotations

from typing import Any


class LockError(Exception):
    """Every error of this package."""


class NotAcquired(LockError, TimeoutError):
    """The lock was not free in time (`with`, and the decorator; `acquire` returns None)."""


class NotHeld(LockError):
    """There is nothing to release: it was released before, or belongs to another thread, task or process."""


class LockLost(LockError):
    """The hold ended before it was released, perhaps by the end of a drain: others may have worked at the same time."""


class Unavailable(LockError, ConnectionError):
    """No server was reached, or none could decide, in time."""


class Closed(Unavailable):
    """The client was closed, or is being drained: nothing is acquired any more."""


class OtherLoop(LockError, RuntimeError):
    """The client is in use in another event loop, which is still open. Nothing was sent."""


class NoReplicas(Unavailable):
    """Too few replicas were connected for all that time."""


class Refused(LockError):
    """The server refused. `code` is the first word of its error."""

    where: Any = None  # it has sent us there

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code = code


class Deadlock(Refused):
    """The wait would never end: release what you hold, then start over."""


class TooMany(Refused):
    """A limit of the server is reached: waiters, tickets, sessions or depth."""


class NoAcks(Refused):
    """Too few replicas acknowledged in time; the lock was released."""


class NoPermission(Refused):
    """The user of this client may not do that."""


KINDS: dict[str, type[Refused]] = {"DEADLOCK": Deadlock, "TOOMANY": TooMany, "NOACKS": NoAcks, "NOPERM": NoPermission}


class Broken(Exception):
    """A connection broke, or there was no reply in time: the request may have been executed or not."""


class Unsent(Broken):
    """There is no connection: nothing was executed."""


class Silent(Broken):
    """There was no reply in time, on a connection that is open."""
