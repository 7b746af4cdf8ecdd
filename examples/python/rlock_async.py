"""The lock for asyncio, with redis-py (Python 3.11 or later). Copy this file.

    client = redis.asyncio.Redis(socket_timeout=60)
    async with Lock(client, "order:42", wait=10) as lock:
        ...

One Lock is one owner and belongs to one task. While it is held a task renews the lease; the task that holds it is
cancelled at its next `await` when the hold is lost, and `async with` makes a LockLost of that.
"""

import asyncio
import uuid

import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError


class NotAcquired(TimeoutError):
    """Somebody else held the lock until the wait was over."""


class Deadlock(RuntimeError):
    """The wait would never end. Let go of what you hold, then begin again."""


class LockLost(RuntimeError):
    """The hold was over before it was released: others may have worked at the same time."""


class Lock:
    """Seconds for `wait` and `lease`; `mode` is WRITE or READ."""

    def __init__(self, client: redis.Redis, key, *, mode="WRITE", wait=10.0, lease=30.0):
        limit = client.get_connection_kwargs().get("socket_timeout")
        if limit is not None and limit <= wait:
            # It would hang up in the midst of the wait, ask again, and so lose its place in the queue.
            raise ValueError(f"the client's socket_timeout of {limit} s must be longer than the wait of {wait} s")
        self.client, self.key, self.mode, self.wait, self.lease = client, key, mode, wait, lease
        self.owner = uuid.uuid4().hex
        self.token = None
        self.lost = False

    async def __aenter__(self):
        words = [self.key, self.owner, self.mode, "LEASE", int(self.lease * 1000), "DEPTH", 1]
        try:
            # BLOCK 0 would wait for ever, so the shortest wait is 1 ms.
            token = await self.client.execute_command("RLOCK.ACQUIRE", *words, "BLOCK", max(1, int(self.wait * 1000)))
        except ResponseError as error:
            if str(error).startswith("DEADLOCK"):
                raise Deadlock(str(error)) from None
            raise
        except asyncio.CancelledError:
            # redis-py has closed the connection, so the wait is over; a grant that was under way is given back.
            await asyncio.shield(self._let_go())
            raise
        if token is None:
            raise NotAcquired(f"{self.key} was not free within {self.wait} s")
        self.token, self.lost = token, False
        self._work = asyncio.current_task()
        self._cancels = self._work.cancelling()
        self._renewal = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, kind, error, trace):
        self._renewal.cancel()
        try:
            await asyncio.shield(self._let_go())
        except asyncio.CancelledError:
            if not self.lost:
                raise
        # Only our own cancellation becomes a LockLost; one from outside stays what it is.
        if self.lost and self._work.uncancel() <= self._cancels:
            raise LockLost(f"{self.key} was lost before {self.owner} released it") from error

    async def _let_go(self):
        # "Down to depth 0", sent again or too late, changes nothing and is no error.
        await self.client.execute_command("RLOCK.RELEASE", self.key, self.owner, self.mode, "DEPTH", 0)

    async def _keep(self):
        """Renews every third of the lease; says so when the hold is lost, or no longer sure."""
        clock = asyncio.get_running_loop().time
        words = [self.key, self.owner, self.mode, "LEASE", int(self.lease * 1000), "TOKEN", self.token]
        sure_until = clock() + self.lease
        while clock() < sure_until:
            await asyncio.sleep(min(self.lease / 3, sure_until - clock()))
            sent = clock()
            try:
                async with asyncio.timeout_at(sure_until):
                    await self.client.execute_command("RLOCK.RENEW", *words)
                sure_until = sent + self.lease
            except ResponseError as error:
                if str(error).startswith("NOTHELD"):
                    break
            except (RedisError, TimeoutError):
                pass  # the next turn tries again while the hold is sure
        self.lost = True
        self._work.cancel()
