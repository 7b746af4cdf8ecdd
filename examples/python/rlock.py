"""A lock for redis-py. Copy this file.

    client = redis.Redis(socket_timeout=60)
    with Lock(client, "order:42", wait=10) as lock:
        for step in work:
            lock.check()  # raises LockLost when the hold may be over
            store(step, lock.token)

One Lock is one owner: it belongs to one thread, and entering it again there adds a level. While it is held a
thread renews the lease. The client resends by itself what got no reply in time; DEPTH makes that harmless.
"""

import threading
import time
import uuid

import redis


class NotAcquired(TimeoutError):
    """Somebody else held the lock until the wait was over."""


class Deadlock(RuntimeError):
    """The wait would never end. Let go of what you hold, then begin again."""


class LockLost(RuntimeError):
    """The hold was over before it was released: others may have worked at the same time."""


class Lock:
    """Seconds for `wait` (None: do not wait) and `lease`; `mode` is WRITE or READ."""

    def __init__(self, client, key, *, mode="WRITE", wait=10.0, lease=30.0):
        limit = client.get_connection_kwargs().get("socket_timeout")
        if wait is not None and limit is not None and limit <= wait:
            # It would hang up in the midst of the wait, ask again, and so lose its place in the queue.
            raise ValueError(f"the client's socket_timeout of {limit} s must be longer than the wait of {wait} s")
        self.client, self.key, self.mode, self.wait, self.lease = client, key, mode, wait, lease
        self.owner = uuid.uuid4().hex
        self.token = None
        self._depth = 0
        self._lost = threading.Event()
        self._sure_until = 0.0
        self._stop = threading.Event()

    def acquire(self):
        """True: held. False: the wait was over before."""
        if self._depth > 0:
            self.check()
        words = [self.key, self.owner, self.mode, "LEASE", int(self.lease * 1000)]
        if self.wait is not None:
            # BLOCK 0 would wait for ever, so the shortest wait is 1 ms.
            words += ["BLOCK", max(1, int(self.wait * 1000))]
        try:
            token = self.client.execute_command("RLOCK.ACQUIRE", *words, "DEPTH", self._depth + 1)
        except redis.ResponseError as error:
            if str(error).startswith("DEADLOCK"):
                raise Deadlock(str(error)) from None
            raise
        if token is None:
            return False
        # Later than the server's own count by the way of the reply: the token covers that edge.
        self._sure_until = time.monotonic() + self.lease
        if self._depth == 0:
            self._lost, self._stop = threading.Event(), threading.Event()
            threading.Thread(target=self._keep, args=(token, self._lost, self._stop), daemon=True).start()
        self.token = token
        self._depth += 1
        return True

    @property
    def held(self):
        """Whether the hold is sure: told by the last renewal, and by this machine's clock if none gets through."""
        return self._depth > 0 and not self._lost.is_set() and time.monotonic() < self._sure_until

    def check(self):
        """Raises LockLost unless the hold is sure. For the step after which nothing can be undone, use the token."""
        if not self.held:
            raise LockLost(f"{self.key} is no longer held by {self.owner}")

    def release(self):
        """One level down. Raises LockLost when the hold was over before, which is then the caller's to repair."""
        if self._depth == 0:
            raise RuntimeError(f"{self.key} is not held here")
        was_held = self.held
        self._depth -= 1
        if self._depth == 0:
            self._stop.set()
        # "Down to this depth", sent again or too late, changes nothing and is no error.
        self.client.execute_command("RLOCK.RELEASE", self.key, self.owner, self.mode, "DEPTH", self._depth)
        if not was_held:
            raise LockLost(f"{self.key} was lost before {self.owner} released it")

    def _keep(self, token, lost, stop):
        """Renews every third of the lease until the hold is released or lost."""
        words = [self.key, self.owner, self.mode, "LEASE", int(self.lease * 1000), "TOKEN", token]
        while not stop.wait(self.lease / 3):
            sent = time.monotonic()
            try:
                self.client.execute_command("RLOCK.RENEW", *words)
                self._sure_until = max(self._sure_until, sent + self.lease)
            except redis.ResponseError as error:
                if str(error).startswith("NOTHELD"):
                    lost.set()  # or just released by us: then nobody looks
                    return
            except redis.RedisError:
                pass  # the next turn tries again; `held` counts the time by itself

    def __enter__(self):
        if not self.acquire():
            raise NotAcquired(f"{self.key} was not free within {self.wait} s")
        return self

    def __exit__(self, *_):
        self.release()
