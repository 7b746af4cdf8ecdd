"""Locks on a Redis or Valkey server with the RLOCK module, over redis-py. For asyncio: `rlock.asyncio`.

    import redis, rlock

    client = redis.Redis()
    with rlock.Lock(client, "order:42", wait=10) as hold:
        store(..., hold.token)
"""

from ._errors import Closed, Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, Refused
from ._errors import TooMany, Unavailable
from ._several import limit, read
from ._sync import AllLocks, Election, Hold, Holds, Lock, Locks, Observer, Permit, ReadLock
from ._telemetry import Counts, Held, Listener, Waited
from ._watch import Leader

__all__ = [
    "AllLocks", "Closed", "Counts", "Deadlock", "Election", "Held", "Hold", "Holds", "Leader", "Listener", "Lock", "LockError",
    "LockLost", "Locks", "NoAcks", "NoPermission", "NoReplicas", "NotAcquired", "NotHeld", "Observer", "Permit", "ReadLock",
    "Refused", "TooMany", "Unavailable", "Waited", "limit", "read",
]
