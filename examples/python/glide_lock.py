"""Valkey GLIDE in a Cluster: one shared connection, and waits that do not block it. docs/wrappers.md explains each step."""

import asyncio
import itertools
import os
import uuid

from glide import GlideClusterClient, GlideClusterClientConfiguration, NodeAddress

LOOKS = 1  # seconds: a lost message costs at most this


class Locks:
    """Locks whose keys have one hash tag, and therefore one slot and one channel."""

    @classmethod
    async def connect(cls, address: NodeAddress, tag: str) -> "Locks":
        self = cls()
        self.channel = f"rlock:tell:{{{tag}}}:{uuid.uuid4().hex[:16]}"
        self.ids, self.waits, self.loop = itertools.count(1), {}, asyncio.get_running_loop()
        hears = GlideClusterClientConfiguration.PubSubSubscriptions({}, self._hear, None)
        self.client = await GlideClusterClient.create(GlideClusterClientConfiguration([address], pubsub_subscriptions=hears))
        await self.client.ssubscribe({self.channel}, timeout_ms=2000)
        return self

    def _hear(self, message, _context) -> None:
        id, outcome = message.message.split(b" ", 1)
        self.loop.call_soon_threadsafe(self._end, id.decode(), outcome)

    def _end(self, id: str, outcome: bytes) -> None:
        if (wait := self.waits.get(id)) and not wait.done():
            wait.set_result(outcome)

    async def acquire(self, key: str, owner: str, seconds: float) -> int | None:
        """The token, or None if another owner held the lock for all of that time."""
        end = self.loop.time() + seconds
        try:
            while (left := end - self.loop.time()) > 0:
                id = str(next(self.ids))
                wait = self.waits[id] = self.loop.create_future()
                try:
                    words = ["DEPTH", "1", "BLOCK", str(int(left * 1000) + 1), "TELL", self.channel, id]
                    reply = await self.client.custom_command(["RLOCK.ACQUIRE", key, owner, *words])
                    if reply != b"WAITING":
                        return reply
                    kind, *rest = (await asyncio.wait_for(wait, min(LOOKS, left))).split(b" ", 2)
                    if kind == b"error":
                        raise RuntimeError(b" ".join(rest).decode())
                    return int(rest[0]) if kind == b"token" else None
                except asyncio.TimeoutError:
                    continue  # ask again: the server keeps the place
                finally:
                    del self.waits[id]
        except BaseException:
            await asyncio.shield(self._leave(key, owner))
            raise
        await self._leave(key, owner)
        return None

    async def _leave(self, key: str, owner: str) -> None:
        """Ends the wait. If the lock was granted in the meantime, it is released."""
        await self.client.custom_command(["RLOCK.CANCEL", key, owner])
        await self.client.custom_command(["RLOCK.RELEASE", key, owner, "WRITE", "DEPTH", "0"])

    async def release(self, key: str, owner: str, token: int) -> None:
        await self.client.custom_command(["RLOCK.RELEASE", key, owner, "TOKEN", str(token)])


async def main() -> None:
    locks = await Locks.connect(NodeAddress("127.0.0.1", int(os.environ["PORT"])), "order:42")
    key, order = "{order:42}", []

    async def work(number: int) -> None:
        owner = f"worker-{number}"
        token = await locks.acquire(key, owner, 30)
        assert token is not None and (not order or token > order[-1]), "a later token is larger"
        order.append(token)
        await locks.release(key, owner, token)

    held = await locks.acquire(key, "main", 1)
    assert held and await locks.acquire(key, "late", 0.2) is None
    workers = [asyncio.create_task(work(number)) for number in range(200)]
    await asyncio.sleep(0.5)
    await locks.release(key, "main", held)
    await asyncio.gather(*workers)
    print(f"granted one after the other: {len(order)}")


asyncio.run(main())
